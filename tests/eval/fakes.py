"""Small environments that behave, and some that do not.

Without torch, so that processes start quickly.
"""

from __future__ import annotations

import os
from collections import defaultdict

import gymnasium
import numpy as np
from gymnasium import spaces

ACTIONS: dict[int, list[np.ndarray]] = defaultdict(list)
"""Seed -> the actions that an environment of this process was given."""
MADE: list[str] = []
"""A line per environment made in this process."""
STARTS: list[object] = []
"""The options of each reset in this process."""


class Toy(gymnasium.Env):
    """A point that actions push around; an episode has 4 to 8 steps, by its seed. Even seeds
    succeed at step 2.

    bad: seed -> (step, what goes wrong: 'raise', 'state', 'reward', 'shape' or 'exit').
    """

    metadata = {"render_modes": ["rgb_array"], "render_fps": 7}  # noqa: RUF012

    def __init__(self, bad=None, action_size=2, size=32, render_mode=None, success="is_success"):
        MADE.append("toy")
        self.render_mode, self.success = render_mode, success
        self.bad = {int(seed): what for seed, what in (bad or {}).items()}
        picture = spaces.Dict({"top": spaces.Box(0, 255, (size, size, 3), np.uint8)})
        self.observation_space = spaces.Dict(
            {"agent_pos": spaces.Box(-9, 9, (3,), np.float64), "pixels": picture}
        )
        self.action_space = spaces.Box(-0.5, 0.5, (action_size,), np.float32)
        self.shape = (size, size, 3)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        ACTIONS[seed].clear()
        STARTS.append(options)
        self.seed, self.steps, self.at = seed, 0, self.np_random.uniform(-1, 1, 3)
        return self.observe(), {}

    def step(self, action):
        self.steps += 1
        ACTIONS[self.seed].append(action.copy())
        self.at[:2] += action[:2]
        when, what = self.bad.get(self.seed, (0, ""))
        wrong = what if when == self.steps else ""
        if wrong == "raise":
            raise RuntimeError("the gripper\nfell off")
        if wrong == "exit":
            os._exit(3)
        if wrong == "state":
            self.at[0] = np.nan
        if wrong == "shape":
            self.shape = (8, 8, 3)
        reward = float("inf") if wrong == "reward" else float(self.steps)
        info = {self.success: self.steps == 2 and self.seed % 2 == 0, "other": 1}
        return self.observe(), reward, False, self.steps == 4 + self.seed % 5, info

    def observe(self):
        value = int(100 + 50 * np.clip(np.nan_to_num(self.at[2]) + 0.1 * self.steps, -1, 1))
        return {
            "agent_pos": self.at.copy(),
            "pixels": {"top": np.full(self.shape, value, np.uint8)},
        }

    def render(self):
        return np.full((21, 33, 3), 10 * self.steps, np.uint8)


class Nested(Toy):
    """Takes its action in a dict and says success deep in info; the observation is one vector."""

    def __init__(self):
        super().__init__()
        self.action_space = spaces.Dict({"arm": self.action_space, "base": spaces.Discrete(2)})
        self.observation_space = spaces.Box(-9, 9, (3,), np.float64)

    def step(self, action):
        seen, reward, ended, late, info = super().step(action["arm"])
        return seen, reward, ended, late, {"metrics": {"won": info["is_success"]}}

    def observe(self):
        return super().observe()["agent_pos"]


gymnasium.register("fakes/Toy-v0", entry_point="tests.eval.fakes:Toy", max_episode_steps=50)
gymnasium.register("fakes/Endless-v0", entry_point="tests.eval.fakes:Toy")
gymnasium.register("fakes/Nested-v0", entry_point="tests.eval.fakes:Nested", max_episode_steps=50)
gymnasium.register("fakes/Discrete-v0", entry_point="gymnasium.envs.classic_control:CartPoleEnv")
