"""Frames that come as planes: turned to RGB by torch they are, bit for bit, what libswscale
makes of them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from av.video.frame import VideoFrame

from kata.data import Batches, Dataset, Order, Reader, anchor_rows, open_dataset
from kata.data.dataset.mixture import Mixture, MixtureEntry
from kata.data.frames.frame_cache import CacheOptions, FrameCache
from kata.data.frames.frame_format import FrameFormat, colours_of_camera
from kata.data.loader.shuffle import Shuffle, ShuffleChoice
from kata.data.video.color import Kind, Planes, RgbConverter, colours_of
from kata.data.writing.dataset_writer import DatasetWriter, VideoOptions
from kata.errors import DataError
from kata.processors import planes_to_rgb
from kata.spec import Colours, Column, missing_key
from tests.data.small_maker import CAMERA

OTHER = "observation.images.other"


def rgb(planes: np.ndarray, colours: Colours) -> np.ndarray:
    return planes_to_rgb(torch.from_numpy(planes), colours).numpy()


def every_value() -> np.ndarray:
    """Planes (H * 3 / 2, W) with each Y beside each of 64 x 64 values of U and V, extremes
    included.
    """
    chroma = np.round(np.linspace(0, 255, 64)).astype(np.uint8)
    u, v = (part.reshape(64, 64) for part in np.meshgrid(chroma, chroma))
    u, v = (np.kron(part, np.ones((8, 8), np.uint8)) for part in (u, v))
    luma = np.kron(np.ones((64, 64), np.uint8), np.arange(256, dtype=np.uint8).reshape(16, 16))
    return np.concatenate([luma, u.reshape(-1, 1024), v.reshape(-1, 1024)])


@pytest.mark.parametrize("limits", [0, 1, 2])
@pytest.mark.parametrize("space", [1, 2, 4, 5, 6, 7, 9])
def test_every_colour_is_that_of_libswscale(space: int, limits: int) -> None:
    planes = every_value()
    frame = VideoFrame.from_numpy_buffer(planes, format="yuv420p")
    frame.colorspace, frame.color_range = space, limits
    picture = Planes.of(frame)
    wanted = np.empty((1024, 1024, 3), np.uint8)
    RgbConverter().to_rgb(picture, wanted)
    colours = colours_of(picture.kind)
    assert colours is not None
    np.testing.assert_array_equal(rgb(planes[..., None], colours), wanted)
    luma, chroma = colours.black
    assert not rgb(
        np.array([[luma] * 4] * 4 + [[chroma] * 4] * 2, np.uint8)[..., None], colours
    ).any()


def test_full_range_has_its_own_name_too() -> None:
    assert colours_of(Kind(16, 16, "yuvj420p", 5, 0)) == colours_of(Kind(16, 16, "yuv420p", 5, 2))
    assert colours_of(Kind(16, 16, "yuv420p", 5, 0)) == colours_of(Kind(16, 16, "yuv420p", 5, 1))


def make(root: Path, *cameras: str, size: tuple[int, int] = (52, 100), **coding: Any) -> Dataset:
    features = {key: Column("video", (*size, 3)) for key in cameras} | {
        "action": Column("float32", (2,))
    }
    rng = np.random.default_rng(5)
    with DatasetWriter.create(
        root, fps=10, features=features, video=VideoOptions(gop=4, **coding)
    ) as writer:
        for _ in range(2):
            for _ in range(9):
                frames = {key: rng.integers(0, 256, (*size, 3), np.uint8) for key in cameras}
                writer.add_frame({**frames, "action": np.zeros(2, np.float32)}, task="look")
            writer.save_episode()
    return open_dataset("x/planes", root=root)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Dataset:
    """A width that is no multiple of what libswscale writes at once."""
    return make(tmp_path_factory.mktemp("planes") / "data", CAMERA, codec="h264")


def frame_format_of(data: Dataset) -> FrameFormat:
    colours = colours_of_camera(Mixture.of(data), CAMERA)
    assert isinstance(colours, Colours)
    return FrameFormat(colours={CAMERA: colours})


@pytest.mark.parametrize("window", [(0,), (-1, 0), (-4, -2, 0)])
def test_batches_are_the_same_however_frames_come(
    data: Dataset, tmp_path: Path, window: tuple[int, ...]
) -> None:
    frame_format = frame_format_of(data)
    colours, windows = frame_format.colours[CAMERA], {CAMERA: window}
    anchors = anchor_rows(data)
    rows = np.random.default_rng(0).permutation(anchors)
    with Reader(data, windows) as reader:
        wanted = reader.read(rows)[CAMERA]
    with Reader(data, windows, frame_format=frame_format) as reader:
        found = reader.read(rows)[CAMERA]
        assert found.shape == (len(rows), len(window), 78, 100, 1)
        assert reader.batch_bytes(2) == 2 * len(window) * 78 * 100
    np.testing.assert_array_equal(rgb(found, colours), wanted)
    options = CacheOptions("disk", tmp_path, frame_format=frame_format)
    for decoded in (True, False):
        with (
            FrameCache(data, (CAMERA,), options) as cache,
            Reader(
                data, windows, frame_format=frame_format, caches={data.repo_id: cache}
            ) as reader,
        ):
            np.testing.assert_array_equal(reader.read(rows)[CAMERA], found)
            assert bool(reader.work().frames_decoded) == decoded
    with (
        Reader(data, windows, frame_format=frame_format, frame_memory=600_000) as reader,
        Batches(reader, anchors, Order(len(anchors), 1), 3) as batches,
    ):
        for step in range(12):
            batch = batches.at(step)
            places = [int(np.flatnonzero(rows == row)[0]) for row in batch["index"]]
            np.testing.assert_array_equal(batch[CAMERA], found[places])
        assert reader.work().frames_held > 0


def test_a_camera_that_a_dataset_of_a_mixture_lacks_is_black(data: Dataset, tmp_path: Path) -> None:
    both = make(tmp_path / "both", CAMERA, OTHER, codec="h264")
    mixture = Mixture((MixtureEntry("one", data), MixtureEntry("both", both)))
    colours = frame_format_of(data).colours[CAMERA]
    frame_format = FrameFormat(colours={CAMERA: colours, OTHER: colours})
    rows = np.arange(mixture.num_frames)
    with (
        Reader(mixture, {}) as whole,
        Reader(mixture, {}, frame_format=frame_format) as planes,
    ):
        wanted, found = whole.read(rows), planes.read(rows)
    for key in (CAMERA, OTHER):
        np.testing.assert_array_equal(rgb(found[key], colours), wanted[key])
    assert not wanted[OTHER][wanted[missing_key(OTHER)]].any()


def test_clips_of_a_mixture_know_cameras_by_their_own_names(data: Dataset) -> None:
    frame_format, memory = frame_format_of(data), 5 * 4 * 3 * 100 * 52 * 3
    renamed, plain = (
        Mixture((MixtureEntry("one", data, rename={CAMERA: OTHER}),)),
        Mixture((MixtureEntry("one", data),)),
    )
    rows = np.arange(data.num_frames)

    def chosen(mixture: Mixture, key: str, frame_format: FrameFormat) -> list[Shuffle]:
        choice = ShuffleChoice(Shuffle("clips"), memory, 4, 5, frame_format)
        return choice.choose(mixture, {key: (-4, -2, 0)}, [key], rows)[0]

    named = FrameFormat(colours={OTHER: frame_format.colours[CAMERA]})
    assert chosen(renamed, OTHER, named) == chosen(plain, CAMERA, frame_format)
    assert chosen(renamed, OTHER, named) != chosen(renamed, OTHER, FrameFormat())


def test_a_file_of_other_colours_is_refused(data: Dataset) -> None:
    colours = frame_format_of(data).colours[CAMERA]
    frame_format = FrameFormat(colours={CAMERA: colours._replace(red=colours.red + 1)})
    with (
        Reader(data, {}, frame_format=frame_format) as reader,
        pytest.raises(DataError, match=r"(?s)\.mp4.*other colours.*--dataset\.pixels=rgb"),
    ):
        reader.read(np.arange(3))


def test_other_formats_have_no_planes_of_half_the_size(tmp_path: Path) -> None:
    data = make(tmp_path / "data", CAMERA, codec="h264", pix_fmt="yuv444p")
    assert colours_of_camera(Mixture.of(data), CAMERA) == "not 8-bit 4:2:0"
