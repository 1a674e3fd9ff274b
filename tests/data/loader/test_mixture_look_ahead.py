"""Looking ahead over a mixture changes what is decoded, never what is read; one budget serves
all datasets.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from kata.data import Batches, open_dataset
from kata.data.dataset.mixture import Mixture, MixtureEntry
from kata.data.dataset.windows import anchor_rows
from kata.data.frames.frame_cache import CacheOptions, FrameCache
from kata.data.loader.reader import Reader
from kata.data.loader.shuffle import Shuffle, ShuffleChoice, make_order
from kata.data.sampling.clip_order import ClipOrder
from kata.data.sampling.mixture_order import MixtureOrder, part_seed
from kata.data.sampling.permutation import PermutationOrder
from kata.errors import ConfigError
from tests.data.dataset_maker import CAMERA, HEIGHT, WIDTH, make, picture, write_video

FRAME = HEIGHT * WIDTH * 3
SIZE = 6
STEPS = (0, 1, 2, 3, 4, 5, 20, 21, 22, 3, 4, 60)
FRONT = "observation.images.front"


@pytest.fixture(scope="module")
def mixture(tmp_path_factory: pytest.TempPathFactory) -> Mixture:
    """Long groups under another name, images, and a dataset of which the camera is black."""
    home = tmp_path_factory.mktemp("mix")
    video = open_dataset(
        "x/video", root=make(home / "video", lengths=(21, 8, 30), b_frames=2, per_file=1)
    )
    images = open_dataset("x/images", root=make(home / "images", lengths=(9, 12), camera="image"))
    blind = open_dataset("x/blind", root=make(home / "blind", lengths=(7, 8), camera=""))
    rename = {CAMERA: FRONT}
    return Mixture(
        (
            MixtureEntry("video", video, 3, rename),
            MixtureEntry("images", images, 2, rename),
            MixtureEntry("blind", blind, 1, fill=True),
        )
    )


def order_of(mixture: Mixture) -> MixtureOrder:
    rows = anchor_rows(mixture)
    return MixtureOrder.full(mixture.sizes(rows), mixture.shares(rows), 3)


def read(
    mixture: Mixture, window: tuple[int, ...], memory: int, *, threads: int = 2
) -> Iterator[dict]:
    windows = {FRONT: window} if window else {}
    with (
        Reader(mixture, windows, threads=threads, frame_memory=memory) as reader,
        Batches(reader, anchor_rows(mixture), order_of(mixture), SIZE) as batches,
    ):
        for step in STEPS:
            yield batches.at(step)
            assert reader.buffer.held_bytes <= reader.buffer.budget_bytes
            assert reader.buffer.allocated_bytes <= reader.buffer.budget_bytes


@pytest.mark.parametrize(
    ("window", "frames", "threads"), [((), 8, 1), ((-1, 0), 40, 3), ((-9, -6, 0), 10_000, 2)]
)
def test_batches_are_the_same_with_any_budget(
    mixture: Mixture, window: tuple[int, ...], frames: int, threads: int
) -> None:
    plain = list(read(mixture, window, 0))
    for one, other in zip(
        plain, read(mixture, window, frames * FRAME, threads=threads), strict=True
    ):
        assert one.keys() == other.keys()
        for key, values in one.items():
            np.testing.assert_array_equal(values, other[key], err_msg=key)


def test_each_frame_of_each_dataset_is_decoded_once_when_all_fit(mixture: Mixture) -> None:
    cameras = mixture.parts[:2]
    with (
        Reader(mixture, {FRONT: (-5, 0)}, frame_memory=10_000 * FRAME) as reader,
        Batches(reader, anchor_rows(mixture), order_of(mixture), SIZE) as batches,
    ):
        for step in range(3 * mixture.num_frames // SIZE):
            batches.at(step)
        work = reader.work()
    assert work.frames_decoded == sum(part.dataset.num_frames for part in cameras)


def test_a_small_dataset_with_a_large_share_takes_more_of_the_budget(tmp_path: Path) -> None:
    """One budget: the next uses of both datasets compete, so that the one that comes back sooner
    is held.
    """
    small = open_dataset("x/s", root=make(tmp_path / "small", lengths=(12,), per_file=1))
    large = open_dataset("x/l", root=make(tmp_path / "large", lengths=(60, 60), per_file=1))
    mixture = Mixture((MixtureEntry("small", small, 1), MixtureEntry("large", large, 1)))
    with (
        Reader(mixture, {}, frame_memory=(3 * SIZE + 20) * FRAME) as reader,
        Batches(reader, anchor_rows(mixture), order_of(mixture), SIZE) as batches,
    ):
        for step in range(40):
            batches.at(step)
        frames = reader.buffer.keys()
        held = [key for key, _ in frames]
        assert held.count("small/" + CAMERA) >= 10
        assert reader.work().frames_decoded < 40 * SIZE * 4


def test_a_budget_below_one_batch_is_refused(mixture: Mixture) -> None:
    with (
        Reader(mixture, {FRONT: (-1, 0)}, frame_memory=(2 * SIZE - 1) * FRAME) as reader,
        pytest.raises(
            ConfigError, match=r"dataset\.frame_memory=49\.5 KiB[^$]*6 samples take 54\.0 KiB"
        ),
    ):
        Batches(reader, anchor_rows(mixture), order_of(mixture), SIZE)


def test_each_dataset_has_a_cache_of_its_own(mixture: Mixture, tmp_path: Path) -> None:
    rows = anchor_rows(mixture)
    plain = list(read(mixture, (), 0))[:3]
    options = CacheOptions("disk", tmp_path)
    caches = {
        p.name: FrameCache(p.dataset, (CAMERA,), options, name=mixture.key_prefix(p))
        for p in mixture.parts[:2]
    }
    try:
        with Reader(mixture, {}, caches=caches) as reader:
            reader.read(rows)
        with (
            Reader(mixture, {}, caches=caches, frame_memory=10_000 * FRAME) as reader,
            Batches(reader, rows, order_of(mixture), SIZE) as batches,
        ):
            for step, one in enumerate(plain):
                np.testing.assert_array_equal(batches.at(step)[FRONT], one[FRONT])
            assert reader.work().frames_decoded == 0
            assert not reader.buffer.keys()
    finally:
        for cache in caches.values():
            cache.close()


def test_each_dataset_is_read_in_clips_of_its_own_from_its_share_of_the_memory(
    tmp_path: Path,
) -> None:
    """The order of each is the one that it has alone; frames are decoded about once, where a
    full order cannot.
    """
    parts = []
    for name, episodes, weight in (("large", 20, 3), ("small", 8, 1)):
        root = make(tmp_path / name, lengths=(24,) * episodes, per_file=episodes)
        pictures = [picture(episode, frame) for episode in range(episodes) for frame in range(24)]
        write_video(root / f"videos/{CAMERA}/chunk-000/file-000.mp4", pictures, gop=12)
        parts.append(MixtureEntry(name, open_dataset(f"x/{name}", root=root), weight))
    mixture = Mixture(
        (
            *parts,
            MixtureEntry(
                "blind", open_dataset("x/b", root=make(tmp_path / "b", camera="")), 1, fill=True
            ),
        )
    )
    rows, memory = anchor_rows(mixture), 150 * FRAME
    choice = ShuffleChoice(Shuffle("clips"), memory, SIZE, 3)
    shuffles, notes = choice.choose(mixture, {}, [CAMERA], rows)
    assert [note.split(",")[0] for note in notes] == [
        "large: order: clips",
        "small: order: clips",
        "blind: order: full",
    ]
    assert shuffles[0].clip_pool > 2 * shuffles[1].clip_pool
    order = make_order(shuffles, mixture, {}, [CAMERA], rows, 3)
    positions = np.arange(500)
    for number, part in enumerate(parts):
        alone = make_order(
            [shuffles[number]],
            Mixture.of(part.dataset),
            {},
            [CAMERA],
            anchor_rows(part.dataset),
            part_seed(3, number),
        )
        assert isinstance(alone.orders[0], ClipOrder)
        np.testing.assert_array_equal(order.orders[number].at(positions), alone.at(positions))
    assert isinstance(order.orders[2], PermutationOrder)
    full = MixtureOrder.full(mixture.sizes(rows), mixture.shares(rows), 3)

    def decoded(one: MixtureOrder) -> float:
        with (
            Reader(mixture, {}, threads=1, frame_memory=memory) as reader,
            Batches(reader, rows, one, SIZE, ahead=2) as batches,
        ):
            for step in range(mixture.num_frames // SIZE):
                batches.at(step)
        return reader.work().frames_decoded / reader.work().frames_asked

    found = decoded(order), decoded(full)
    assert found[0] < 1.4 < 1.8 < found[1], found
