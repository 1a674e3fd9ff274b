"""Short GOPs are fetched together, and clips are long enough for it where they still mix."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest

from kata.data import Batches, Dataset, Reader, anchor_rows, open_dataset
from kata.data.dataset.mixture import Mixture
from kata.data.frames.fetch_horizon import FetchHorizon
from kata.data.loader.shuffle import Shuffle, ShuffleChoice, make_order
from tests.data.dataset_maker import CAMERA, HEIGHT, WIDTH, make
from tests.data.far_store import streamed

FRAME = HEIGHT * WIDTH * 3


def pixels(data: Dataset) -> str:
    """A hash of an epoch in clips of twenty frames."""
    rows = np.arange(data.num_frames)
    order = make_order([Shuffle("clips", 8, 20, 4)], Mixture.of(data), {}, [CAMERA], rows, 0)
    digest = hashlib.sha256()
    with (
        Reader(data, {}, threads=2, frame_memory=60 * FRAME) as reader,
        Batches(reader, rows, order, 4) as batches,
    ):
        for step in range(data.num_frames // 4):
            digest.update(batches.at(step)[CAMERA].tobytes())
    return digest.hexdigest()


def test_the_gops_of_a_clip_share_requests(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = open_dataset("x/y", root=make(tmp_path, lengths=(40,) * 20, per_file=20))
    near = pixels(data)

    def fetched() -> tuple[int, int]:
        with streamed(data, budget=20_000) as (there, store, pool):
            assert pixels(there) == near
            assert not pool.holds_all
        return len(store.read), store.bytes_read

    fetched()  # the packet index, which is kept
    requests, size = fetched()
    monkeypatch.setattr(FetchHorizon, "steps", lambda *_: 0)
    requests_alone, size_alone = fetched()
    assert requests < 0.85 * requests_alone
    assert size < 1.1 * size_alone


def test_clips_of_short_gops_are_a_second_long_if_they_still_mix(tmp_path: Path) -> None:
    data = open_dataset("x/y", root=make(tmp_path, lengths=(40,) * 10, per_file=1))
    rows = anchor_rows(data)

    def choose(batch_size: int) -> Shuffle:
        choice = ShuffleChoice(Shuffle("clips"), 150 * FRAME, batch_size, 3)
        return choice.choose(Mixture.of(data), {}, [CAMERA], rows)[0][0]

    long = choose(2)
    assert (long.clip_frames, long.clip_gop) == (8, 4)
    assert long.clip_pool >= 2 * 4 * 2
    assert choose(16).clip_frames == 4
