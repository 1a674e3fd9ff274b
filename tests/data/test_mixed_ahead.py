"""Looking ahead over a mixture changes what is decoded, never what is read; one budget serves all datasets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kata.data import Batches, open_dataset
from kata.data.framecache import CacheOptions, FrameCache
from kata.data.mixed import MixedReader, kept_under
from kata.data.mixture import Mixture, Part
from kata.data.shares import MixedOrder
from kata.data.window import anchor_rows
from kata.errors import ConfigError
from tests.data.dataset_maker import CAMERA, HEIGHT, WIDTH, make

FRAME = HEIGHT * WIDTH * 3
SIZE = 6
STEPS = (0, 1, 2, 3, 4, 5, 20, 21, 22, 3, 4, 60)
FRONT = "observation.images.front"


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Mixture:
    """Long groups under another name, images, and a dataset of which the camera is black."""
    home = tmp_path_factory.mktemp("mix")
    video = open_dataset("x/video", root=make(home / "video", lengths=(21, 8, 30), b_frames=2, per_file=1))
    images = open_dataset("x/images", root=make(home / "images", lengths=(9, 12), camera="image"))
    blind = open_dataset("x/blind", root=make(home / "blind", lengths=(7, 8), camera=""))
    rename = {CAMERA: FRONT}
    return Mixture(
        (Part("video", video, 3, rename), Part("images", images, 2, rename), Part("blind", blind, 1, fill=True))
    )


def order_of(mixture: Mixture) -> MixedOrder:
    rows = anchor_rows(mixture)
    return MixedOrder(mixture.sizes(rows), mixture.shares(rows), 3)


def read(mixture: Mixture, window: tuple[int, ...], memory: int, *, threads: int = 2) -> Iterator[dict]:
    windows = {FRONT: window} if window else {}
    with (
        MixedReader(mixture, windows, threads=threads, frame_memory=memory) as reader,
        Batches(reader, anchor_rows(mixture), order_of(mixture), SIZE) as batches,
    ):
        for step in STEPS:
            yield batches.at(step)
            assert reader.store.held_bytes <= reader.store.budget_bytes
            assert reader.store.allocated_bytes <= reader.store.budget_bytes


@pytest.mark.parametrize(("window", "frames", "threads"), [((), 8, 1), ((-1, 0), 40, 3), ((-9, -6, 0), 10_000, 2)])
def test_batches_are_the_same_with_any_budget(
    mixture: Mixture, window: tuple[int, ...], frames: int, threads: int
) -> None:
    plain = list(read(mixture, window, 0))
    for one, other in zip(plain, read(mixture, window, frames * FRAME, threads=threads), strict=True):
        assert one.keys() == other.keys()
        for key, values in one.items():
            np.testing.assert_array_equal(values, other[key], err_msg=key)


def test_each_frame_of_each_dataset_is_decoded_once_when_all_fit(mixture: Mixture) -> None:
    cameras = mixture.parts[:2]
    with (
        MixedReader(mixture, {FRONT: (-5, 0)}, frame_memory=10_000 * FRAME) as reader,
        Batches(reader, anchor_rows(mixture), order_of(mixture), SIZE) as batches,
    ):
        for step in range(3 * mixture.num_frames // SIZE):
            batches.at(step)
        work = reader.work()
    assert work.frames_decoded == sum(part.dataset.num_frames for part in cameras)


def test_a_small_dataset_with_a_large_share_takes_more_of_the_budget(tmp_path: Path) -> None:
    """One budget: the next uses of both datasets compete, so that the one that comes back sooner is held."""
    small = open_dataset("x/s", root=make(tmp_path / "small", lengths=(12,), per_file=1))
    large = open_dataset("x/l", root=make(tmp_path / "large", lengths=(60, 60), per_file=1))
    mixture = Mixture((Part("small", small, 1), Part("large", large, 1)))
    with (
        MixedReader(mixture, {}, frame_memory=(3 * SIZE + 20) * FRAME) as reader,
        Batches(reader, anchor_rows(mixture), order_of(mixture), SIZE) as batches,
    ):
        for step in range(40):
            batches.at(step)
        frames = reader.store.keys()
        held = [key for key, _ in frames]
        assert held.count(kept_under("small") + CAMERA) >= 10
        assert reader.work().frames_decoded < 40 * SIZE * 4


def test_a_budget_below_one_batch_is_refused(mixture: Mixture) -> None:
    with (
        MixedReader(mixture, {FRONT: (-1, 0)}, frame_memory=(2 * SIZE - 1) * FRAME) as reader,
        pytest.raises(ConfigError, match=r"dataset\.frame_memory=49\.5 KiB[^$]*6 samples take 54\.0 KiB"),
    ):
        Batches(reader, anchor_rows(mixture), order_of(mixture), SIZE)


def test_each_dataset_has_a_cache_of_its_own(mixture: Mixture, tmp_path: Path) -> None:
    rows = anchor_rows(mixture)
    plain = list(read(mixture, (), 0))[:3]
    options = CacheOptions("disk", tmp_path)
    caches = {p.name: FrameCache(p.dataset, (CAMERA,), options, name=kept_under(p.name)) for p in mixture.parts[:2]}
    try:
        with MixedReader(mixture, {}, caches=caches) as reader:
            reader.read(rows)
        with (
            MixedReader(mixture, {}, caches=caches, frame_memory=10_000 * FRAME) as reader,
            Batches(reader, rows, order_of(mixture), SIZE) as batches,
        ):
            for step, one in enumerate(plain):
                np.testing.assert_array_equal(batches.at(step)[FRONT], one[FRONT])
            assert reader.work().frames_decoded == 0
            assert not reader.store.keys()
    finally:
        for cache in caches.values():
            cache.close()
