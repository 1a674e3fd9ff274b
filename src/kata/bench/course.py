"""The course of a measurement in its process: when it begins, ends, and stood still between."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ProcessPauses:
    """The times at which a process stood still, for a partner that measured meanwhile.

    Attributes:
        stops: Each as (begin, end) by time.perf_counter, which all processes of a machine share.
        partner_cpu_s: CPU seconds that the partner used while this process measured.
    """

    stops: Sequence[tuple[float, float]] = ()
    partner_cpu_s: float = 0.0

    def running_s(self, begin_s: float, end_s: float) -> float:
        """Return the seconds of this span in which the process did not stand still."""
        paused_s = 0.0
        for begin, end in self.stops:
            paused_s += max(0.0, min(end_s, end) - max(begin_s, begin))
        return end_s - begin_s - paused_s


class Course:
    """A measurement that begins once it is set up, and that nothing interrupts.

    Attributes:
        own_share: The process's share of the time that passes.
    """

    own_share = 1.0

    def begin(self) -> None:
        """Wait until the measurement may begin."""

    def end(self, *, is_first: bool) -> ProcessPauses:
        """Return the pauses that the measurement had.

        Args:
            is_first: The measurement is done; otherwise wait until it is to end.
        """
        del is_first
        return ProcessPauses()
