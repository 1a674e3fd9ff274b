"""Ranges that come along with others: only where they share a request, and within their share."""

from __future__ import annotations

import time
from pathlib import Path

from kata.data.storage.far_files import ByteRange, FarFiles
from kata.data.storage.fetch_pool import FetchPool
from tests.data.far_store import FarStore


def far_file(folder: Path, pool: FetchPool) -> tuple[FarStore, FarFiles]:
    (folder / "a").write_bytes(bytes(1_000_000))
    store = FarStore(folder)
    return store, FarFiles(store, pool)


def one(files: FarFiles, begin: int) -> ByteRange:
    return ByteRange(files, "a", files.stamps(["a"])["a"], begin, begin + 1000)


def wait_for(store: FarStore, requests: int) -> None:
    end_s = time.monotonic() + 20
    while len(store.read) < requests:
        assert time.monotonic() < end_s
        time.sleep(0.002)


def test_what_a_later_step_needs_comes_along_if_it_shares_a_request(tmp_path: Path) -> None:
    with FetchPool(10**7) as pool:
        store, files = far_file(tmp_path, pool)
        near, far = one(files, 2000), one(files, 900_000)
        planned = pool.fetch_ahead([one(files, 1000)], range(1, 2), [(near, 30), (far, 31)])
        wait_for(store, 1)
        assert store.read == [("a", 1000, 3000)]
        assert planned == 2000
        # Its step has come: it is here, and another range is not asked for alone.
        assert pool.fetch_ahead([near], range(30, 31), [(far, 31)]) == 0
        assert pool.fetch_ahead([far], range(31, 32)) == 1000


def test_what_comes_along_leaves_room_for_what_is_needed_next(tmp_path: Path) -> None:
    with FetchPool(40_000) as pool:
        _, files = far_file(tmp_path, pool)
        along = [(one(files, begin), 99) for begin in range(1000, 40_000, 1000)]
        assert pool.fetch_ahead([one(files, 0)], range(1, 2), along) <= 16_000
        assert pool.has_room
