"""Records demonstrations of the built-in task as a LeRobot v3.0 dataset."""

from __future__ import annotations

import logging
import multiprocessing
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from kata.data.writing.dataset_writer import DatasetWriter, VideoOptions
from kata.errors import DataError
from kata.eval.envs.reach import (
    CAMERAS,
    FPS,
    MAX_STEPS,
    PLACE_NAMES,
    SENTENCES,
    SIZE,
    WAY_NAMES,
    Expert,
    ReachEnv,
    ReachOneOfTwoEnv,
)
from kata.spec import ACTION, REWARD, STATE, Column

ROBOT_TYPE = "kata_board"

_log = logging.getLogger(__name__)

_PLACE = Column("float32", (2,), PLACE_NAMES)
_WAY = Column("float32", (2,), WAY_NAMES)

_WAVE = 8  # attempts per process at a time: the frames of one attempt are about 1 MB
_PAYS_OFF = 200  # starting processes takes longer than simulating fewer episodes than this

Frames = list[dict[str, Any]]


@dataclass(frozen=True)
class Board:
    """The built-in task as it is recorded.

    Attributes:
        targets: 1, or 2 of which the sentence names one, green and blue in turn.
        picture: pixels of a side of the pictures.
        relative: True records actions as ways from where the tool is, not as places.
    """

    targets: int = 1
    picture: int = SIZE
    relative: bool = False

    @property
    def features(self) -> dict[str, Column]:
        """Return the features of a frame."""
        frame = Column("video", (self.picture, self.picture, 3))
        return {
            STATE: _PLACE,
            **{f"observation.images.{camera}": frame for camera in CAMERAS},
            ACTION: _WAY if self.relative else _PLACE,
            REWARD: Column("float32", (1,)),
            "next.success": Column("bool", (1,)),
        }

    def target(self, number: int) -> str:
        """Return the color of the target that an attempt reaches for."""
        return tuple(SENTENCES)[number % self.targets]

    def env(self, number: int) -> ReachEnv:
        """Return the environment of an attempt."""
        if self.targets == 1:
            return ReachEnv(picture=self.picture, relative=self.relative)
        return ReachOneOfTwoEnv(
            picture=self.picture, target=self.target(number), relative=self.relative
        )


USUAL = Board()


def record(
    root: str | Path,
    *,
    num_episodes: int,
    seed: int = 0,
    codec: str = "av1",
    board: Board = USUAL,
    workers: int | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Path:
    """Record successful demonstrations; the log says how many failed ones were dropped.

    Args:
        root: a folder that is absent or empty.
        num_episodes: how many to keep.
        seed: same seed, same dataset, whatever the number of workers.
        codec: 'av1' or 'h264'.
        board: what is recorded.
        workers: processes that simulate; None takes one for a few episodes and all CPUs for many.
        progress: called with (kept, num_episodes) after each kept episode.

    Returns:
        The dataset's folder.

    Raises:
        DataError: when the folder is not empty, a number is below 1, or the codec is unknown.
    """
    if workers is None:
        workers = 1 if num_episodes < _PAYS_OFF else os.cpu_count() or 1
    _require_some(num_episodes, workers)
    options = VideoOptions(codec)
    kept = tried = 0
    with (
        DatasetWriter.create(
            root, fps=FPS, features=board.features, robot_type=ROBOT_TYPE, video=options
        ) as writer,
        ExitStack() as stack,
    ):
        for number, frames in enumerate(
            _attempts(partial(attempt, seed, board=board), workers, stack)
        ):
            tried += 1
            if not frames[-1]["next.success"]:
                continue
            for frame in frames:
                writer.add_frame(frame, SENTENCES[board.target(number)])
            writer.save_episode()
            kept += 1
            if progress is not None:
                progress(kept, num_episodes)
            if kept == num_episodes:
                break
    _log.info("%d demonstrations; %d failed attempts were dropped", kept, tried - kept)
    return Path(root)


def attempt(seed: int, number: int, board: Board = USUAL) -> Frames:
    """The frames of attempt `number`, successful or not; they depend on these numbers alone.

    Of two targets, each pair of attempts has one board and one start, so that nothing but the
    sentence tells what to do.
    """
    env = board.env(number)
    start = np.random.SeedSequence([seed, number // board.targets])
    seen, _ = env.reset(seed=int(start.generate_state(1)[0]))
    expert = Expert(env, np.random.default_rng([seed, number]))
    frames: Frames = []
    for _ in range(MAX_STEPS):
        action = expert.act()
        frame = {f"observation.images.{camera}": seen["pixels"][camera] for camera in CAMERAS}
        frame |= {STATE: seen["agent_pos"], ACTION: action}
        seen, reward, done, timed_out, info = env.step(action)
        frames.append(frame | {REWARD: reward, "next.success": info["is_success"]})
        if done or timed_out:
            break
    return frames


def _require_some(episodes: int, workers: int) -> None:
    if min(episodes, workers) < 1:
        raise DataError(
            f"{episodes} episodes by {workers} workers",
            rule="1 or more of each",
            remedy="give larger numbers",
        )


def _attempts(tried: Callable[[int], Frames], workers: int, stack: ExitStack) -> Iterator[Frames]:
    """Attempts in order, without end."""
    if workers == 1:
        yield from map(tried, count())
    # fork would copy the encoder's threads in a state that nobody can continue
    pool = stack.enter_context(ProcessPoolExecutor(workers, multiprocessing.get_context("spawn")))
    for first in count(step=workers * _WAVE):
        yield from pool.map(tried, range(first, first + workers * _WAVE))
