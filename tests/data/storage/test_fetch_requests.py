"""Ranges that come along with others: only where they share a request, and within their share."""

from __future__ import annotations

import time
from pathlib import Path

from kata.data.storage.far_files import ByteRange, FarFiles
from kata.data.storage.fetch_pool import FetchPool
from kata.data.storage.fetch_requests import beside
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


def test_what_lies_beside_is_what_touches(tmp_path: Path) -> None:
    with FetchPool(10**6) as pool:
        _, files = far_file(tmp_path, pool)
        wanted = [one(files, begin) for begin in (4000, 9000)]
        others = [(one(files, begin), begin // 1000) for begin in (1000, 2000, 3000, 4000, 6000)]
        others += [(one(files, begin), begin // 1000) for begin in (10_000, 11_000, 13_000)]
        assert [due for _, due in beside(wanted, others)] == [1, 2, 3, 10, 11]
        assert beside([], others) == []
        assert beside(wanted, []) == []
        assert pool.absent(wanted) == wanted
        pool.fetch_ahead(wanted[:1], range(1, 2))
        assert pool.absent(wanted) == wanted[1:]
