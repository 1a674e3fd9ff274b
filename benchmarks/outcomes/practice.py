"""Practice at the built-in task: an expert with an unsteady hand, whose failures are kept; and
what recordings earn.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kata.data import open_dataset
from kata.data.loader.reader import Reader
from kata.data.writing.dataset_writer import DatasetWriter
from kata.eval.envs.reach import CAMERAS, FPS, INSTRUCTION, MAX_STEPS, Expert, ReachEnv
from kata.eval.record.demonstrations import USUAL
from kata.spec import ACTION, REWARD, STATE

SPREAD = (0.3, 0.8)
"""Noise on the commanded place, board units, of each episode's own amount."""


def record(root: Path, *, num_episodes: int) -> None:
    """A dataset of `num_episodes` attempts."""
    with DatasetWriter.create(
        root, fps=FPS, features=USUAL.features, robot_type="kata_board"
    ) as writer:
        for number in range(num_episodes):
            for frame in attempt(number):
                writer.add_frame(frame, INSTRUCTION)
            writer.save_episode()


def attempt(number: int) -> list[dict[str, object]]:
    """The frames of one attempt."""
    env, rng = ReachEnv(), np.random.default_rng([number, 1])
    seen, _ = env.reset(seed=number)
    expert, spread = Expert(env, rng), rng.uniform(*SPREAD)
    frames: list[dict[str, object]] = []
    for _ in range(MAX_STEPS):
        action = np.clip(expert.act() + rng.normal(0.0, spread, 2), -1, 1).astype(np.float32)
        frame = {f"observation.images.{camera}": seen["pixels"][camera] for camera in CAMERAS}
        frame |= {STATE: seen["agent_pos"], ACTION: action}
        seen, reward, done, _, info = env.step(action)
        frames.append(frame | {REWARD: reward, "next.success": info["is_success"]})
        if done:
            break
    return frames


def mean_return(root: Path) -> float | None:
    """The mean over a dataset's episodes of the sum of their rewards; None without rewards."""
    dataset = open_dataset("kata/data", root=root)
    if REWARD not in dataset.columns:
        return None
    with Reader(dataset, {}, keys=[REWARD]) as reader:
        rewards = reader.read(np.arange(dataset.num_frames))[REWARD]
    return float(rewards.sum() / len(dataset.episodes.index))
