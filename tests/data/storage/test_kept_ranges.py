"""Kept ranges: read again, by others too, never wrong, and a full disk ends the keeping alone."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from kata.data import Reader, open_dataset
from kata.data.storage import kept_ranges
from kata.data.storage.far_files import FarFiles
from kata.data.storage.fetch_pool import FetchPool
from kata.data.storage.file_stamp import Stamp
from kata.data.storage.kept_ranges import KeptRanges
from kata.data.storage.store import StoredFile
from tests.data.dataset_maker import CAMERA, make
from tests.data.far_store import FarStore, far

STAMP = Stamp(10**6, "v1")
DATA = np.random.default_rng(0).bytes(10**6)


def kept(folder: Path) -> KeptRanges:
    """As another process has it."""
    return KeptRanges(folder, "far://bucket")


def put(ranges: KeptRanges, begin: int, end: int, stamp: Stamp = STAMP) -> None:
    middle = (begin + end) // 2
    pieces = [memoryview(bytearray(DATA[begin:middle])), memoryview(bytearray(DATA[middle:end]))]
    ranges.write("a", begin, pieces, stamp)


def got(ranges: KeptRanges, begin: int, end: int, stamp: Stamp = STAMP) -> bool:
    out = bytearray(end - begin)
    if not ranges.read("a", begin, [memoryview(out)], stamp):
        return False
    assert out == DATA[begin:end]
    return True


def test_ranges_are_read_again_in_parts_and_over_their_borders(tmp_path: Path) -> None:
    one = kept(tmp_path)
    assert not got(one, 0, 10)
    for begin, end in ((1000, 2000), (5000, 6000), (2000, 3000), (2500, 5100)):
        put(one, begin, end)
    for ranges in (one, kept(tmp_path)):
        assert got(ranges, 1200, 1300)
        assert got(ranges, 1000, 6000)
        assert not got(ranges, 999, 1001)
        assert not got(ranges, 5999, 6001)
        assert not got(ranges, 1200, 1300, Stamp(10**6, "v2"))
        assert not got(KeptRanges(tmp_path, "far://other"), 1200, 1300)


def test_random_ranges_are_there_when_their_bytes_are(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    there = np.zeros(2000, bool)
    one = kept(tmp_path)
    for _ in range(60):
        begin, end = sorted(rng.choice(2001, 2, replace=False).tolist())
        if end - begin > 100:
            assert got(one, begin, end) == there[begin:end].all()
            continue
        put(one, begin, end)
        there[begin:end] = True


def test_bytes_that_did_not_reach_the_disk_are_absent(tmp_path: Path) -> None:
    put(kept(tmp_path), 0, 5000)
    put(kept(tmp_path), 5000, 9000)
    (held,) = tmp_path.glob("bytes/*/*.bytes")
    with held.open("r+b") as file:
        file.seek(4000)
        file.write(bytes(100))
    assert not got(kept(tmp_path), 0, 100)
    assert got(kept(tmp_path), 5000, 9000)
    (listed,) = tmp_path.glob("bytes/*/*.ranges")
    os.truncate(listed, listed.stat().st_size - 10)
    assert not got(kept(tmp_path), 5000, 9000)
    put(kept(tmp_path), 100_000, 110_000)
    assert got(kept(tmp_path), 100_000, 110_000)


def test_a_full_disk_ends_the_keeping_with_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    one = kept(tmp_path)
    put(one, 0, 1000)
    monkeypatch.setattr(kept_ranges, "_RESERVE", 2.0)
    monkeypatch.setattr(kept_ranges, "_RESERVE_BYTES", 10**18)
    for begin in (2000, 4000):
        put(one, begin, begin + 1000)
        assert not got(one, begin, begin + 1000)
    assert got(one, 0, 1000)
    (message,) = [record.getMessage() for record in caplog.records]
    assert "--dataset.cache_dir" in message
    assert "nearly full" in message


def test_two_readers_of_a_machine_fetch_each_range_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA)
    store = FarStore(tmp_path, delay_s=0.01)
    stamp = store.stamps(["a"])["a"]
    with FetchPool(10**6) as one, FetchPool(10**6) as other, ThreadPoolExecutor(8) as threads:
        files = [
            StoredFile(FarFiles(store, pool, KeptRanges(tmp_path / "kept", "far://")), "a")
            for pool in (one, other)
        ]

        def read(number: int) -> bytes:
            return bytes(files[number % 2].read(number // 2 * 1000, 1000, stamp))

        found = list(threads.map(read, range(40)))
    assert found == [DATA[n // 2 * 1000 : n // 2 * 1000 + 1000] for n in range(40)]
    assert len(store.read) == 1, "all are in the first block"


def test_blocks_are_fetched_whole_and_each_byte_once(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(DATA)
    store = FarStore(tmp_path)
    stamp = store.stamps(["a"])["a"]
    rng = np.random.default_rng(3)
    with FetchPool(10**6) as pool:
        file = StoredFile(FarFiles(store, pool, KeptRanges(tmp_path / "kept", "far://")), "a")
        for begin in rng.integers(0, 10**6 - 100_000, 60).tolist():
            size = int(rng.integers(1, 100_000))
            assert file.read(begin, size, stamp) == DATA[begin : begin + size]
        assert store.bytes_read <= 10**6
        assert file.read(0, 10**6, stamp) == DATA
    ends = sorted((begin, end) for _, begin, end in store.read)
    assert len(ends) < 40
    assert sum(end - begin for begin, end in ends) < 1.3 * 10**6


def test_a_second_run_fetches_nothing(tmp_path: Path) -> None:
    near = open_dataset("x/y", root=make(tmp_path / "d", lengths=(30, 20)))
    there, store = far(near)
    rows = np.arange(50)
    with Reader(near, {}) as reader:
        want = reader.read(rows)[CAMERA]
    for again in (False, True):
        store.read.clear()
        with FetchPool(10**6) as pool:
            files = FarFiles(store, pool, KeptRanges(tmp_path / "kept", "far://"))
            with Reader(replace(there, store=files), {}) as reader:
                np.testing.assert_array_equal(reader.read(rows)[CAMERA], want)
                assert (reader.work().requests == 0) is again
        assert (not store.read) is again
