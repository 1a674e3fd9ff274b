"""Pauses: the work between steps, and how much time it will still take."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Generic, TypeVar

State = TypeVar("State")


@dataclass
class _Pause:
    """Work that falls due every `every` steps (0: never) and after the last one."""

    every: int
    like_steps: float
    took_s: list[float] = field(default_factory=list[float])

    def left(self, step: int, steps: int) -> int:
        """Return how often it falls due from `step` on, `step` itself counted."""
        if self.every == 0:
            return 1
        after_the_last = steps % self.every != 0
        return steps // self.every - (step - 1) // self.every + after_the_last


class Pauses(Generic[State]):
    """A clock for the work between steps.

    Args:
        steps: steps of the whole run.
    """

    def __init__(self, steps: int) -> None:
        self._steps = steps
        self._pauses: list[_Pause] = []

    def timed(
        self, every: int, work: Callable[[State], None], *, like_steps: float = 0.0
    ) -> tuple[int, Callable[[State], None]]:
        """Return `every` and the work under the clock.

        Args:
            every: steps from one time to the next; 0 is after the last step alone.
            work: what is done between two steps.
            like_steps: how many steps take as long, believed until the first time is measured.
        """
        pause = _Pause(every, like_steps)
        self._pauses.append(pause)

        def measured(state: State) -> None:
            began_s = time.perf_counter()
            work(state)
            pause.took_s.append(time.perf_counter() - began_s)

        return every, measured

    def left_s(self, step: int, step_s: float) -> float:
        """Return the seconds of all pauses that are due from `step` on, at steps of `step_s`."""
        total_s = 0.0
        for pause in self._pauses:
            each_s = median(pause.took_s) if pause.took_s else pause.like_steps * step_s
            total_s += each_s * pause.left(step, self._steps)
        return total_s
