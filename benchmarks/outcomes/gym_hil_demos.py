"""Records scripted demonstrations of gym-hil's pick from states, for `kata rl train`.

uv pip install gym-hil 'mujoco<3.9'
MUJOCO_GL=egl python benchmarks/outcomes/gym_hil_demos.py <folder> [--episodes=20]

The expert goes above the cube, down, closes the gripper for seven steps, and lifts. The gripper is
0, 1 or 2, of which 2 closes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import gym_hil  # noqa: F401 - registers the environments
import gymnasium
import numpy as np
from numpy.typing import NDArray

from kata.data.writing.dataset_writer import DatasetWriter
from kata.spec import ACTION, DONE, ENV_STATE, REWARD, STATE, Column

ID, FPS = "gym_hil/PandaPickCube-v0", 10
OPEN, STAY, CLOSE = 0.0, 1.0, 2.0
STEP_M = 0.025
"""Metres that an action of 1 moves the gripper."""

ONE = Column("float32", (1,))
FEATURES = {
    STATE: Column("float32", (18,)),
    ENV_STATE: Column("float32", (3,)),
    ACTION: Column("float32", (4,)),
    REWARD: ONE,
    DONE: Column("bool", (1,)),
    "next.truncated": Column("bool", (1,)),
    "next.success": Column("bool", (1,)),
    "complementary_info.discrete_penalty": ONE,
}


class PickExpert:
    """Above the cube, down, close, up; a little off each time."""

    def __init__(self, rng: np.random.Generator) -> None:
        self._rng = rng
        self._phase = self._closed = 0

    def act(self, seen: dict[str, Any]) -> NDArray[np.float32]:
        tool, cube = seen["agent_pos"][-3:], seen["environment_state"]
        above = self._phase == 0
        way = cube + (np.array([0, 0, 0.08]) if above else 0) - tool
        action = np.array([0, 0, 1, STAY], np.float32)
        if self._phase < 2:
            action[:3] = np.clip(way / STEP_M, -1, 1) * (1 if above else 0.5)
            action[3] = OPEN if above else STAY
            self._phase += bool(np.linalg.norm(way) < (0.02 if above else 0.012))
        elif self._phase == 2:
            action[:] = (0, 0, 0, CLOSE)
            self._closed += 1
            self._phase += self._closed > 6
        action[:3] = np.clip(action[:3] + 0.1 * self._rng.normal(size=3), -1, 1)
        return action


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--episodes", type=int, default=20)
    parser.add_argument("--random_place", action="store_true", help="of the cube, else one place")
    asked = parser.parse_args()
    is_random = asked.random_place
    env = gymnasium.make(ID, reset_delay_seconds=0.0, random_block_position=is_random)
    kept = tried = 0
    with DatasetWriter.create(asked.folder, fps=FPS, features=FEATURES) as writer:
        while kept < asked.episodes:
            seen, _ = env.reset(seed=tried)
            expert, frames = PickExpert(np.random.default_rng(tried)), []
            tried += 1
            while True:
                action = expert.act(seen)
                after, reward, ended, is_late, info = env.step(action)
                frames.append(
                    {
                        STATE: np.asarray(seen["agent_pos"], np.float32),
                        ENV_STATE: np.asarray(seen["environment_state"], np.float32),
                        ACTION: action,
                        REWARD: float(reward),
                        DONE: bool(ended),
                        "next.truncated": bool(is_late),
                        "next.success": bool(info["succeed"]),
                        "complementary_info.discrete_penalty": float(info["discrete_penalty"]),
                    }
                )
                seen = after
                if ended or is_late:
                    break
            if info["succeed"]:
                for frame in frames:
                    writer.add_frame(frame, "pick the cube up")
                writer.save_episode()
                kept += 1
    print(f"{kept} of {tried} attempts kept in {asked.folder}")


if __name__ == "__main__":
    main()
