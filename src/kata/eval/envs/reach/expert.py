"""Shows the built-in task the way a person would: unevenly fast, a little off, corrected near
the target.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kata.eval.envs.reach.reach import ReachEnv

_LEAD = (
    2.0  # steps of way by which the commanded place runs ahead; the arm closes half of it in a step
)
_BRAKE = 0.35  # share of the remaining way taken in one step when near


class Expert:
    """An expert that knows the target and moves to it.

    It starts slowly, cruises and brakes. It first aims beside the target and looks again when it is
    close. Its hand drifts (an Ornstein-Uhlenbeck process).

    Args:
        env: the environment, just reset.
        rng: source of its habits, such as the cruising speed.
    """

    def __init__(self, env: ReachEnv, rng: np.random.Generator) -> None:
        self._env, self._rng = env, rng
        self._speed = rng.uniform(0.032, 0.052)
        self._offset = rng.normal(0.0, 0.05, 2)
        self._look_again = rng.uniform(0.25, 0.45)
        self._drift = np.zeros(2)
        self._steps = 0

    def act(self) -> NDArray[np.float32]:
        """The next action for the state that the environment is in."""
        self._steps += 1
        self._drift = 0.8 * self._drift + self._rng.normal(0.0, 0.006, 2)
        if np.hypot(*(self._env.goal - self._env.tool)) < self._look_again:
            self._offset *= 0.6
        way = self._env.goal + self._offset - self._env.tool
        distance = float(np.hypot(*way))
        start = min(1.0, 0.35 + 0.2 * self._steps)
        step = min(self._speed * start, _BRAKE * distance)
        target = self._env.tool + way * (_LEAD * step / max(distance, 1e-9)) + self._drift
        return self._env.action_towards(target)
