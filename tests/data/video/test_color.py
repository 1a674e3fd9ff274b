"""Pixels written into the memory of a batch are those of PyAV's own conversion."""

from __future__ import annotations

import numpy as np
import pytest
from av.video.frame import VideoFrame

from kata.data.video.color import ONE_THREAD, Planes, RgbConverter, _Scaler


def picture(width: int, height: int, name: str, colour: tuple[int, int] = (2, 1)) -> VideoFrame:
    noise = np.random.default_rng(0).integers(0, 255, (height, width, 3), dtype=np.uint8)
    frame = VideoFrame.from_ndarray(noise, format="rgb24").reformat(format=name)
    frame.colorspace, frame.color_range = colour
    return frame


def painted(converter: RgbConverter, frame: VideoFrame) -> np.ndarray:
    out = np.full((frame.height, frame.width, 3), 77, np.uint8)
    converter.to_rgb(Planes.of(frame), out)
    return out


@pytest.mark.parametrize(
    "name", ["yuv420p", "yuvj420p", "yuv422p", "yuv444p", "yuv420p10le", "gray", "gbrp"]
)
@pytest.mark.parametrize("colour", [(1, 1), (1, 2), (2, 0), (5, 2), (6, 1), (7, 0), (9, 1)])
@pytest.mark.parametrize("size", [(64, 32), (48, 30), (50, 31)])
def test_every_kind_of_picture_is_converted_as_by_pyav(
    name: str, colour: tuple[int, int], size: tuple[int, int]
) -> None:
    frame = picture(*size, name, colour)
    wanted = frame.to_ndarray(format="rgb24", **ONE_THREAD)
    converter = RgbConverter()
    for _ in range(2):
        np.testing.assert_array_equal(painted(converter, frame), wanted)


def test_common_frames_are_written_without_a_copy() -> None:
    converter = RgbConverter()
    for colour in ((2, 1), (1, 1), (2, 2)):
        for name in ("yuv420p", "yuvj420p"):
            painted(converter, picture(640, 480, name, colour))
    assert all(isinstance(scaler, _Scaler) for scaler in converter._scalers.values())


def test_what_differs_is_left_to_pyav(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    frame = picture(64, 48, "yuv420p")
    wanted = frame.to_ndarray(format="rgb24", **ONE_THREAD)
    convert = _Scaler.convert

    def last_line_missing(self: _Scaler, given: Planes, out: np.ndarray) -> None:
        kept = out[-1].copy()
        convert(self, given, out)
        out[-1] = kept

    monkeypatch.setattr(_Scaler, "convert", last_line_missing)
    with caplog.at_level("INFO"):
        for _ in range(2):
            np.testing.assert_array_equal(painted(RgbConverter(), frame), wanted)
    assert caplog.messages == [
        "frames of 64x48 in yuv420p are converted by PyAV, with one copy more"
    ]


def test_a_picture_keeps_its_tags() -> None:
    """Another thread may convert the same held frame."""
    frame = picture(64, 48, "yuv420p", (5, 1))
    converter = RgbConverter()
    painted(converter, frame)
    before = (frame.colorspace, frame.color_range)
    painted(converter, frame)
    assert (frame.colorspace, frame.color_range) == before
