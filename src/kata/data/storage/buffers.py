"""Memory: how much programs may still take, and arrays whose memory serves again."""

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
"""Bytes -> fresh memory (bytes,) of any content from a multiple of 64 bytes on; it lasts as long
as the array.
"""

Empty: TypeAlias = Callable[[tuple[int, ...], DTypeLike], NDArray[Any]]
"""Shape and dtype -> an array of any content, as np.empty."""

_WORTH_KEEPING = 1 << 16
"""Bytes from which ordinary memory is used again: below that the allocator has some at hand."""

_SPARE = 8
"""Arrays kept for reuse. Those read ahead, trained on and copied may all go before the next is
begun; what is beyond these was kept by a caller for once.
"""

_LINE = 64
"""Bytes of a line of the processors' caches."""

_SLAB_BYTES = 16 * 1024**2
"""Pieces of memory are cut from so much. numpy asks for pages of 2 MB from 4 MB on."""


def free_memory() -> int:
    """Bytes that are available, within the limit of a container; half of all where the system
    does not say.
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
    """Fresh memory (size,) from a multiple of 64 bytes on.

    Copies between places that differ in that take up to twice as long: frames of files and large
    arrays of other programs begin so, those of numpy 16 bytes later.
    """
    memory = np.empty(size + _LINE, np.uint8)
    return memory[-memory.ctypes.data % _LINE :][:size]


class Recycled:
    """One array after another, of one size most of the time: memory that nobody uses any more is
    given out again.

    Fresh memory costs as much as writing to it twice: the system clears every page when it is first
    touched.

    Args:
        allocate: where fresh memory comes from.
    """

    def __init__(self, allocate: Allocate = aligned) -> None:
        self._allocate = allocate
        self._spare = (0, deque[NDArray[np.uint8]](maxlen=_SPARE))

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike = np.uint8) -> NDArray[Any]:
        """An array of any content.

        Its memory is free again when it and all arrays taken from it are gone.
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
        # Views keep alive the array that they were taken from only if that is not itself a view of
        # an array.
        array = np.frombuffer(memory.data, np.uint8)
        weakref.finalize(array, spare.append, memory).atexit = False
        return array.view(dtype).reshape(shape)


class Slabs:
    """Pieces of memory, given out and taken back again, cut from large allocations.

    In large ones the system can use pages of 2 MB, and copies from there take two thirds of the
    time. Memory of one size serves another only once all pieces of an allocation are back.
    """

    def __init__(self) -> None:
        self.allocated_bytes = 0
        self._free: dict[int, list[NDArray[np.uint8]]] = defaultdict(list)
        self._slabs: list[list[NDArray[np.uint8]]] = []

    def take(self, size: int, budget_bytes: int) -> NDArray[np.uint8] | None:
        """A piece (size,) of any content; None where `allocated_bytes` would exceed the budget."""
        free = self._free[size]
        if not free:
            self._grow(size, budget_bytes)
        return free.pop() if free else None

    def give(self, piece: NDArray[np.uint8]) -> None:
        """Take a piece back."""
        self._free[piece.nbytes].append(piece)

    def _grow(self, size: int, budget_bytes: int) -> None:
        if self.allocated_bytes + size > budget_bytes:
            self.trim()
        count = min(max(_SLAB_BYTES // size, 1), (budget_bytes - self.allocated_bytes) // size)
        if count < 1:
            return
        self.allocated_bytes += count * size
        self._slabs.append(list(aligned(count * size).reshape(count, size)))
        self._free[size] += self._slabs[-1][::-1]

    def trim(self) -> None:
        """Give memory back to the system, as far as nobody uses it."""
        free = {id(piece) for pieces in self._free.values() for piece in pieces}
        slabs, self._slabs, gone = self._slabs, [], set[int]()
        for slab in slabs:
            if free.issuperset(map(id, slab)):
                gone.update(map(id, slab))
                self.allocated_bytes -= sum(piece.nbytes for piece in slab)
            else:
                self._slabs.append(slab)
        for pieces in self._free.values():
            pieces[:] = [piece for piece in pieces if id(piece) not in gone]
