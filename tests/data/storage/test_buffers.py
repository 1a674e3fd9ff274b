"""Batches lie in memory from an allocator given from outside, which serves again and again."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from kata.data import Batches, Order, Reader, anchor_rows, open_dataset
from kata.data.dataset.mixture import Mixture, MixtureEntry
from kata.data.frames.frame_cache import CacheOptions, FrameCache
from kata.data.sampling.mixture_order import MixtureOrder
from kata.data.storage.buffers import aligned
from kata.spec import Batch
from tests.data.dataset_maker import CAMERA, HEIGHT, WIDTH, make

WINDOWS = {CAMERA: (-1, 0), "action": (0, 1, 2)}


class Allocator:
    """Gives memory as numpy's own does, and knows it."""

    def __init__(self) -> None:
        self.given: list[NDArray[np.uint8]] = []

    def __call__(self, size: int) -> NDArray[np.uint8]:
        self.given.append(aligned(size))
        return self.given[-1]

    def has(self, array: NDArray) -> bool:
        """Whether an array lies in this memory as a whole, from a line of the cache on."""
        begin = array.ctypes.data
        return begin % 64 == 0 and any(
            one.ctypes.data <= begin and begin + array.nbytes <= one.ctypes.data + one.nbytes
            for one in self.given
        )


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Mixture:
    """Videos, images under the same name, and a dataset of which the camera is black."""
    home = tmp_path_factory.mktemp("mix")
    kinds = {"video": "video", "image": "image", "blind": ""}
    sets = {
        name: make(home / name, lengths=(21, 8), camera=camera, per_file=1)
        for name, camera in kinds.items()
    }
    return Mixture(
        tuple(
            MixtureEntry(name, open_dataset(f"x/{name}", root=root), 1, fill=True)
            for name, root in sets.items()
        )
    )


def batches_of(mixture: Mixture, reader: Reader, number: int | None) -> Batches:
    """Of one dataset of the mixture, or of all."""
    if number is None:
        rows = anchor_rows(mixture)
        return Batches(
            reader, rows, MixtureOrder.full(mixture.sizes(rows), mixture.shares(rows), 3), 7
        )
    rows = anchor_rows(mixture.parts[number].dataset)
    return Batches(reader, rows, Order(len(rows), 3), 7)


def reader_of(mixture: Mixture, number: int | None) -> Reader:
    return Reader(mixture if number is None else mixture.datasets[number], WINDOWS)


def same(one: Batch, other: Batch) -> None:
    assert one.keys() == other.keys()
    for key, values in one.items():
        np.testing.assert_array_equal(values, other[key], err_msg=key)


@pytest.mark.parametrize("number", [0, 1, None])
def test_frames_and_vectors_lie_in_memory_that_is_allocated_a_few_times(
    mixture: Mixture, number: int | None
) -> None:
    allocator = Allocator()
    with (
        reader_of(mixture, number) as plain,
        reader_of(mixture, number) as reader,
        batches_of(mixture, plain, number) as wanted,
        batches_of(mixture, reader, number) as found,
    ):
        reader.allocate_with(allocator)
        for step in range(60):
            batch = found.at(step)
            for key in (*WINDOWS, "observation.state"):
                assert allocator.has(batch[key]), key
            if step % 10 == 0:
                same(batch, wanted.at(step))
        alive = found.ahead + 1 + 2  # one with the caller, one that takes its place
    sizes = [one.nbytes for one in allocator.given]
    assert 0 < sizes.count(7 * 2 * HEIGHT * WIDTH * 3) <= alive


def test_frames_of_a_mixture_are_those_of_each_dataset_at_its_samples_places(
    mixture: Mixture,
) -> None:
    rows = np.random.default_rng(0).permutation(mixture.num_frames)[:40]
    number = mixture.part_of(rows)
    with Reader(mixture, WINDOWS) as reader:
        reader.read(rows)  # what is black lies in memory that had frames
        found = reader.read(rows[::-1])[CAMERA][::-1]
    for i in (0, 1):
        with Reader(mixture.parts[i].dataset, WINDOWS) as alone:
            own = rows[number == i] - mixture.first_rows[i]
            np.testing.assert_array_equal(found[number == i], alone.read(own)[CAMERA])
    assert not found[number == 2].any()
    assert set(number.tolist()) == {0, 1, 2}


@pytest.mark.parametrize("held", [0, 10])
def test_a_mixture_takes_frames_from_caches_straight_to_their_places(
    mixture: Mixture, tmp_path: Path, held: int
) -> None:
    """All of a dataset's frames are there, or only those of its first rows."""
    frame = HEIGHT * WIDTH * 3
    options = CacheOptions("disk", tmp_path, num_bytes=(held or 29) * frame)
    with FrameCache(mixture.parts[0].dataset, (CAMERA,), options, name="video/") as cache:
        rows = anchor_rows(mixture)[::-2]
        with (
            Reader(mixture, WINDOWS) as plain,
            Reader(mixture, WINDOWS, caches={"video": cache}) as reader,
        ):
            for asked in (rows, rows[::-1], rows):  # other frames lay at each place before
                same(reader.read(asked), plain.read(asked))
            assert reader.work().frames_decoded < plain.work().frames_decoded


def test_what_a_caller_holds_is_not_written_again(mixture: Mixture) -> None:
    with reader_of(mixture, None) as reader, batches_of(mixture, reader, None) as batches:
        views = [(batches.at(step)[CAMERA][3:, -1], step) for step in range(12)]
        with reader_of(mixture, None) as plain, batches_of(mixture, plain, None) as wanted:
            for view, step in views:
                np.testing.assert_array_equal(view, wanted.at(step)[CAMERA][3:, -1])
