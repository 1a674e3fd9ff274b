"""Memory: how much programs may still take, and arrays whose memory serves again."""

from __future__ import annotations

import math
import os
import weakref
from collections import deque
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

_SPARE = 2
"""Arrays kept for reuse: batches go one by one, but two may go before the next is begun."""


def free_memory() -> int:
    """Bytes that are available, within the limit of a container; half of all where the system does not say."""
    meminfo = Path("/proc/meminfo")
    if not meminfo.is_file():
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
    fields = dict(line.split(":", 1) for line in meminfo.read_text().splitlines())
    free = int(fields["MemAvailable"].split()[0]) * 1024
    limit, used = Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory.current")
    if limit.is_file() and used.is_file() and (most := limit.read_text().strip()).isdigit():
        free = min(free, int(most) - int(used.read_text()))
    return max(free, 0)


class Recycled:
    """One array after another, of one size most of the time: memory that nobody uses any more is given out again.

    Fresh memory costs as much as writing to it twice: the system clears every page when it is first touched.
    """

    def __init__(self) -> None:
        self._spare = (0, deque[NDArray[np.uint8]](maxlen=_SPARE))

    def empty(self, shape: tuple[int, ...]) -> NDArray[np.uint8]:
        """An array of any content. Its memory is free again when it and all arrays taken from it are gone."""
        size, spare = self._spare
        if size != math.prod(shape):
            self._spare = size, spare = math.prod(shape), deque(maxlen=_SPARE)
        try:
            memory = spare.pop()
        except IndexError:
            memory = np.empty(size, np.uint8)
        # Views keep alive the array that they were taken from only if that is not itself a view of an array.
        array = np.frombuffer(memory.data, np.uint8)
        weakref.finalize(array, spare.append, memory).atexit = False
        return array.reshape(shape)
