"""The files of a far store as cameras read them: from fetched bytes, a disk, or with a request."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from kata.data.counters import CounterCollector
from kata.data.storage.file_stamp import Stamp
from kata.data.storage.kept_ranges import KeptRanges
from kata.data.storage.store import Store

if TYPE_CHECKING:
    from kata.data.storage.fetch_pool import FetchPool


_BLOCK_BYTES = 64 * 1024
"""Multiples of this are fetched where they are kept: a request costs about as much as this."""


class FarFiles:
    """A store whose reads are served from a pool where the pool has the bytes.

    Args:
        store: the far store.
        pool: of fetched bytes, which several stores may share.
        kept: ranges on a disk of this machine, read instead of the store's; None keeps none.

    Attributes:
        counters: of requests and their bytes.
    """

    def __init__(self, store: Store, pool: FetchPool, kept: KeptRanges | None = None) -> None:
        self.store, self.pool = store, pool
        self.kept = kept
        self.counters = CounterCollector()

    def path(self, name: str) -> Path | None:
        """Return the path of a file on this machine, or None."""
        return self.store.path(name)

    def location(self, name: str) -> str:
        """Return what messages call a file."""
        return self.store.location(name)

    def stamps(self, names: Iterable[str]) -> dict[str, Stamp]:
        """Return the stamps of the files that exist."""
        return self.store.stamps(names)

    def packed_index(self, name: str, stamp: Stamp) -> bytes | None:
        """Return the packet index of a video that is stored beside the dataset, or None."""
        return self.store.packed_index(name, stamp)

    def read_into(self, name: str, begin: int, pieces: Sequence[memoryview], stamp: Stamp) -> None:
        """Fill buffers from the pool, else with a request; see `Store.read_into`."""
        found = self.pool.find(self, name, begin, begin + sum(map(len, pieces)))
        if found is None:
            self.fetch(name, begin, pieces, stamp)
            return
        at = 0
        for piece in pieces:
            piece[:] = found[at : at + len(piece)]
            at += len(piece)

    def fetch(self, name: str, begin: int, pieces: Sequence[memoryview], stamp: Stamp) -> None:
        """Fill buffers from the kept ranges, else with a request."""
        is_here = self.kept is not None and self._fetch_kept(self.kept, name, begin, pieces, stamp)
        if not is_here:
            self._request(name, begin, pieces, stamp)

    def _fetch_kept(
        self,
        kept: KeptRanges,
        name: str,
        begin: int,
        pieces: Sequence[memoryview],
        stamp: Stamp,
    ) -> bool:
        """Fill buffers from the kept ranges; fetch and keep what is absent there.

        Returns:
            False if the disk takes nothing.
        """
        if kept.read(name, begin, pieces, stamp):
            return True
        if kept.is_stopped:
            return False
        # All bytes of a disk's blocks are fetched with the first: they stay, for later GOPs.
        first = begin // _BLOCK_BYTES * _BLOCK_BYTES
        last = -(-(begin + sum(map(len, pieces))) // _BLOCK_BYTES) * _BLOCK_BYTES
        with kept.claim(name, first, min(last, stamp.size), stamp):
            # Another rank of this machine may have fetched the bytes meanwhile.
            first, last = kept.absent(name, first, min(last, stamp.size), stamp)
            if first < last:
                block = memoryview(bytearray(last - first))
                self._request(name, first, [block], stamp)
                kept.write(name, first, [block], stamp)
        return kept.read(name, begin, pieces, stamp)

    def _request(self, name: str, begin: int, pieces: Sequence[memoryview], stamp: Stamp) -> None:
        began_s = time.perf_counter()
        self.store.read_into(name, begin, pieces, stamp)
        request_s = time.perf_counter() - began_s
        size = sum(map(len, pieces))
        self.counters.add(requests=1, request_s=request_s, bytes_fetched=size)


class ByteRange(NamedTuple):
    """Bytes [begin, end) of a file; `stamp` is the file's when it was indexed."""

    files: FarFiles
    name: str
    stamp: Stamp
    begin: int
    end: int
