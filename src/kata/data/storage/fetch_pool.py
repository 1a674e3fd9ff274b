"""Bytes of far files, fetched before decoders need them, within a budget.

    fetch_ahead: byte ranges that later steps need --+
    bring:       byte ranges of a task --------------+-> queue by step -> requests, many at a time
                                                          -> ranges in memory -> FarFiles.read_into

A task of the decode pool begins when its bytes are here, so no decoding thread waits for a store.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right, insort
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import CancelledError, ThreadPoolExecutor
from threading import Lock
from typing import TypeAlias, TypeVar

from kata.closing import Closing
from kata.data.storage.far_files import ByteRange, FarFiles
from kata.data.storage.fetch_requests import (
    NEVER,
    HeldRange,
    Key,
    Lease,
    Request,
    Stopwatch,
    Then,
    joined,
)
from kata.data.storage.unused_ranges import UnusedRanges

T = TypeVar("T")
R = TypeVar("R")

REQUESTS = 64
"""Requests at a time. With 200 ms of latency these are 320 requests in a second."""

_REQUEST_BYTES = 8 * 1024**2
"""Most bytes of a request that several ranges share."""

_REFILL = 0.75
"""Fraction of the budget below which more is planned. To search the plan for a few bytes after each
step would cost more than it gives.
"""

_AHEAD = 0.25
"""Fraction of the budget that is fetched ahead of its use in place of bytes that will be used
again, beside what came along. More hides no more latency, and fetches those bytes once more.
"""

_ALONG, _ALONG_ONCE = 0.375, 0.5
"""Fractions of the budget for bytes that came along with others: where bytes are used again, whose
room these take, and where they are not. They stay longer than those that are needed next, whose
room they may not take.
"""

_USED_AGAIN = 0.1
"""Fraction of the ranges that tasks let go of and want again, from which bytes are used again."""

_WHOLE = 0.9
"""Fraction of the budget that all files may take to be kept whole."""

_FREED = 64
"""A part of the budget that tasks let go of before requests are looked for that wait for room. Each
step looks for them anyway, and to look costs more than what one task lets go of is worth.
"""

_OVERLAPS = 8
"""Ranges that are looked into for bytes: those of a file may overlap, though GOPs seldom do."""

_BEFORE_ALL = -2
"""A step before any other: all ranges are needed later than that."""

_Queue: TypeAlias = list[tuple[int, int, Request]]


class FetchPool(Closing):
    """A pool of byte ranges of far files, and the threads that fetch them.

    Requests begin in the order of the steps that need them. A request begins when there is room for
    its bytes: the ranges that are needed again last make room for it, those first of which no use
    is known. So `held_bytes` exceeds the budget only by a range that is larger than all of it.

    Args:
        budget_bytes: limit of the bytes that are here or on their way.
        requests: most requests at a time.
    """

    def __init__(self, budget_bytes: int, requests: int = REQUESTS) -> None:
        self.budget_bytes = budget_bytes
        self.held_bytes = 0
        self._requests = requests
        self._lock = Lock()
        self._threads = ThreadPoolExecutor(requests, thread_name_prefix="kata-fetch")
        self._held: dict[Key, HeldRange] = {}
        self._begins: dict[tuple[FarFiles, str], list[int]] = defaultdict(list)
        self._planned_bytes = 0
        self._spare_bytes = 0
        self._along_bytes = 0
        self._freed_bytes = 0
        self._again = 0.0
        self._expected: dict[tuple[FarFiles, str], int] = {}
        self._expected_bytes = 0
        # Heaps of (step, number of the entry, request): those that tasks await come first.
        self._awaited: _Queue = []
        self._planned: _Queue = []
        self._unused = UnusedRanges(self._held)
        self._pushed = 0
        self._step = 0
        self._under_way = 0
        self._complete = 0
        self._waiting = Stopwatch()
        self._closed = False

    @property
    def has_room(self) -> bool:
        """Return True while so little is planned that `fetch_ahead` is worth its search."""
        return self._planned_bytes < _REFILL * self.budget_bytes

    @property
    def horizon_bytes(self) -> int:
        """Return the bytes up to whose use others are worth bringing along. Only a part of them
        can come, so this may exceed the budget where none are used again.
        """
        return self.budget_bytes if self._again > _USED_AGAIN else 2 * self.budget_bytes

    @property
    def holds_all(self) -> bool:
        """Return True if the budget holds all bytes that readers may want, so that each is fetched
        once.
        """
        return self._expected_bytes <= _WHOLE * self.budget_bytes

    def expect(self, files: FarFiles, sizes: Mapping[str, int]) -> None:
        """Take note of the bytes that a reader may want.

        Args:
            files: the store.
            sizes: bytes by name of the file.
        """
        with self._lock:
            for name, size in sizes.items():
                known = self._expected.get((files, name), 0)
                self._expected[files, name] = max(known, size)
                self._expected_bytes += max(size - known, 0)

    @property
    def waited_s(self) -> float:
        """Return the seconds during which some task waited for bytes."""
        with self._lock:
            return self._waiting.total_s()

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Call a function on the threads that fetch, and return its results in order."""
        return self._threads.map(function, items)

    def absent(self, ranges: Iterable[ByteRange]) -> list[ByteRange]:
        """Return the ranges that are neither here nor planned."""
        with self._lock:
            return [
                each
                for each in ranges
                if self._covering(each.files, each.name, each.begin, each.end) is None
            ]

    def fetch_ahead(
        self,
        ranges: Iterable[ByteRange],
        steps: range,
        along: Iterable[tuple[ByteRange, int]] = (),
    ) -> int:
        """Fetch ranges, each of which some of these steps need.

        Args:
            ranges: the ranges.
            steps: the steps.
            along: ranges with the later steps that need them. They are fetched only where they
                share a request with one of `ranges`.

        Returns:
            The bytes that are fetched for it.
        """
        with self._lock:
            if self._closed:
                return 0
            before = self._planned_bytes
            self._plan(ranges, steps, self._planned, along)
            planned = self._planned_bytes - before
            self._begin_requests()
            return planned

    def pass_steps(self, step: int) -> None:
        """Let go of what only steps before `step` needed: they found their frames elsewhere."""
        with self._lock:
            self._step = step
            for held in self._unused.passed(step):
                self._set_aside(held, NEVER)
            self._begin_requests()

    def forget_plan(self) -> None:
        """Let go of all that is planned, because other steps come next."""
        with self._lock:
            for held in list(self._held.values()):
                if held.users:
                    continue
                if held.data is not None:
                    self._set_aside(held, NEVER)
                elif not held.is_asked:
                    self._planned_bytes -= held.size
                    self._remove(held)

    def bring(self, lease: Lease, due: int, then: Then) -> None:
        """Call `then` once the bytes of a lease are here: now, or later on another thread.

        Args:
            lease: of the ranges; `release` ends it.
            due: the step that needs them.
            then: gets None, or the error of a range that cannot be had.

        Raises:
            RuntimeError: The pool is closed.
        """
        with self._lock:
            if self._closed:
                raise RuntimeError("bytes are wanted of a pool that was closed")
            self._plan(lease.ranges, range(due, due + 1), self._awaited)
            for each in lease.ranges:
                held = self._covering(each.files, each.name, each.begin, each.end)
                assert held is not None, "it was planned above"
                lease.held.append(held)
                held.users += 1
                held.again = lease.again
                held.entry = 0
                if held.data is None:
                    held.waiting.append(lease)
                    lease.missing += 1
                    if not held.is_asked and held.users == 1:
                        # Planned so far: it moves forward.
                        self._push(Request([held]), due, self._awaited)
            if lease.missing:
                lease.then = then
                self._waiting.start()
                self._begin_requests()
                return
            self._complete += 1
            lease.is_complete = True
        then(None)

    def release(self, lease: Lease) -> None:
        """Let the pool drop the ranges of a lease when it needs room."""
        with self._lock:
            self._complete -= lease.is_complete
            lease.is_complete = False
            for held in lease.held:
                held.users -= 1
                self._again += 0.01 * ((held.again < NEVER) - self._again)
                is_here = held.data is not None and self._held.get(held.key) is held
                if is_here and not held.users:
                    self._set_aside(held, held.again)
                    self._freed_bytes += held.size
            lease.held = []
            if self._awaited or self._freed_bytes * _FREED >= self.budget_bytes:
                self._begin_requests()

    def find(self, files: FarFiles, name: str, begin: int, end: int) -> memoryview | None:
        """Return bytes [begin, end) of a file if the pool has all of them in one range."""
        with self._lock:
            held = self._covering(files, name, begin, end)
            if held is None or held.data is None:
                return None
            first = held.range.begin
            return memoryview(held.data)[begin - first : end - first]

    def close(self) -> None:
        """Cancel what waits; return when the requests under way have ended."""
        with self._lock:
            self._closed = True
            self._awaited.clear()
            self._planned.clear()
            waiting: list[Lease] = []
            for held in self._held.values():
                waiting += held.waiting
                held.waiting = []
            ended = self._end_waits(waiting)
        for then in ended:
            then(CancelledError())
        self._threads.shutdown(wait=True, cancel_futures=True)

    # --- what is planned; each with the lock ------------------------------------------------------

    def _plan(
        self,
        ranges: Iterable[ByteRange],
        steps: range,
        queue: _Queue,
        along: Iterable[tuple[ByteRange, int]] = (),
    ) -> None:
        """Queue requests for the ranges that are neither here nor planned."""
        new: list[HeldRange] = []
        for each in ranges:
            held = self._covering(each.files, each.name, each.begin, each.end)
            if held is None:
                new.append(self._added(each, steps))
                continue
            self._count_as_near(held)
            if held.is_spare:
                held.is_spare = False
                self._spare_bytes -= held.size
                held.steps = steps
                self._planned_bytes += held.size
                self._unused.offer(held, steps)
        if new:
            new += self._added_along(along)
        self._push_joined(new, steps.start, queue)

    def _push_joined(self, ranges: list[HeldRange], due: int, queue: _Queue) -> None:
        """Queue requests for ranges; what is needed later is dropped where it would come alone."""
        # Of a small pool a request takes a part, so that several are under way.
        for request in joined(ranges, min(_REQUEST_BYTES, self.budget_bytes // 8)):
            if all(held.is_along for held in request.held):
                for held in request.held:
                    self._planned_bytes -= held.size
                    self._remove(held)
            else:
                self._push(request, due, queue)

    def _added_along(self, along: Iterable[tuple[ByteRange, int]]) -> list[HeldRange]:
        """Return new ranges that later steps need, the first of them first, within their share."""
        new: list[HeldRange] = []
        for each, due in sorted(along, key=lambda found: found[1]):
            share = _ALONG if self._again > _USED_AGAIN else _ALONG_ONCE
            if self._along_bytes >= share * self.budget_bytes:
                break
            if self._covering(each.files, each.name, each.begin, each.end) is None:
                held = self._added(each, range(due, due + 1))
                held.is_along = True
                self._along_bytes += held.size
                new.append(held)
        return new

    def _added(self, each: ByteRange, steps: range) -> HeldRange:
        """Return a new range that some of these steps need, to be fetched."""
        held = HeldRange(each, steps)
        self._held[held.key] = held
        insort(self._begins[each.files, each.name], each.begin)
        self._planned_bytes += held.size
        return held

    def _count_as_near(self, held: HeldRange) -> None:
        """Count a range no longer as one that came along."""
        if held.is_along:
            held.is_along = False
            self._along_bytes -= held.size

    def _covering(self, files: FarFiles, name: str, begin: int, end: int) -> HeldRange | None:
        """Return a range with bytes [begin, end) that is here, under way or planned."""
        begins = self._begins.get((files, name), ())
        place = bisect_right(begins, begin)
        # An image may lie in the range of its page, behind ranges of other images.
        for first in reversed(begins[max(place - _OVERLAPS, 0) : place]):
            held = self._held[files, name, first]
            if end <= held.range.end:
                return held
        return None

    def _push(self, request: Request, due: int, queue: _Queue) -> None:
        self._pushed += 1
        heapq.heappush(queue, (due, self._pushed, request))

    def _begin_requests(self) -> None:
        """Begin requests in the order of their steps, as far as there is room."""
        self._freed_bytes = 0
        while self._under_way < self._requests:
            queue = self._awaited or self._planned
            if not queue:
                return
            due, _, request = queue[0]
            if queue is self._planned and due < self._step:
                self._give_up_past(request)
            # Ranges may have come meanwhile by other requests. What is left has larger gaps.
            absent = [held for held in request.held if self._is_absent(held)]
            if len(absent) < len(request.held):
                heapq.heappop(queue)
                self._push_joined(absent, due, queue)
                continue
            size = sum(held.size for held in absent)
            if not self._make_room(size, due, is_awaited=queue is self._awaited):
                return
            heapq.heappop(queue)
            for held in absent:
                held.is_asked = True
            self.held_bytes += size
            self._under_way += 1
            self._threads.submit(self._run, request, due)

    def _is_absent(self, held: HeldRange) -> bool:
        return not held.is_asked and self._held.get(held.key) is held

    def _make_room(self, size: int, due: int, *, is_awaited: bool) -> bool:
        """Drop what is spare, then what only steps after `due` need; return False if in vain."""
        # With nothing under way and no task at work, a task would wait for ever.
        is_stuck = is_awaited and not self._under_way and not self._complete
        near_bytes = self.held_bytes - self._spare_bytes - self._along_bytes
        is_ahead = near_bytes > _AHEAD * self.budget_bytes
        earliest = NEVER - 1 if is_ahead and not is_awaited else due
        while self.held_bytes + size > self.budget_bytes:
            latest = self._unused.latest(_BEFORE_ALL if is_stuck else earliest)
            if latest is None:
                return is_stuck
            if latest.is_spare:
                self._spare_bytes -= latest.size
            else:
                self._planned_bytes -= latest.size
            self._drop(latest)
        return True

    def _set_aside(self, held: HeldRange, next_use: int) -> None:
        """Count a range that is here, and that no task uses, as spare."""
        self._count_as_near(held)
        if not held.is_spare:
            held.is_spare = True
            self._planned_bytes -= held.size
            self._spare_bytes += held.size
        self._unused.offer(held, range(next_use, next_use + 1))

    def _give_up_past(self, request: Request) -> None:
        """Forget ranges that only past steps needed: these found their frames elsewhere."""
        for held in request.held:
            if held.steps.stop <= self._step and self._is_absent(held) and not held.users:
                self._planned_bytes -= held.size
                self._remove(held)

    def _drop(self, held: HeldRange) -> None:
        """Forget a range that was asked for, with its bytes."""
        self._remove(held)
        self.held_bytes -= held.size
        # Entries of the heaps may keep the object for long, but not its bytes.
        held.data = None

    def _remove(self, held: HeldRange) -> None:
        self._count_as_near(held)
        del self._held[held.key]
        begins = self._begins[held.range.files, held.range.name]
        del begins[bisect_left(begins, held.range.begin)]

    # --- requests, on the threads of the pool -----------------------------------------------------

    def _run(self, request: Request, due: int) -> None:
        error: BaseException | None = None
        try:
            request.fetch()
        except BaseException as found:  # noqa: BLE001 - the batches that wait raise it
            error = found
        with self._lock:
            self._under_way -= 1
            ended = self._landed(request, error, due)
            self._begin_requests()
        for then in ended:
            then(error)

    def _landed(self, request: Request, error: BaseException | None, due: int) -> list[Then]:
        """Count a request that has ended; return what its leases want to be called."""
        if error is not None and len(request.held) > 1 and not self._closed:
            # One of the ranges may be at fault: each is asked for by itself.
            for held in request.held:
                held.is_asked = False
                held.data = None
                self.held_bytes -= held.size
                self._push(Request([held]), due, self._awaited if held.users else self._planned)
            return []
        waiting: list[Lease] = []
        for held in request.held:
            waiting += held.waiting
            held.waiting = []
            if error is not None:
                self._planned_bytes -= held.size
                held.data = None
                self._drop(held)
            elif not held.users:
                self._unused.offer(held, held.steps)
        return self._end_waits(waiting, is_failed=error is not None)

    def _end_waits(self, leases: list[Lease], *, is_failed: bool = True) -> list[Then]:
        """Count ranges that leases no longer wait for; return what the complete ones called."""
        ended: list[Then] = []
        for lease in leases:
            lease.missing -= not is_failed
            if lease.then is None or (lease.missing and not is_failed):
                continue
            lease.is_complete = not lease.missing
            self._complete += lease.is_complete
            ended.append(lease.then)
            lease.then = None
            self._waiting.stop()
        return ended
