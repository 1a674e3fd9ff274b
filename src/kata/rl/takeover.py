"""Takeovers: somebody who knows the task acts for a while. Torch-free.

A human takes over through the environment, whose info tells it (see `kata.rl.environment`). The
expert of the built-in task stands in for one.
"""

from __future__ import annotations

from typing import Any, cast

import gymnasium
import numpy as np
from numpy.typing import NDArray

from kata.data.sampling.philox import draw_below
from kata.eval.envs.reach import Expert, ReachEnv
from kata.rl.options import TakeoverConfig

FAR = 0.3
"""Distance to the target, board units, from which the expert finds the arm off its way."""

LEAST_CARE = 0.1
"""Share of `rate` that is left when every recent episode succeeded."""

_WHOLE = 2**32


class Scripted:
    """The built-in task's expert, who takes over the more often the more recent episodes failed.

    What it does follows from seed, episode, step and the episodes before.
    """

    def __init__(self, options: TakeoverConfig, seed: int) -> None:
        self._options = options
        self._seed = seed
        self._left = 0

    def begin(self, env: gymnasium.Env[Any, Any], episode: int, recent_success: float) -> None:
        """Get ready for an episode.

        Args:
            env: just reset.
            episode: its number.
            recent_success: share of successes in recent episodes that nobody helped in.
        """
        options = self._options
        self._env = cast("ReachEnv", env.unwrapped)
        self._expert = Expert(self._env, np.random.default_rng([self._seed, episode]))
        self._chance = options.rate * max(LEAST_CARE, 1 - recent_success)
        if options.alone_every and (episode + 1) % options.alone_every == 0:
            self._chance = 0.0
        self._left = 0

    def action(self, step: int) -> NDArray[np.float32] | None:
        """Return the expert's action, or None while the policy may act.

        step: of the run.
        """
        options = self._options
        if self._left == 0 and self._is_far():
            drawn, length = draw_below(self._seed, step, "rl takeover", (2,), _WHOLE).tolist()
            if drawn < self._chance * _WHOLE:
                span = options.most_steps - options.least_steps + 1
                self._left = options.least_steps + length * span // _WHOLE
        if self._left == 0:
            return None
        self._left -= 1
        return self._expert.act()

    def _is_far(self) -> bool:
        return float(np.hypot(*(self._env.goal - self._env.tool))) > FAR
