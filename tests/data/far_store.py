"""A store whose bytes are far away: the files of a disk, behind delays and out of order."""

from __future__ import annotations

import random
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import Lock

from kata.data.dataset.dataset import Dataset
from kata.data.storage.far_files import FarFiles
from kata.data.storage.fetch_pool import FetchPool
from kata.data.storage.file_stamp import Stamp
from kata.data.storage.store import LocalStore


class FarStore:
    """The files of a folder without a path on this machine.

    Args:
        root: the folder.
        delay_s: latency of each read; it varies by half, so that answers come out of order.
    """

    def __init__(self, root: Path, delay_s: float = 0.0) -> None:
        self._near = LocalStore(root)
        self._delay_s = delay_s
        self._lock, self._random = Lock(), random.Random(0)
        self.read: list[tuple[str, int, int]] = []
        """Name, begin and end of every range that was read, in the order of arrival."""
        self.now, self.most = 0, 0
        """Reads under way, and the most that ever were."""

    def path(self, name: str) -> None:
        return None

    def location(self, name: str) -> str:
        return f"far://bucket/{name}"

    def stamps(self, names: Iterable[str]) -> dict[str, Stamp]:
        found = self._near.stamps(names)
        return {name: Stamp(stamp.size, f'"{stamp.version}"') for name, stamp in found.items()}

    def packed_index(self, name: str, stamp: Stamp) -> None:
        return None

    def read_into(self, name: str, begin: int, pieces: Sequence[memoryview], stamp: Stamp) -> None:
        with self._lock:
            self.read.append((name, begin, begin + sum(map(len, pieces))))
            wait_s = self._delay_s * self._random.uniform(0.5, 1.5)
            self.now += 1
            self.most = max(self.most, self.now)
        if wait_s:
            time.sleep(wait_s)
        near = self._near.stamps([name])[name]
        try:
            self._near.read_into(name, begin, pieces, near if self._same(near, stamp) else stamp)
        finally:
            with self._lock:
                self.now -= 1

    def _same(self, near: Stamp, stamp: Stamp) -> bool:
        return stamp.identity == (near.size, f'"{near.version}"')

    @property
    def bytes_read(self) -> int:
        return sum(end - begin for _, begin, end in self.read)


def far(dataset: Dataset, delay_s: float = 0.0) -> tuple[Dataset, FarStore]:
    """The same dataset with its cameras' files far away, and the store that has them."""
    store = FarStore(dataset.root, delay_s)
    return replace(dataset, store=store), store


@contextmanager
def streamed(
    dataset: Dataset, *, delay_s: float = 0.0, budget: int = 10**9, requests: int = 16
) -> Iterator[tuple[Dataset, FarStore, FetchPool]]:
    """The same dataset from afar, fetched ahead; the store; and the pool of its bytes."""
    there, store = far(dataset, delay_s)
    with FetchPool(budget, requests) as pool:
        yield replace(there, store=FarFiles(store, pool)), store, pool
