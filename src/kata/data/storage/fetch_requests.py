"""Byte ranges of far files in memory, and the requests that bring them."""

from __future__ import annotations

import heapq
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from kata.data.storage.far_files import ByteRange, FarFiles

REQUEST_COST_BYTES = 64 * 1024
"""Bytes that cost as much time as one more request. With 64 requests in flight, one of 20 ms takes
as much of a line of 270 MiB/s as 84 KiB.
"""

_GAP_SHARE = 8
"""Wanted bytes per byte between them that is fetched and dropped. Bytes are paid for, and a line
may be slow, so gaps may not cost more than an eighth.
"""

_DROPPED = memoryview(bytearray(REQUEST_COST_BYTES))
"""Receives the bytes of gaps. All threads write here and none reads."""

NEVER = 2**62
"""A step later than any other: no step is known to need the bytes or the frame again."""

Then: TypeAlias = Callable[[BaseException | None], None]
"""then(error) is called once, when all bytes of a lease are here, or cannot be had."""

Key: TypeAlias = tuple[FarFiles, str, int]


@dataclass(eq=False, slots=True)
class Lease:
    """Byte ranges that a task needs. They stay in the pool from `bring` until `release`.

    Attributes:
        ranges: the byte ranges.
        again: the next step that will need them, if the frames of this task are not held till then.
        missing: how many of them are not here yet.
        then: to be called when all are here.
        is_complete: True from the moment when all were here.
        held: the same ranges in the pool.
    """

    ranges: Sequence[ByteRange]
    again: int = NEVER
    missing: int = 0
    is_complete: bool = False
    then: Then | None = None
    held: list[HeldRange] = field(default_factory=list["HeldRange"])


@dataclass(eq=False, slots=True)
class HeldRange:
    """A range in the pool, or on its way.

    Attributes:
        range: the range.
        steps: the steps of which some need it.
        again: the next step that needs it after the tasks that use it now.
        is_asked: True once a request for it has begun; from then on its bytes count.
        is_spare: True while it is here and no step is known to need it soon.
        is_along: True while it is needed later than what it came along with.
        entry: number of its valid entries in the pool's heaps; 0 for none.
        data: the bytes, once they are here.
        users: leases that keep it.
        waiting: those of them that wait for its bytes.
        size: number of bytes.
        key: what the pool knows the range by.
    """

    range: ByteRange
    steps: range
    again: int = NEVER
    is_asked: bool = False
    is_spare: bool = False
    is_along: bool = False
    entry: int = 0
    data: bytearray | None = None
    users: int = 0
    waiting: list[Lease] = field(default_factory=list[Lease])
    size: int = field(init=False)
    key: Key = field(init=False)

    def __post_init__(self) -> None:
        files, name, _, begin, end = self.range
        self.size = end - begin
        self.key = (files, name, begin)


@dataclass(eq=False, slots=True)
class Request:
    """Neighbouring ranges of one file that are fetched together."""

    held: list[HeldRange]

    def fetch(self) -> None:
        """Fetch the ranges with one read, and drop the bytes between them."""
        first = self.held[0].range
        end = first.begin
        pieces: list[memoryview] = []
        parts: list[bytearray] = []
        for held in self.held:
            if held.range.begin > end:
                assert held.range.begin - end <= REQUEST_COST_BYTES, "`joined` allows no more"
                pieces.append(_DROPPED[: held.range.begin - end])
            parts.append(bytearray(held.size))
            pieces.append(memoryview(parts[-1]))
            end = held.range.end
        first.files.fetch(first.name, first.begin, pieces, first.stamp)
        for held, data in zip(self.held, parts, strict=True):
            held.data = data


def joined(new: list[HeldRange], most_bytes: int) -> list[Request]:
    """Return requests for ranges, neighbours of one file together up to `most_bytes`."""
    requests: list[Request] = []
    wanted = dropped = 0
    for held in sorted(new, key=_place):
        last = requests[-1].held if requests else []
        gap = _gap(last[-1].range, held.range) if last else None
        if gap is not None and held.range.end - last[0].range.begin <= most_bytes:
            wanted += held.size
            dropped += gap
            if gap <= REQUEST_COST_BYTES and dropped * _GAP_SHARE <= wanted:
                last.append(held)
                continue
        requests.append(Request([held]))
        wanted = held.size
        dropped = 0
    return requests


def beside(
    wanted: Sequence[ByteRange], others: Iterable[tuple[ByteRange, int]]
) -> list[tuple[ByteRange, int]]:
    """Return those of other ranges of a file that touch wanted ones, or others that do.

    Args:
        wanted: ascending.
        others: ascending, each with the step that needs it; wanted ones among them are left out.
    """
    begins = {each.begin for each in wanted}
    found: list[tuple[ByteRange, int]] = []
    run: list[tuple[ByteRange, int]] = []
    end = -1
    has_wanted = False
    # Both are few: a run is a piece of the file without a gap.
    places = [(each, -1) for each in wanted]
    for each, due in heapq.merge(places, others, key=_begin):
        if each.begin > end:
            found += run if has_wanted else ()
            run, has_wanted = [], False
        end = max(end, each.end)
        if due < 0:
            has_wanted = True
        elif each.begin not in begins:
            run.append((each, due))
    return found + run if has_wanted else found


def _begin(found: tuple[ByteRange, int]) -> int:
    return found[0].begin


def _place(held: HeldRange) -> tuple[int, str, int]:
    return id(held.range.files), held.range.name, held.range.begin


def _gap(one: ByteRange, after: ByteRange) -> int | None:
    """Return the bytes between two ranges of one file, or None if there is no such gap."""
    is_one_file = (one.files, one.name) == (after.files, after.name)
    return after.begin - one.end if is_one_file and after.begin >= one.end else None


class Stopwatch:
    """The seconds during which at least one thing was under way."""

    def __init__(self) -> None:
        self._count = 0
        self._since_s = 0.0
        self._total_s = 0.0

    def start(self) -> None:
        """Count one more thing that is under way."""
        if not self._count:
            self._since_s = time.perf_counter()
        self._count += 1

    def stop(self) -> None:
        """Count one thing less."""
        self._count -= 1
        if not self._count:
            self._total_s += time.perf_counter() - self._since_s

    def total_s(self) -> float:
        """Return the seconds so far."""
        return self._total_s + (time.perf_counter() - self._since_s if self._count else 0.0)
