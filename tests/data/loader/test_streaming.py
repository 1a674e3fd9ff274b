"""Streamed batches are those of a disk, position by position, and few bytes are fetched twice."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kata.data import Batches, Dataset, Order, Reader, anchor_rows, open_dataset
from kata.data.arrays import Int64
from kata.data.dataset.mixture import Mixture, MixtureEntry
from kata.data.loader.batches import WHOLE, RankSlice
from kata.data.loader.shuffle import Shuffle, make_order
from kata.data.sampling.permutation import SampleOrder
from kata.data.storage.store import StoredFile
from kata.data.video.packet_index import open_index
from kata.errors import DataError
from tests.data.dataset_maker import CAMERA, HEIGHT, WIDTH, make
from tests.data.far_store import streamed

FRAME = HEIGHT * WIDTH * 3
LENGTHS = (21, 8, 30, 13)


@pytest.fixture(scope="module", params=["v3.0 video", "v2.1 video", "v3.0 image"])
def data(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Dataset:
    version, camera = request.param.split()
    root = tmp_path_factory.mktemp("data")
    return open_dataset(
        "x/y", root=make(root, version=version, lengths=LENGTHS, camera=camera, b_frames=2)
    )


def gop_bytes(data: Dataset) -> int:
    """The bytes of the GOPs that the episodes show."""
    total = 0
    span = data.layout.videos[CAMERA]
    for name in span.used():
        first, begin, end = open_index(StoredFile(data.store, name)).gops
        mine = span.file == span.files.index(name)
        for at, length in zip(span.first[mine], data.layout.length[mine], strict=True):
            shown = (first < at + length) & (np.append(first[1:], 10**9) > at)
            total += int((end - begin)[shown].sum())
    return total


def batches(
    data: Dataset | Mixture,
    window: tuple[int, ...],
    steps: range,
    *,
    order: SampleOrder | None = None,
    rows: Int64 | None = None,
    rank: RankSlice = WHOLE,
    memory: int = 60 * FRAME,
) -> Iterator[dict]:
    rows = np.arange(data.num_frames) if rows is None else rows
    with (
        Reader(data, {CAMERA: window}, threads=2, frame_memory=memory) as reader,
        Batches(reader, rows, order or Order(len(rows), 3), 4, rank_slice=rank) as found,
    ):
        for step in steps:
            yield found.at(step)


def same(one: Iterator[dict], other: Iterator[dict]) -> None:
    for near, there in zip(one, other, strict=True):
        assert near.keys() == there.keys()
        for key, values in near.items():
            np.testing.assert_array_equal(values, there[key], err_msg=key)


@pytest.mark.parametrize("window", [(0,), (-9, -6, -3, 0)])
@pytest.mark.parametrize("budget", [10**9, 2000])
def test_every_batch_is_that_of_the_disk(
    data: Dataset, window: tuple[int, ...], budget: int
) -> None:
    with streamed(data, delay_s=0.001, budget=budget) as (there, store, pool):
        same(batches(data, window, range(24)), batches(there, window, range(24)))
        assert store.read
        largest = max(end - begin for _, begin, end in store.read)
        assert pool.held_bytes <= max(budget, largest)


def test_some_episodes_and_a_resumed_rank(data: Dataset) -> None:
    part = data.subset([0, 2])
    with streamed(part, delay_s=0.001) as (there, _, _):
        for rank in (RankSlice(0, 2), RankSlice(1, 2)):
            same(
                batches(part, (-1, 0), range(7, 20), rank=rank),
                batches(there, (-1, 0), range(7, 20), rank=rank),
            )
        # One rank instead of two, from the middle on.
        same(batches(part, (-1, 0), range(9, 12)), batches(there, (-1, 0), range(9, 12)))


def test_clips_with_windows_over_their_borders(tmp_path: Path) -> None:
    data = open_dataset("x/y", root=make(tmp_path, lengths=(40, 33), b_frames=1))
    rows, windows = anchor_rows(data), {CAMERA: (-3, 0)}
    order = make_order([Shuffle("clips", 4, 8, 4)], Mixture.of(data), windows, (CAMERA,), rows, 5)
    with streamed(data, delay_s=0.001) as (there, store, _):
        same(
            batches(data, (-3, 0), range(18), order=order, rows=rows),
            batches(there, (-3, 0), range(18), order=order, rows=rows),
        )
        videos = sum((data.root / name).stat().st_size for name in data.layout.videos[CAMERA].files)
        assert store.bytes_read < 3 * videos  # each index is a read of the whole small file


def test_a_mixture_of_a_near_and_a_far_part(tmp_path: Path) -> None:
    one = open_dataset("x/one", root=make(tmp_path / "one", lengths=(9, 14)))
    two = open_dataset("x/two", root=make(tmp_path / "two", lengths=(20,)))

    def mixture(second: Dataset) -> Mixture:
        return Mixture((MixtureEntry("one", one), MixtureEntry("two", second)))

    with streamed(two, delay_s=0.001) as (there, store, _):
        same(batches(mixture(two), (-1, 0), range(16)), batches(mixture(there), (-1, 0), range(16)))
        assert store.read


def test_many_requests_are_under_way_and_their_bytes_are_counted(tmp_path: Path) -> None:
    data = open_dataset("x/y", root=make(tmp_path, lengths=(200, 200)))
    videos = sum((data.root / name).stat().st_size for name in data.layout.videos[CAMERA].files)
    with streamed(data, delay_s=0.02, budget=videos // 2) as (there, store, pool):
        reader = Reader(there, {}, threads=2, frame_memory=10**6)
        rows = anchor_rows(there)
        with reader, Batches(reader, rows, Order(len(rows), 3), 4) as found:
            for step in range(20):
                found.at(step)
    work = reader.work()  # counted once no request is under way
    assert store.most > 4
    assert work.requests == len(store.read)
    assert work.bytes_fetched == store.bytes_read
    assert work.request_s > 0.01 * work.requests
    assert pool.waited_s > 0


@pytest.mark.parametrize("episodes", [None, [1]])
def test_what_fits_is_fetched_once_in_any_order(tmp_path: Path, episodes: list[int] | None) -> None:
    data = open_dataset("x/y", root=make(tmp_path, lengths=(200, 200)))
    data = data if episodes is None else data.subset(episodes)
    wanted = gop_bytes(data)
    with streamed(data, budget=2 * wanted) as (there, store, pool):
        with Reader(there, {}, threads=2) as reader:
            store.read.clear()
            rows = anchor_rows(there)
            with Batches(reader, rows, Order(len(rows), 3), 4) as found:
                for step in range(2 * len(rows) // 4):
                    found.at(step)
        assert store.bytes_read == wanted
        assert len(store.read) == 1
        assert pool.held_bytes == wanted


def test_in_a_full_order_the_bytes_that_are_needed_soonest_stay(tmp_path: Path) -> None:
    data = open_dataset("x/y", root=make(tmp_path, lengths=(300, 300), b_frames=1))
    wanted = gop_bytes(data)
    with (
        streamed(data, budget=wanted // 2) as (there, store, _),
        Reader(there, {}, threads=2, frame_memory=5 * FRAME) as reader,
    ):
        store.read.clear()
        rows = anchor_rows(there)
        with Batches(reader, rows, Order(len(rows), 3), 4, ahead=0) as found:
            for step in range(len(rows) // 4):
                found.at(step)
        # Of the four moments at which a GOP is needed, its bytes are here at more than two. With
        # the bytes used last instead, and more fetched ahead, 3.3 times the bytes came.
        assert store.bytes_read < 2.2 * wanted


def test_images_are_fetched_with_their_row_group_then_one_by_one(tmp_path: Path) -> None:
    root = make(tmp_path, lengths=(30,), camera="image")
    (table,) = (root / "data").rglob("*.parquet")
    pq.write_table(pq.read_table(table), table, compression="NONE")
    data = open_dataset("x/y", root=root)
    with streamed(data) as (there, store, pool), Reader(there, {}, threads=2) as reader:
        first = reader.read(np.arange(30))[CAMERA]
        assert len(store.read) == 2, "the footer, and all images"
        # As if other data had taken their room: positions stay known.
        with pool._lock:
            for held in list(pool._held.values()):
                pool._drop(held)
        again = reader.read(np.array([3, 20]))[CAMERA]
        np.testing.assert_array_equal(again, first[[3, 20]])
        sizes = [end - begin for _, begin, end in store.read[2:]]
        assert len(sizes) == 2
        assert max(sizes) < 1000


def test_large_images_are_found_without_the_rest_of_their_row_group(tmp_path: Path) -> None:
    root = make(tmp_path, lengths=(60,), camera="image")
    (place,) = (root / "data").rglob("*.parquet")
    table, rng = pq.read_table(place), np.random.default_rng(0)
    # Behind a PNG's end may stand anything.
    larger = [
        {**cell, "bytes": cell["bytes"] + rng.bytes(80_000)} for cell in table[CAMERA].to_pylist()
    ]
    number = table.schema.get_field_index(CAMERA)
    kind = table.schema.field(CAMERA)
    pq.write_table(table.set_column(number, kind, pa.array(larger, kind.type)), place)
    data = open_dataset("x/y", root=root)
    rows, order = anchor_rows(data), Order(60, 0)
    with (
        streamed(data, budget=500_000) as (there, store, pool),
        Reader(there, {}, threads=2, frame_memory=10**6) as reader,
        Batches(reader, rows, order, 2) as found,
        Reader(data, {}, threads=2) as near,
        Batches(near, rows, order, 2) as expected,
    ):
        for step in range(30):
            np.testing.assert_array_equal(found.at(step)[CAMERA], expected.at(step)[CAMERA])
            if not step:
                assert store.bytes_read < 0.5 * place.stat().st_size
            assert pool.held_bytes <= 500_000
        # What is fetched again are tags between images, and what found them.
        assert store.bytes_read < 2.2 * place.stat().st_size


def test_a_file_that_changes_is_named_and_the_next_batch_is_read(tmp_path: Path) -> None:
    root = make(tmp_path / "d", lengths=(30, 30), per_file=1)
    data = open_dataset("x/y", root=root)
    bad, good = (root / name for name in data.layout.videos[CAMERA].files)
    with streamed(data) as (there, _, _), Reader(there, {}, frame_memory=10**6) as reader:
        bad.write_bytes(bad.read_bytes()[:-200])
        with pytest.raises(DataError, match="has changed since the run began") as error:
            reader.read(np.arange(4))
        assert "rule:" in str(error.value)
        found = reader.read(np.arange(30, 34))
    with Reader(data.subset([1]), {}) as near:
        np.testing.assert_array_equal(found[CAMERA], near.read(np.arange(4))[CAMERA])
    assert good.is_file()
