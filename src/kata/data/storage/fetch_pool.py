"""Bytes of far files, fetched before decoders need them, within a budget.

    fetch_ahead: byte ranges that later steps need --+
    bring:       byte ranges of a task --------------+-> queue by step -> requests, many at a time
                                                          -> ranges in memory -> FarFiles.read_into

A task of the decode pool begins when its bytes are here, so no decoding thread waits for a store.
"""

from __future__ import annotations

import heapq
import time
from bisect import bisect_left, bisect_right, insort
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import TypeAlias, TypeVar

from kata.closing import Closing
from kata.data.storage.far_files import ByteRange, FarFiles

T = TypeVar("T")
R = TypeVar("R")

REQUESTS = 64
"""Requests at a time. With 200 ms of latency these are 320 requests in a second."""

_GAP_BYTES = 64 * 1024
"""Bytes between two ranges that are fetched and dropped, for one request less. A request of 20 ms
costs as much time as 5 MB at the 270 MiB/s that one host gets, but bytes are scarcer than requests.
"""

_REQUEST_BYTES = 8 * 1024**2
"""Most bytes of a request that several ranges share."""

_REFILL = 0.75
"""Fraction of the budget below which more is planned. To search the plan for a few bytes after each
step would cost more than it gives.
"""

_SPARE_ENTRIES = 1000
"""Entries of a heap beyond twice the ranges, from which those of past steps are removed."""

_OVERLAPS = 8
"""Ranges that are looked into for bytes: those of a file may overlap, though GOPs seldom do."""

_DROPPED = memoryview(bytearray(_GAP_BYTES))
"""Receives the bytes of gaps. All threads write here and none reads."""

Then: TypeAlias = Callable[[BaseException | None], None]
"""then(error) is called once, when all bytes of a lease are here, or cannot be had."""


_NEVER_USED = -2
"""A step before any other: all ranges are needed later than that."""

_Key: TypeAlias = tuple[FarFiles, str, int]
_Queue: TypeAlias = list[tuple[int, int, "_Request"]]


@dataclass(eq=False, slots=True)
class Lease:
    """Byte ranges that a task needs. They stay in the pool from `bring` until `release`.

    Attributes:
        ranges: the byte ranges.
        missing: how many of them are not here yet.
        then: to be called when all are here.
        is_complete: True from the moment when all were here.
        held: the same ranges in the pool.
    """

    ranges: Sequence[ByteRange]
    missing: int = 0
    is_complete: bool = False
    then: Then | None = None
    held: list[_Held] = field(default_factory=list["_Held"])


@dataclass(eq=False, slots=True)
class _Held:
    """A range in the pool, or on its way.

    Attributes:
        range: the range.
        due: the first step that needs it.
        is_asked: True once a request for it has begun; from then on its bytes count.
        data: the bytes, once they are here.
        users: leases that keep it.
        waiting: those of them that wait for its bytes.
    """

    range: ByteRange
    due: int
    is_asked: bool = False
    data: bytearray | None = None
    users: int = 0
    waiting: list[Lease] = field(default_factory=list[Lease])

    @property
    def size(self) -> int:
        return self.range.end - self.range.begin


@dataclass(eq=False, slots=True)
class _Request:
    """Neighbouring ranges of one file that are fetched together."""

    held: list[_Held]


class FetchPool(Closing):
    """A pool of byte ranges of far files, and the threads that fetch them.

    Requests begin in the order of the steps that need them. A request begins when there is room for
    its bytes: ranges that no task uses any more are dropped first, then those that only later
    steps need. So `held_bytes` exceeds the budget only by a range that is larger than all of it.

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
        self._held: dict[_Key, _Held] = {}
        self._begins: dict[tuple[FarFiles, str], list[int]] = defaultdict(list)
        self._spare: OrderedDict[_Key, _Held] = OrderedDict()
        self._planned_bytes = 0
        # Heaps of (step, number of the entry, request): those that tasks await come first.
        self._awaited: _Queue = []
        self._planned: _Queue = []
        # Heaps of ranges that are here and not used yet, by -step and by step. Entries of ranges
        # that are used or gone stay until they come up.
        self._farthest: list[tuple[int, int, _Held]] = []
        self._soonest: list[tuple[int, int, _Held]] = []
        self._pushed = 0
        self._under_way = 0
        self._complete = 0
        self._waiting = _Stopwatch()
        self._closed = False

    @property
    def has_room(self) -> bool:
        """Return True while so little is planned that `fetch_ahead` is worth its search."""
        return self._planned_bytes < _REFILL * self.budget_bytes

    @property
    def waited_s(self) -> float:
        """Return the seconds during which some task waited for bytes."""
        with self._lock:
            return self._waiting.total_s()

    def map(self, function: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Call a function on the threads that fetch, and return its results in order."""
        return self._threads.map(function, items)

    def fetch_ahead(self, ranges: Iterable[ByteRange], due: int) -> None:
        """Fetch ranges that are needed from step `due` on."""
        with self._lock:
            if not self._closed:
                self._plan(ranges, due, self._planned)
                self._begin_requests()

    def pass_steps(self, step: int) -> None:
        """Let go of what only steps before `step` needed: they found their frames elsewhere."""
        with self._lock:
            while self._soonest and self._soonest[0][0] < step:
                due, _, held = heapq.heappop(self._soonest)
                if held.due == due:
                    self._set_aside(held)

    def forget_plan(self) -> None:
        """Let go of all that is planned, because other steps come next."""
        with self._lock:
            self._soonest.clear()
            self._farthest.clear()
            for key, held in list(self._held.items()):
                if held.users or key in self._spare:
                    continue
                if held.data is not None:
                    self._set_aside(held)
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
            self._plan(lease.ranges, due, self._awaited)
            for each in lease.ranges:
                held = self._covering(each.files, each.name, each.begin, each.end)
                assert held is not None, "it was planned above"
                lease.held.append(held)
                held.users += 1
                if held.data is None:
                    held.waiting.append(lease)
                    lease.missing += 1
                    if not held.is_asked and held.users == 1:
                        # Planned so far: it moves forward.
                        self._push(_Request([held]), due, self._awaited)
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
                self._set_aside(held)
            lease.held = []
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

    def _plan(self, ranges: Iterable[ByteRange], due: int, queue: _Queue) -> None:
        """Queue requests for the ranges that are neither here nor planned."""
        new: list[_Held] = []
        for each in ranges:
            held = self._covering(each.files, each.name, each.begin, each.end)
            if held is None:
                key = _key(each)
                held = self._held[key] = _Held(each, due)
                insort(self._begins[key[:2]], each.begin)
                self._planned_bytes += held.size
                new.append(held)
            elif self._spare.pop(_key(held.range), None) is not None:
                held.due = due
                self._planned_bytes += held.size
                self._offer(held)
        # Of a small pool a request takes a part, so that several are under way.
        for request in _joined(new, min(_REQUEST_BYTES, self.budget_bytes // 8)):
            self._push(request, due, queue)

    def _covering(self, files: FarFiles, name: str, begin: int, end: int) -> _Held | None:
        """Return a range with bytes [begin, end) that is here, under way or planned."""
        begins = self._begins.get((files, name), ())
        place = bisect_right(begins, begin)
        # An image may lie in the range of its page, behind ranges of other images.
        for first in reversed(begins[max(place - _OVERLAPS, 0) : place]):
            held = self._held[files, name, first]
            if end <= held.range.end:
                return held
        return None

    def _push(self, request: _Request, due: int, queue: _Queue) -> None:
        self._pushed += 1
        heapq.heappush(queue, (due, self._pushed, request))

    def _begin_requests(self) -> None:
        """Begin requests in the order of their steps, as far as there is room."""
        while self._under_way < self._requests:
            queue = self._awaited or self._planned
            if not queue:
                return
            due, _, request = queue[0]
            # A range may have come meanwhile by another request.
            request.held = [held for held in request.held if self._is_absent(held)]
            size = sum(held.size for held in request.held)
            if size and not self._make_room(size, due, is_awaited=queue is self._awaited):
                return
            heapq.heappop(queue)
            if size:
                for held in request.held:
                    held.is_asked = True
                self.held_bytes += size
                self._under_way += 1
                self._threads.submit(self._run, request, due)

    def _is_absent(self, held: _Held) -> bool:
        return not held.is_asked and self._held.get(_key(held.range)) is held

    def _make_room(self, size: int, due: int, *, is_awaited: bool) -> bool:
        """Drop what is spare, then what only steps after `due` need; return False if in vain."""
        # With nothing under way and no task at work, a task would wait for ever.
        is_stuck = is_awaited and not self._under_way and not self._complete
        while self.held_bytes + size > self.budget_bytes:
            if self._spare:
                self._drop(self._spare.popitem(last=False)[1])
                continue
            later = self._latest(_NEVER_USED if is_stuck else due)
            if later is None:
                return is_stuck
            self._planned_bytes -= later.size
            self._drop(later)
        return True

    def _latest(self, due: int) -> _Held | None:
        """Return the range that is here and needed last, if that is after step `due`."""
        while self._farthest and -self._farthest[0][0] > due:
            entry = heapq.heappop(self._farthest)
            held = entry[2]
            if self._is_current(entry) and not held.users and _key(held.range) not in self._spare:
                return held
        return None

    def _offer(self, held: _Held) -> None:
        """Let a range that no task uses yet be dropped for one that is needed sooner."""
        self._pushed += 1
        heapq.heappush(self._farthest, (-held.due, self._pushed, held))
        heapq.heappush(self._soonest, (held.due, self._pushed, held))
        if len(self._farthest) > _SPARE_ENTRIES + 2 * len(self._held):
            # Entries of past steps never come to the top.
            self._farthest = [entry for entry in self._farthest if self._is_current(entry)]
            heapq.heapify(self._farthest)

    def _is_current(self, entry: tuple[int, int, _Held]) -> bool:
        later, _, held = entry
        return self._held.get(_key(held.range)) is held and held.due == -later

    def _set_aside(self, held: _Held) -> None:
        """Count a range as spare if it is here and no task uses it."""
        key = _key(held.range)
        is_here = held.data is not None and self._held.get(key) is held
        if is_here and not held.users and key not in self._spare:
            self._spare[key] = held
            self._planned_bytes -= held.size

    def _drop(self, held: _Held) -> None:
        """Forget a range that was asked for, with its bytes."""
        self._remove(held)
        self.held_bytes -= held.size
        # Entries of the heaps may keep the object for long, but not its bytes.
        held.data = None

    def _remove(self, held: _Held) -> None:
        key = _key(held.range)
        del self._held[key]
        begins = self._begins[key[:2]]
        del begins[bisect_left(begins, held.range.begin)]

    # --- requests, on the threads of the pool -----------------------------------------------------

    def _run(self, request: _Request, due: int) -> None:
        error: BaseException | None = None
        try:
            _fetch(request)
        except BaseException as found:  # noqa: BLE001 - the batches that wait raise it
            error = found
        with self._lock:
            self._under_way -= 1
            ended = self._landed(request, error, due)
            self._begin_requests()
        for then in ended:
            then(error)

    def _landed(self, request: _Request, error: BaseException | None, due: int) -> list[Then]:
        """Count a request that has ended; return what its leases want to be called."""
        if error is not None and len(request.held) > 1 and not self._closed:
            # One of the ranges may be at fault: each is asked for by itself.
            for held in request.held:
                held.is_asked = False
                held.data = None
                self.held_bytes -= held.size
                self._push(_Request([held]), due, self._awaited if held.users else self._planned)
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
                self._offer(held)
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


class _Stopwatch:
    """The seconds during which at least one thing was under way."""

    def __init__(self) -> None:
        self._count = 0
        self._since_s = 0.0
        self._total_s = 0.0

    def start(self) -> None:
        if not self._count:
            self._since_s = time.perf_counter()
        self._count += 1

    def stop(self) -> None:
        self._count -= 1
        if not self._count:
            self._total_s += time.perf_counter() - self._since_s

    def total_s(self) -> float:
        return self._total_s + (time.perf_counter() - self._since_s if self._count else 0.0)


def _key(wanted: ByteRange) -> _Key:
    return wanted.files, wanted.name, wanted.begin


def _joined(new: list[_Held], most_bytes: int) -> list[_Request]:
    """Return requests for ranges, neighbours of one file together up to `most_bytes`."""
    requests: list[_Request] = []
    for held in sorted(new, key=_place):
        last = requests[-1].held if requests else []
        is_short = bool(last) and held.range.end - last[0].range.begin <= most_bytes
        if is_short and _are_near(last[-1].range, held.range):
            last.append(held)
        else:
            requests.append(_Request([held]))
    return requests


def _place(held: _Held) -> tuple[int, str, int]:
    return id(held.range.files), held.range.name, held.range.begin


def _are_near(one: ByteRange, after: ByteRange) -> bool:
    """Return True if few bytes of one file lie between two ranges."""
    is_one_file = (one.files, one.name) == (after.files, after.name)
    return is_one_file and 0 <= after.begin - one.end <= _GAP_BYTES


def _fetch(request: _Request) -> None:
    """Fetch the ranges of a request with one read, and drop the bytes between them."""
    first = request.held[0].range
    end = first.begin
    # Kept ranges have no gaps, so that there the bytes in between are wanted.
    is_kept = first.files.kept is not None
    pieces: list[memoryview] = []
    parts: list[bytearray] = []
    for held in request.held:
        if held.range.begin > end:
            gap = held.range.begin - end
            pieces.append(memoryview(bytearray(gap)) if is_kept else _DROPPED[:gap])
        parts.append(bytearray(held.size))
        pieces.append(memoryview(parts[-1]))
        end = held.range.end
    first.files.fetch(first.name, first.begin, pieces, first.stamp)
    for held, data in zip(request.held, parts, strict=True):
        held.data = data
