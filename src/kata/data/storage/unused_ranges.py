"""The ranges of a pool that no task uses, by their next use."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from typing import TypeAlias

from kata.data.storage.fetch_requests import NEVER, HeldRange, Key

_OLD_ENTRIES = 256
"""Entries of a heap beyond five quarters of the ranges, at which old ones are removed. Each keeps a
few hundred bytes, so more of them look like memory that leaks."""

_Entry: TypeAlias = tuple[int, int, HeldRange]


class UnusedRanges:
    """Heaps of the ranges that are here and that no task uses, by -step and by step of their next
    use. Entries of ranges that are used or gone stay until they come up.

    Args:
        held: all ranges of the pool.
    """

    def __init__(self, held: Mapping[Key, HeldRange]) -> None:
        self._held = held
        self._farthest: list[_Entry] = []
        self._soonest: list[_Entry] = []
        self._offered = 0

    def offer(self, held: HeldRange, steps: range) -> None:
        """Let a range that no task uses be dropped for one that is needed sooner."""
        self._offered += 1
        held.entry = self._offered
        self._enter(self._farthest, (-steps.start, self._offered, held))
        if steps.start < NEVER:
            self._enter(self._soonest, (steps.stop, self._offered, held))

    def latest(self, due: int) -> HeldRange | None:
        """Return the range that is needed last, if that is after step `due`; it is no longer
        offered.
        """
        while self._farthest and -self._farthest[0][0] > due:
            entry = heapq.heappop(self._farthest)
            if self._is_current(entry):
                return entry[2]
        return None

    def passed(self, step: int) -> Iterator[HeldRange]:
        """Return the ranges whose steps all lie before this one."""
        while self._soonest and self._soonest[0][0] <= step:
            entry = heapq.heappop(self._soonest)
            if self._is_current(entry):
                yield entry[2]

    def _enter(self, heap: list[_Entry], entry: _Entry) -> None:
        heapq.heappush(heap, entry)
        if len(heap) > _OLD_ENTRIES + len(self._held) * 5 // 4:
            heap[:] = [each for each in heap if self._is_current(each)]
            heapq.heapify(heap)

    def _is_current(self, entry: _Entry) -> bool:
        _, number, held = entry
        return held.entry == number and self._held.get(held.key) is held
