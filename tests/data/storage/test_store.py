"""Files by name: the same bytes from a disk and from afar, and one message where they changed."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from kata.data import Reader, open_dataset
from kata.data.storage import store as store_module
from kata.data.storage.file_stamp import Stamp
from kata.data.storage.store import LocalStore, StoredFile, local_file
from kata.data.video.packet_index import build_index, open_index
from kata.errors import DataError
from tests.data.dataset_maker import CAMERA, make, picture, write_video
from tests.data.far_store import FarStore, far


def test_a_read_fills_the_buffers_one_after_the_other(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(range(100)))
    for store in (LocalStore(tmp_path), FarStore(tmp_path)):
        file = StoredFile(store, "a")
        out = bytearray(10)
        pieces = [memoryview(out)[:3], memoryview(out)[3:]]
        file.read_into(50, pieces, file.stamp())
        assert out == bytes(range(50, 60))
        assert file.read(90, 10, file.stamp()) == bytes(range(90, 100))
        assert list(store.stamps(["a", "b", "a/b"])) == ["a"]
        with pytest.raises(FileNotFoundError, match="b does not exist"):
            StoredFile(store, "b").stamp()


def test_a_file_that_changed_is_named(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(100))
    file = local_file(tmp_path / "a")
    stamp = file.stamp()
    file.read(0, 1, stamp)
    with pytest.raises(DataError, match="a has changed since the run began: it is shorter"):
        file.read(99, 2, stamp)
    os.utime(tmp_path / "a", ns=(1, 1))
    with pytest.raises(DataError, match="is another file, or has other content") as error:
        file.read(0, 1, stamp)
    assert "rule:" in str(error.value)
    assert "remedy:" in str(error.value)
    (tmp_path / "a").unlink()
    with pytest.raises(DataError, match="cannot be opened"):
        file.read(0, 1, stamp)


def test_few_files_stay_open_however_many_threads_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_module, "_OPEN_FILES", 4)
    for number in range(20):
        (tmp_path / str(number)).write_bytes(bytes([number]) * 1000)
    store = LocalStore(tmp_path)
    stamps = store.stamps(map(str, range(20)))

    def read(place: int) -> bool:
        name = str(place % 20)
        return StoredFile(store, name).read(place, 5, stamps[name]) == bytes([place % 20]) * 5

    before = len(os.listdir("/proc/self/fd"))
    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(read, range(400)))
    assert len(os.listdir("/proc/self/fd")) <= before + 4


def test_a_far_file_reads_as_a_near_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_module, "_BLOCK_BYTES", 10_000)
    data = np.random.default_rng(0).bytes(105_000)
    (tmp_path / "a").write_bytes(data)
    store = FarStore(tmp_path)
    with StoredFile(store, "a").open() as file:
        assert file.read() == data
        for begin, size in ((0, 10), (104_000, 2000), (9995, 10), (30_000, 50_000), (200_000, 1)):
            file.seek(begin)
            assert file.read(size) == data[begin : begin + size]
        assert file.seek(-5, os.SEEK_END) == 104_995
    store.read.clear()
    with StoredFile(store, "a").open() as file:
        for begin in (0, 100_000, 16, 100_016):
            file.seek(begin)
            file.read(8)
    assert store.read == [("a", 0, 10_000), ("a", 100_000, 105_000)]


def test_a_far_video_has_the_index_of_a_near_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KATA_CACHE", str(tmp_path / "cache"))
    write_video(tmp_path / "a.mp4", [picture(0, k) for k in range(40)], b_frames=2)
    near, store = build_index(local_file(tmp_path / "a.mp4")), FarStore(tmp_path)
    found = open_index(StoredFile(store, "a.mp4"))
    assert isinstance(found.identity[1], str)
    assert (found.setup, found.tick_s) == (near.setup, near.tick_s)
    for name in ("pts", "offset", "size", "packet", "start"):
        np.testing.assert_array_equal(vars(found)[name], vars(near)[name])
    store.read.clear()
    open_index(StoredFile(store, "a.mp4"))
    assert not store.read


@pytest.mark.parametrize("camera", ["video", "image"])
@pytest.mark.parametrize("version", ["v3.0", "v2.1"])
def test_batches_of_a_far_dataset_equal_those_of_a_near_one(
    tmp_path: Path, camera: str, version: str
) -> None:
    root = make(tmp_path / "d", camera=camera, version=version)
    near = open_dataset("t/d", root=root)
    there, store = far(near)
    rows = np.arange(near.num_frames)
    with Reader(near, {CAMERA: (-1, 0)}) as one, Reader(there, {CAMERA: (-1, 0)}) as other:
        want, found = one.read(rows), other.read(rows)
    assert want.keys() == found.keys()
    np.testing.assert_array_equal(want[CAMERA], found[CAMERA])
    assert store.read
    assert near.fingerprint == there.fingerprint


def test_a_changed_object_is_named_by_its_location(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(bytes(100))
    file = StoredFile(FarStore(tmp_path), "a")
    with pytest.raises(DataError, match="has changed"):
        file.read(0, 10, Stamp(100, '"other"'))
