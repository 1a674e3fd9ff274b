"""Replays people's actions of a PushT dataset in the simulation: does the environment behave as the
recording did?

python benchmarks/outcomes/pusht_replay.py --root=<folder of lerobot/pusht> [--episodes=206]

The dataset does not hold the block's pose. It is found in the first frame by drawing the scene
until it looks the same, and refined until the replay earns the recorded rewards (next.reward at t
is the coverage after action t, divided by
0.95; the last one repeats the one before). The result is judged by what neither step looks at:
where the block lies at the end, found in the last recorded frame.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from importlib.metadata import version
from pathlib import Path
from typing import Any

import cv2
import numpy as np

from kata.data import open_dataset
from kata.data.loader.reader import Reader
from kata.eval.envs.pusht import SUCCESS_COVERAGE, make_pusht

GREY = np.array([119, 136, 153])
CENTRE = 40.7  # from the origin of the T's frame to the middle of its area
PICTURE_SPREAD = np.array([4.0, 4.0, 0.1])  # units, units, rad
REWARD_SPREAD = np.array([0.5, 0.5, 0.01])
REWARD_TOLERANCE = 0.02

Pose = (
    np.ndarray
)  # x, y, angle of the middle of the T's area (of its frame's origin in `origin`'s result)


def origin(pose: Pose) -> Pose:
    x, y, angle = pose
    return np.array([x + np.sin(angle) * CENTRE, y - np.cos(angle) * CENTRE, angle])


def search(
    cost: Callable[[Pose], float], start: Pose, spread: Pose, rounds: int, enough: float = 0.0
) -> Pose:
    """The best of random tries around the best so far, ever closer."""
    rng = np.random.default_rng(0)
    best, lowest = start, cost(start)
    for _ in range(rounds):
        if lowest <= enough:
            break
        for tried in best + spread * rng.standard_normal((16, 3)):
            if (value := cost(tried)) < lowest:
                best, lowest = tried, value
        spread = spread * 0.7
    return best


class Replay:
    """One environment, its drawing and its physics."""

    def __init__(self) -> None:
        self.env = make_pusht()
        self.env.reset(seed=0)
        self.sim: Any = self.env.unwrapped

    def locate(self, picture: np.ndarray, tool: np.ndarray, near: Pose | None = None) -> Pose:
        """The block in a recorded picture (96, 96, 3)."""
        wanted = picture.astype(np.float32)

        def unlike(pose: Pose) -> float:
            x, y, angle = origin(pose)
            self.sim.agent.position, self.sim.block.angle = tuple(tool), angle
            self.sim.block.position = (x, y)
            for body in (self.sim.block, self.sim.agent):
                self.sim.space.reindex_shapes_for_body(body)
            return float(np.square(self.sim._render().astype(np.float32) - wanted).mean())

        if near is None:
            rows, columns = np.nonzero(np.abs(wanted - GREY).max(axis=-1) < 30)
            middle = (np.array([columns.mean(), rows.mean()]) + 0.5) * 512 / 96
            near = min(
                (np.array([*middle, a]) for a in np.arange(0, 2 * np.pi, np.pi / 12)), key=unlike
            )
        return search(unlike, near, PICTURE_SPREAD, 12)

    def play(
        self, tool: np.ndarray, pose: Pose, actions: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray, Pose]:
        """Coverage after each action (T,), tool places before each (T, 2), and the block before
        the last action.
        """
        self.env.reset(options={"state": [*tool, *origin(pose)]})
        self.sim.obs_type = "environment_state_agent_pos"  # draws no pictures
        coverage, tools = np.zeros(len(actions)), np.zeros((len(actions), 2))
        for t, action in enumerate(actions):
            tools[t], block = (
                self.sim.agent.position,
                [*self.sim.block.position, self.sim.block.angle],
            )
            coverage[t] = self.sim.step(action)[-1]["coverage"]
        self.sim.obs_type = "pixels_agent_pos"
        return coverage, tools, np.array(block)

    def judge(
        self,
        frames: tuple[np.ndarray, np.ndarray],
        tools: np.ndarray,
        actions: np.ndarray,
        rewards: np.ndarray,
    ):
        """One episode's figures. frames: the first and the last picture."""

        def unpaid(pose: Pose) -> float:
            earned = np.minimum(self.play(tools[0], pose, actions[:-1])[0] / SUCCESS_COVERAGE, 1)
            return float(np.abs(earned - rewards[:-1]).max())

        start = search(
            unpaid, self.locate(frames[0], tools[0]), REWARD_SPREAD, 12, REWARD_TOLERANCE
        )
        coverage, moved, end = self.play(tools[0], start, actions)
        middle = [end[0] - np.sin(end[2]) * CENTRE, end[1] + np.cos(end[2]) * CENTRE, end[2]]
        off = origin(self.locate(frames[1], tools[-1], np.array(middle))) - end
        return {
            "state": [round(float(v), 4) for v in (*tools[0], *origin(start))],
            "tool_off_units": float(np.abs(moved - tools).max()),
            "block_off_units": float(np.hypot(*off[:2])),
            "block_off_degrees": float(np.degrees(abs((off[2] + np.pi) % (2 * np.pi) - np.pi))),
            "reward_off": unpaid(start),
            "best_coverage": float(coverage.max()),
        }


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--root", required=True)
    parser.add_argument("--episodes", type=int, default=206)
    parser.add_argument(
        "--output", default=str(Path(__file__).parent / "results" / "pusht_replay.json")
    )
    given = parser.parse_args()
    cv2.setNumThreads(1)  # threads cost more than they bring for such small pictures
    data = open_dataset("lerobot/pusht", root=given.root).subset(range(given.episodes))
    tools, actions, rewards = (
        data.column(key) for key in ("observation.state", "action", "next.reward")
    )
    replay, found = Replay(), []
    with Reader(data, {}, keys=["observation.image"]) as reader:
        for first, length in zip(data.episodes.start, data.episodes.length, strict=True):
            rows = slice(first, first + length)
            pictures = reader.read(np.array([first, first + length - 1]))["observation.image"]
            found.append(
                replay.judge((pictures[0], pictures[1]), tools[rows], actions[rows], rewards[rows])
            )
            print(len(found), found[-1], flush=True)
    column = {key: np.array([episode[key] for episode in found]) for key in found[0]}
    result = {
        "command": "python benchmarks/outcomes/pusht_replay.py --root=<lerobot/pusht> "
        f"--episodes={given.episodes}",
        "versions": {
            name: version(name) for name in ("gym-pusht", "pymunk", "pygame", "numpy", "gymnasium")
        },
        "episodes": len(found),
        "tool_off_units_max": float(column["tool_off_units"].max()),
        "block_off_units_median": float(np.median(column["block_off_units"])),
        "block_off_units_max": float(column["block_off_units"].max()),
        "block_within_5_units": int((column["block_off_units"] <= 5).sum()),
        "best_coverage_mean": float(column["best_coverage"].mean()),
        "best_coverage_above_0.95": int((column["best_coverage"] > SUCCESS_COVERAGE).sum()),
        "per_episode": found,
    }
    Path(given.output).write_text(json.dumps(result, indent=1) + "\n")
    print({key: value for key, value in result.items() if key != "per_episode"})


if __name__ == "__main__":
    main()
