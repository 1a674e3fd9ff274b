"""Memory: how much is free, and arrays whose memory is reused."""

from __future__ import annotations

import math
import os
import weakref
from collections import defaultdict, deque
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import DTypeLike, NDArray

Allocate: TypeAlias = Callable[[int], NDArray[np.uint8]]
"""allocate(size) returns fresh, uninitialised memory (size,), aligned to 64 bytes. It is freed with
the array.
"""

Empty: TypeAlias = Callable[[tuple[int, ...], DTypeLike], NDArray[Any]]
"""empty(shape, dtype) returns an uninitialised array, as np.empty does."""

_WORTH_KEEPING = 1 << 16
"""Bytes from which ordinary memory is reused: smaller blocks come quickly from the allocator."""

_SPARE = 8
"""Arrays kept for reuse. All batches that are read ahead, trained on and copied may be released
before the next one is allocated. More than this many means that a caller kept some once.
"""

_LINE = 64
"""Bytes of a cache line."""

_SLAB_BYTES = 16 * 1024**2
"""Bytes of the allocations that slots are cut from. numpy asks for 2 MB pages from 4 MB on."""


def free_memory() -> int:
    """Return the bytes of memory that are available, within the limit of the container.

    Where the system does not report that (macOS), this is half of the physical memory.
    """
    meminfo = Path("/proc/meminfo")
    if not meminfo.is_file():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and used.is_file() and (most := limit.read_text().strip()).isdigit():
        free = min(free, int(most) - int(used.read_text()))
    return max(free, 0)


def aligned(size: int) -> NDArray[np.uint8]:
    """Return fresh memory (size,) that begins at a multiple of 64 bytes.

    A copy between two places of different alignment takes up to twice as long. Mapped files and
    large arrays of other libraries are aligned so; numpy's own begin 16 bytes later.
    """
    memory = np.empty(size + _LINE, np.uint8)
    return memory[-memory.ctypes.data % _LINE :][:size]


class Recycled:
    """A source of arrays, mostly of one size, that reuses the memory of arrays that are gone.

    Fresh memory costs as much as writing to it twice: the system clears every page when it is first
    touched.

    Args:
        allocate: returns fresh memory.
    """

    def __init__(self, allocate: Allocate = aligned) -> None:
        self._allocate = allocate
        self._spare = (0, deque[NDArray[np.uint8]](maxlen=_SPARE))

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike = np.uint8) -> NDArray[Any]:
        """Return an uninitialised array.

        Its memory is reused once the array and all views of it are gone.
        """
        asked = math.prod(shape) * np.dtype(dtype).itemsize
        if asked < _WORTH_KEEPING and self._allocate is aligned:
            return np.empty(shape, dtype)
        size, spare = self._spare
        if size != asked:
            self._spare = size, spare = asked, deque(maxlen=_SPARE)
        try:
            memory = spare.pop()
        except IndexError:
            memory = self._allocate(size)
        # A new base array: numpy lets views of views hold the base alone, so this one lives exactly
        # as long as any view of it, and its finalizer returns the memory.
        array = np.frombuffer(memory.data, np.uint8)
        weakref.finalize(array, spare.append, memory).atexit = False
        return array.view(dtype).reshape(shape)


class Slabs:
    """Slots of memory that are lent and returned, cut from large allocations.

    The system can back large allocations with 2 MB pages; copies from there take a third less time.
    Memory of one slot size serves another size only after all slots of an allocation are back.
    """

    def __init__(self) -> None:
        self.allocated_bytes = 0
        self._free: dict[int, list[NDArray[np.uint8]]] = defaultdict(list)
        self._slabs: list[list[NDArray[np.uint8]]] = []

    def take(self, size: int, budget_bytes: int) -> NDArray[np.uint8] | None:
        """Return an uninitialised slot (size,), or None if `allocated_bytes` would exceed the
        budget.
        """
        free = self._free[size]
        if not free:
            self._grow(size, budget_bytes)
        return free.pop() if free else None

    def give(self, piece: NDArray[np.uint8]) -> None:
        """Take a slot back."""
        self._free[piece.nbytes].append(piece)

    def _grow(self, size: int, budget_bytes: int) -> None:
        if self.allocated_bytes + size > budget_bytes:
            self.trim()
        # As many slots as a slab has room for, or as the budget still allows.
        count = min(max(_SLAB_BYTES // size, 1), (budget_bytes - self.allocated_bytes) // size)
        if count < 1:
            return
        self.allocated_bytes += count * size
        self._slabs.append(list(aligned(count * size).reshape(count, size)))
        self._free[size] += self._slabs[-1][::-1]

    def trim(self) -> None:
        """Free every allocation of which no slot is in use."""
        free: set[int] = set()
        for pieces in self._free.values():
            free.update(map(id, pieces))
        kept: list[list[NDArray[np.uint8]]] = []
        gone: set[int] = set()
        # A slab can be freed only as a whole: its slots are views of one array.
        for slab in self._slabs:
            if free.issuperset(map(id, slab)):
                gone.update(map(id, slab))
                self.allocated_bytes -= sum(piece.nbytes for piece in slab)
            else:
                kept.append(slab)
        self._slabs = kept
        for pieces in self._free.values():
            pieces[:] = [piece for piece in pieces if id(piece) not in gone]
