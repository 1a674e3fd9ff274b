"""A dataset in a store is the dataset on the disk: same positions, numbers and pixels."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.streaming.servers.proxy import Faults
from kata.data import Batches, Dataset, Order, Reader, anchor_rows, open_dataset
from tests.data.dataset_maker import CAMERA, make

KINDS = ("web", "hub", "bucket", "s3", "gs")
FAULTY = Faults(share=0.15, seed=2)


def everything(data: Dataset) -> dict[str, np.ndarray]:
    with Reader(data, {}) as reader:
        return reader.read(np.arange(data.num_frames))


def assert_same(found: dict, wanted: dict) -> None:
    assert found.keys() == wanted.keys()
    for key, values in wanted.items():
        assert np.array_equal(found[key], values), key


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("version", "camera"), [("v3.0", "video"), ("v2.1", "video")])
def test_a_faulty_store_gives_what_the_disk_gives(tmp_path, place, kind, version, camera):
    folder = make(tmp_path / "set", version=version, camera=camera)
    near = open_dataset("x/y", root=folder)
    with place(kind, folder, FAULTY) as there:
        far = open_dataset("x/y", root=there.root)
        assert far.fingerprint == near.fingerprint
        assert far.columns == near.columns
        assert far.tasks == near.tasks
        assert_same(everything(far), everything(near))
        assert there.proxy.failed


@pytest.mark.parametrize("kind", ["web", "hub", "s3"])
def test_images_in_tables_stay_in_the_store(tmp_path, place, kind):
    folder = make(tmp_path / "set", camera="image", lengths=(30, 30))
    near = open_dataset("x/y", root=folder)
    with place(kind, folder, Faults(share=0.05, seed=1)) as there:
        far = open_dataset("x/y", root=there.root)
        for key in near.columns.keys() - {CAMERA}:
            assert np.array_equal(far.column(key), near.column(key)), key
        rows = np.array([0, 59, 31])
        with Reader(far, {}) as reader, Reader(near, {}) as wanted:
            assert_same(reader.read(rows), wanted.read(rows))


def test_the_stream_is_that_of_the_disk_position_by_position(tmp_path, place):
    folder = make(tmp_path / "set", lengths=(9, 12, 7, 11), per_file=2, b_frames=2)
    near = open_dataset("x/y", root=folder, episodes=[0, 1, 3])
    windows = {CAMERA: (-2, 0), "action": (0, 1, 2)}
    with place("web", folder, FAULTY) as there:
        far = open_dataset("x/y", root=there.root, episodes=[0, 1, 3])
        order = Order(len(anchor_rows(near)), seed=5)
        with Reader(near, windows) as wanted, Reader(far, windows) as found:
            expected = Batches(wanted, anchor_rows(near), order, 6)
            streamed = Batches(found, anchor_rows(far), order, 6)
            for step in range(8):
                assert_same(streamed.at(step), expected.at(step))


def test_a_dataset_of_the_hub_is_streamed_by_its_name(tmp_path, place):
    folder = make(tmp_path / "set")
    with place("hub", folder) as there:
        there.server.tags = ("v3.0", "main")
        data = open_dataset("x/y", streaming=True)
        assert data.store.location("") == "hf://datasets/x/y@v3.0"
        assert len(everything(data)["task"]) == 16


def test_an_address_that_has_expired_is_asked_for_again(tmp_path, place):
    folder = make(tmp_path / "set")
    with place("hub", folder) as there:
        data = open_dataset("x/y", root=there.root)
        first = everything(data)
        there.server.signature = "SIGNATURE1"
        assert_same(everything(data), first)


def test_large_files_cost_the_hub_one_request_each(tmp_path, place):
    folder = make(tmp_path / "set", lengths=(40, 40), per_file=1)
    with place("hub", folder) as there:
        data = open_dataset("x/y", root=there.root)
        everything(data)
        everything(data)
        asked = [path for method, path, _ in there.server.asked if method == "HEAD"]
        videos = [path for path in asked if path.endswith(".mp4")]
        # Two threads may ask for the same file at once, before either has the answer.
        assert len(set(videos)) == 2
        assert len(videos) <= 4


def test_a_folder_by_its_address_is_that_folder(tmp_path):
    folder = make(tmp_path / "a set")
    found = open_dataset("x/y", root=f"file://{tmp_path}/a%20set")
    assert found.root == Path(folder)
    assert_same(everything(found), everything(open_dataset("x/y", root=folder)))


def test_any_file_system_of_fsspec_serves(tmp_path):
    import fsspec

    folder = make(tmp_path / "set")
    memory = fsspec.filesystem("memory")
    for file in folder.rglob("*"):
        if file.is_file():
            memory.pipe_file(f"/sets/one/{file.relative_to(folder)}", file.read_bytes())
    found = open_dataset("x/y", root="memory://sets/one")
    assert_same(everything(found), everything(open_dataset("x/y", root=folder)))
