"""The order of clips: exact, a function of the position, and good enough inside a batch."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from kata.data import Batches, Order, Reader, anchor_rows, open_dataset
from kata.data.dataset.mixture import Mixture
from kata.data.loader.shuffle import (
    Shuffle,
    ShuffleChoice,
    clip_stride,
    held_bytes_per_clip,
    make_order,
)
from kata.data.sampling.clip_order import ClipOrder, Clips, order_quality
from tests.data.dataset_maker import CAMERA, HEIGHT, WIDTH, make

FRAME = HEIGHT * WIDTH * 3
CUTS = [  # anchors per episode, frames per clip, gop, stride, pool
    ([5, 7, 4, 0, 9], 2, 1, 0, 3),
    ([300] * 6, 20, 2, 30, 37),
    ([31, 17, 300], 30, 30, 0, 4),
    ([299] * 3, 40, 2, 0, 13),
    ([10], 10, 10, 0, 1),
    ([3], 1, 1, 0, 9),
]


@pytest.fixture(params=CUTS, ids=str)
def order(request: pytest.FixtureRequest) -> ClipOrder:
    counts, frames, gop, stride, pool = request.param
    return ClipOrder(Clips(np.array(counts), frames, gop, stride), pool, 5)


def test_clips_hold_every_anchor_once_and_none_of_two_episodes(order: ClipOrder) -> None:
    clips = order.clips
    anchors, place = clips.anchors(np.arange(len(clips)))
    np.testing.assert_array_equal(np.sort(anchors), np.arange(clips.n))
    np.testing.assert_array_equal(clips.of(anchors), place)
    assert clips.length.max() <= clips.frames
    starts = clips._starts
    episodes = np.searchsorted(starts, anchors, side="right")
    assert all(len(set(episodes[place == clip])) == 1 for clip in range(len(clips)))


def test_every_anchor_comes_exactly_once_per_epoch(order: ClipOrder) -> None:
    found = order.at(np.arange(4 * order.n)).reshape(4, -1)
    np.testing.assert_array_equal(np.sort(found, axis=1), np.tile(np.arange(order.n), (4, 1)))
    if order.n > 9:
        assert len({tuple(epoch) for epoch in found}) == 4


def test_any_position_in_any_batch_size_gives_the_same(order: ClipOrder) -> None:
    whole = order.at(np.arange(3 * order.n))
    for size in (1, 7):
        parts = [
            order.at(np.arange(i, min(i + size, len(whole)))) for i in range(0, len(whole), size)
        ]
        np.testing.assert_array_equal(np.concatenate(parts), whole)
    for position in range(0, len(whole), 1 + len(whole) // 5):
        assert ClipOrder(order.clips, order.pool, 5).at(np.array(position)) == whole[position]


def test_the_stream_never_changes() -> None:
    """These figures are part of the format of a run: a change here breaks every resume."""
    order = ClipOrder(Clips(np.array([5, 7]), 4, 2), 2, 42)
    assert order.at(np.arange(12)).tolist() == STREAM


def test_no_more_clips_are_alive_than_the_pool_holds() -> None:
    order = ClipOrder(Clips(np.full(100, 60), 30), 25, 1)
    clip = order.clips.of(order.at(np.arange(order.n)))
    first = np.array([np.flatnonzero(clip == c)[0] for c in range(len(order.clips))])
    last = np.array([np.flatnonzero(clip == c)[-1] for c in range(len(order.clips))])
    alive = [(np.count_nonzero((first <= p) & (last >= p))) for p in range(0, order.n, 50)]
    assert max(alive) <= 25
    assert np.mean(alive) > 20


def test_batches_are_as_mixed_as_those_of_a_full_shuffle() -> None:
    clips = Clips(np.full(100, 60), 30)
    found = order_quality(ClipOrder(clips, 100, 1), clips, 16, batches=200)
    assert found.uniform_same_clip_pairs == pytest.approx(1 / 200)
    assert found.uniform_distinct_clips == pytest.approx(200 * (1 - (199 / 200) ** 16))
    assert found.same_clip_pairs < 2 / 100
    assert found.distinct_clips > 0.95 * found.uniform_distinct_clips
    full = order_quality(Order(6000, 1), clips, 16, batches=200)
    assert full.same_clip_pairs == pytest.approx(1 / 200, rel=0.3)
    assert full.distinct_clips == pytest.approx(full.uniform_distinct_clips, rel=0.02)


@pytest.mark.parametrize(("frames", "size"), [(8, 8), (16, 8), (32, 8), (16, 64)])
def test_with_four_clips_per_sample_two_of_a_batch_are_seldom_of_one(
    frames: int, size: int
) -> None:
    """B / 3W^2 of the pairs, so that the variance of a mean is at most 2 % above that of
    independent samples.
    """
    clips, pool = Clips(np.full(400, 320), frames, 2), 4 * size + 5
    order = ClipOrder(clips, pool, 0)
    batches = np.arange(order.n // size // 4, order.n // size * 3 // 4)  # while the pool is full
    found = np.sort(clips.of(order.at(batches[:, None] * size + np.arange(size))), axis=1)
    same = sum((found[:, shift:] == found[:, :-shift]).sum() for shift in range(1, size))
    pairs = same / (len(batches) * size * (size - 1) / 2)
    assert pairs == pytest.approx(size / 3 / pool**2, rel=0.2)
    assert (size - 1) * pairs < 0.0225


def test_thirty_million_anchors_cost_seconds_and_megabytes() -> None:
    began = time.process_time()
    order = ClipOrder(Clips(np.full(100_000, 300), 30), 300, 1)
    order.at(np.array([29_000_000]))
    assert time.process_time() - began < 10
    held = sum(
        a.nbytes
        for a in (
            order.clips.first,
            order.clips.length,
            *order._ends.values(),
            *order._blocks.values(),
        )
    )
    assert held < 50e6


# --- the reader and the choice
# ----------------------------------------------------------------------------


@pytest.mark.parametrize("window", [(0,), (-2, 0)])
def test_a_reader_in_clip_order_gives_what_direct_reads_give(
    tmp_path: Path, window: tuple[int, ...]
) -> None:
    data = open_dataset("x/y", root=make(tmp_path, lengths=(21, 8, 30, 13), per_file=1))
    rows = anchor_rows(data)
    shuffle = Shuffle("clips", 3, 4, 4)
    order = make_order([shuffle], Mixture.of(data), {CAMERA: window}, [CAMERA], rows, 0)
    with (
        Reader(data, {CAMERA: window}, frame_memory=60 * FRAME) as reader,
        Reader(data, {CAMERA: window}) as direct,
        Batches(reader, rows, order, 3) as batches,
    ):
        for step in range(24):
            batch = batches.at(step)
            alone = direct.read(rows[order.at(np.arange(3 * step, 3 * step + 3))])
            np.testing.assert_array_equal(batch["index"], alone["index"])
            np.testing.assert_array_equal(batch[CAMERA], alone[CAMERA])
        work = reader.work()
    if window == (0,):
        assert work.frames_decoded == data.num_frames, "a group of pictures was decoded twice"


def test_windows_far_apart_make_clips_of_every_nth_frame() -> None:
    sarm = {"c": tuple(range(-210, 1, 30))}
    assert clip_stride(sarm, ["c"], 2) == 30
    assert clip_stride(sarm, ["c"], 30) == 30
    assert clip_stride(sarm, ["c"], 4) == 4
    assert clip_stride({}, ["c"], 2) == 2
    assert clip_stride({"c": (-1, 0)}, ["c"], 2) == 2


def test_what_a_clip_holds_is_foreseen() -> None:
    """g=2: the second frame of a pair waits half a life on average; g=30: the frames wait about
    half a life each.
    """
    assert held_bytes_per_clip(Shuffle("clips", 1, 2, 2), 2, {}, {"c": 100}, 300) == pytest.approx(
        100 * 2 * 0.25
    )
    thirty = held_bytes_per_clip(Shuffle("clips", 1, 30, 30), 30, {}, {"c": 100}, 300)
    assert thirty == pytest.approx(100 * 31 * (1 / 2 - 1 / 31))


@pytest.mark.parametrize("frames", [80, 120, 160, 200])
def test_clips_of_overlapping_windows_are_as_long_as_the_pool_allows(
    tmp_path: Path, frames: int
) -> None:
    data = open_dataset("x/y", root=make(tmp_path, lengths=(80,) * 8, per_file=1))
    rows = anchor_rows(data)

    def choose(clip_frames: int) -> Shuffle:
        asked = Shuffle("clips", 0, clip_frames, 2)
        return ShuffleChoice(asked, frames * FRAME, 4, 3).choose(
            Mixture.of(data), {CAMERA: (-1, 0)}, [CAMERA], rows
        )[0][0]

    chosen = choose(0)
    assert chosen.clip_pool >= 16 or chosen.clip_frames == 2
    assert chosen.clip_frames == 32 or choose(2 * chosen.clip_frames).clip_pool < 16


def test_the_choice_follows_memory_and_is_said(tmp_path: Path) -> None:
    data = open_dataset("x/y", root=make(tmp_path, lengths=(40,) * 10, per_file=1))
    rows = anchor_rows(data)

    def choose(kind: str, frames: int) -> tuple[Shuffle, str]:
        choice = ShuffleChoice(Shuffle(kind), frames * FRAME, 4, 3)
        (shuffle,), (note,) = choice.choose(Mixture.of(data), {}, [CAMERA], rows)
        return shuffle, note

    fits, said = choose("auto", 230)
    assert fits == Shuffle()
    assert "fit" in said
    clips, said = choose("auto", 62)
    assert (clips.kind, clips.clip_gop, clips.clip_frames) == ("clips", 4, 4)
    assert 30 < clips.clip_pool < 100
    assert f"{clips.clip_pool} of 100 clips of 4 frames" in said
    short, said = choose("auto", 20)
    assert short == Shuffle()
    assert "--dataset.shuffle=clips" in said
    assert choose("clips", 20)[0].clip_pool < 16
    asked, _ = ShuffleChoice(Shuffle("clips", 7, 8, 2), 20 * FRAME, 4, 3).choose(
        Mixture.of(data), {}, [CAMERA], rows
    )
    assert asked == [Shuffle("clips", 7, 8, 2)]
    data = open_dataset("x/y", root=make(tmp_path / "images", lengths=(40,) * 10, camera="image"))
    assert choose("auto", 62) == (
        Shuffle(),
        "order: full, for images are read and decoded one by one",
    )
    assert choose("clips", 62)[0].kind == "clips"


STREAM = [10, 11, 9, 0, 3, 4, 8, 2, 6, 1, 5, 7]
