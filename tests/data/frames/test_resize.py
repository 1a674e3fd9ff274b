"""Frames that the reader resizes: nearly those that torch makes of whole ones, and the same
however they come.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torchvision.transforms.v2 import functional as F

from kata.data import Batches, Dataset, Order, Reader, anchor_rows, open_dataset
from kata.data.dataset.mixture import Mixture, MixtureEntry
from kata.data.frames.frame_cache import CacheOptions, FrameCache
from kata.data.frames.frame_format import FrameFormat
from kata.data.writing.dataset_writer import DatasetWriter, VideoOptions
from kata.spec import Column
from tests.data.small_maker import CAMERA

SIZE = (48, 64)
SMALL = FrameFormat({CAMERA: SIZE})


def scene(number: int) -> np.ndarray:
    """Smooth colours with an edge that moves, (120, 160, 3)."""
    y, x = np.mgrid[0:120, 0:160].astype(np.float64)
    waves = [np.sin(x / a + number / 3) + np.cos(y / b) for a, b in ((17, 23), (31, 13), (11, 37))]
    frame = (120 + 50 * np.stack(waves, -1)).clip(0, 255).astype(np.uint8)
    frame[40:90, 20 + 3 * number : 60 + 3 * number] //= 3
    return frame


@pytest.fixture(scope="module", params=["video", "image"])
def data(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Dataset:
    root = tmp_path_factory.mktemp("scenes") / request.param
    features = {CAMERA: Column(request.param, (120, 160, 3)), "action": Column("float32", (2,))}
    coding = {"video": VideoOptions(codec="h264", gop=4)} if request.param == "video" else {}
    with DatasetWriter.create(root, fps=10, features=features, **coding) as writer:
        for _ in range(2):
            for number in range(9):
                writer.add_frame(
                    {CAMERA: scene(number), "action": np.zeros(2, np.float32)}, task="look"
                )
            writer.save_episode()
    return open_dataset("x/scenes", root=root)


def psnr_db(one: np.ndarray, other: np.ndarray) -> float:
    return float(10 * np.log10(255**2 / np.mean((one.astype(float) - other) ** 2)))


def test_they_are_nearly_what_the_device_makes(data: Dataset) -> None:
    rows = np.arange(data.num_frames)
    with Reader(data, {}) as whole, Reader(data, {}, frame_format=SMALL) as small:
        frames, found = whole.read(rows)[CAMERA], small.read(rows)[CAMERA]
    assert found.shape == (len(rows), *SIZE, 3)
    wanted = F.resize(
        torch.from_numpy(frames).permute(0, 3, 1, 2).float(), list(SIZE), antialias=True
    )
    assert psnr_db(found, wanted.permute(0, 2, 3, 1).numpy()) > 38


@pytest.mark.parametrize("window", [(0,), (-2, -1, 0)])
def test_holding_and_caching_change_nothing(
    data: Dataset, tmp_path: Path, window: tuple[int, ...]
) -> None:
    rows = np.random.default_rng(0).permutation(data.num_frames)
    mixture = Mixture((MixtureEntry("one", data),))
    with Reader(data, {CAMERA: window}, frame_format=SMALL) as reader:
        wanted = reader.read(rows)[CAMERA]
    options = CacheOptions("disk", tmp_path, frame_format=SMALL)
    with (
        FrameCache(data, (CAMERA,), options) as cache,
        Reader(data, {}, frame_format=SMALL, caches={data.repo_id: cache}) as reader,
    ):
        reader.read(np.arange(data.num_frames))
    assert (tmp_path / "frames").exists()
    with (
        FrameCache(data, (CAMERA,), options) as cache,
        Reader(data, {CAMERA: window}, frame_format=SMALL, caches={data.repo_id: cache}) as reader,
    ):
        np.testing.assert_array_equal(reader.read(rows)[CAMERA], wanted)
        assert reader.work().frames_decoded == 0
    with Reader(mixture, {CAMERA: window}, frame_format=SMALL) as mixed:
        np.testing.assert_array_equal(mixed.read(rows)[CAMERA], wanted)
    anchors = anchor_rows(data)
    with (
        Reader(data, {CAMERA: window}, frame_format=SMALL, frame_memory=10_000_000) as reader,
        Batches(reader, anchors, Order(len(anchors), 1), 3) as batches,
    ):
        for step in (0, 1, 2, 3, 4, 5, 6, 7, 8):
            batch = batches.at(step)
            for place, row in enumerate(batch["index"]):
                at = int(np.flatnonzero(rows == row)[0])
                np.testing.assert_array_equal(batch[CAMERA][place], wanted[at])
