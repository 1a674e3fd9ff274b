"""Encoding of frames into mp4 files, and joining of mp4 files without encoding again, by PyAV."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.codec.codec import UnknownCodecError
from av.container import OutputContainer
from av.error import FFmpegError
from av.video.codeccontext import VideoCodecContext
from av.video.stream import VideoStream
from numpy.typing import NDArray

from kata.closing import Closing
from kata.data.storage.store import StoredFile
from kata.data.video.container import open_video
from kata.data.video.scheduling import kept_scheduling
from kata.errors import DataError

ENCODERS = {"av1": "libsvtav1", "h264": "libx264", "hevc": "libx265"}
"""FFmpeg's encoder for each codec name of info.json."""

_HEVC_SIDE = 64
"""The side of a block of x265.

A second encoder for frames of 32x48 overwrites memory, and the process is aborted.
"""

_DEFAULT_CRF = {"av1": 30, "h264": 23, "hevc": 28}
_DEFAULT_PRESET = {"av1": "12", "h264": "veryfast", "hevc": "veryfast"}
FASTSTART = {"movflags": "faststart"}
"""The index precedes the packets, so a player can start before it has the end of the file."""


@dataclass(frozen=True, slots=True)
class VideoOptions:
    """Options for the encoding of camera frames.

    Args:
        codec: 'av1' (smaller; LeRobot's default), 'h264' (encodes about twice as fast) or 'hevc'.
        gop: frames per GOP. With 2 any frame is cheap to reach; larger is smaller and slower.
        crf: quality, lower is better; None means 30 for av1, 23 for h264 and 28 for hevc.
        preset: the encoder's own name of its effort; None means '12' for av1, else 'veryfast'.
        pix_fmt: 'yuv420p' (even sizes only), or another format that encoder and readers support.
    """

    codec: str = "av1"
    gop: int = 2
    crf: int | None = None
    preset: str | None = None
    pix_fmt: str = "yuv420p"

    def __post_init__(self) -> None:
        if self.codec not in ENCODERS:
            raise DataError(
                f"video codec '{self.codec}' is not known",
                rule=f"one of: {', '.join(ENCODERS)}",
                remedy="choose one",
            )
        if self.gop < 1:
            raise DataError(
                f"gop is {self.gop}",
                rule="a keyframe every 1 frame or more",
                remedy="gop=2 is usual",
            )

    @property
    def quality(self) -> int:
        """Return the CRF in force."""
        return _DEFAULT_CRF[self.codec] if self.crf is None else self.crf

    @property
    def effort(self) -> str:
        """Return the preset in force."""
        return _DEFAULT_PRESET[self.codec] if self.preset is None else str(self.preset)

    def info(self) -> dict[str, Any]:
        """Return the encoder's part of a camera's `info` in info.json."""
        return {
            "video.codec": self.codec,
            "video.pix_fmt": self.pix_fmt,
            "video.g": self.gop,
            "video.crf": self.quality,
            "video.preset": int(self.effort) if self.effort.isdigit() else self.effort,
            "video.fast_decode": 0,
            "video.video_backend": "pyav",
            "video.extra_options": {},
            "is_depth_map": False,
        }

    @classmethod
    def from_info(cls, info: dict[str, Any]) -> VideoOptions:
        """Return the options that `info()` describes; fields that an older file lacks get the
        default.
        """
        preset = info.get("video.preset")
        return cls(
            codec=info.get("video.codec") or cls().codec,
            gop=info.get("video.g") or cls().gop,
            crf=info.get("video.crf"),
            preset=None if preset is None else str(preset),
            pix_fmt=info.get("video.pix_fmt") or cls().pix_fmt,
        )


def require_encoder(options: VideoOptions, *, fps: int, height: int, width: int) -> None:
    """Check that this PyAV can encode such frames.

    Raises:
        DataError: There is no such encoder, or it refuses the options.
    """
    encoder = ENCODERS[options.codec]
    if options.codec == "hevc" and min(height, width) < _HEVC_SIDE:
        raise DataError(
            f"{height}x{width} frames cannot be encoded as hevc",
            rule=f"{_HEVC_SIDE} pixels or more a side: the encoder damages its memory on smaller "
            "ones",
            remedy="take codec av1 or h264, or larger frames",
        )
    try:
        context = av.CodecContext.create(encoder, "w")
        assert isinstance(context, VideoCodecContext)
        _set_up(context, options, Fraction(fps), height, width)
        with kept_scheduling():
            context.open()
    except FFmpegError as error:
        raise DataError(
            f"encoder '{encoder}' refuses {width}x{height} with {options}: {error.strerror}",
            rule="sizes, preset, crf and pix_fmt that it knows",
            remedy="leave preset, crf and pix_fmt at their defaults",
        ) from error
    except UnknownCodecError:
        there = [codec for codec, encoder in ENCODERS.items() if encoder in av.codecs_available]
        raise DataError(
            f"PyAV {av.__version__} has no encoder '{ENCODERS[options.codec]}' for codec "
            f"'{options.codec}'",
            rule=f"encoders here: {', '.join(there) or 'none'}",
            remedy="choose one of those, or install PyAV's own wheel: pip install "
            "--force-reinstall av",
        ) from None


def _set_up(
    context: VideoCodecContext, options: VideoOptions, rate: Fraction, height: int, width: int
) -> None:
    # SVT-AV1 prints a banner for each file, not through libav's log. It reads this variable once,
    # when it is first opened.
    os.environ.setdefault("SVT_LOG", "1")
    context.width = width
    context.height = height
    context.pix_fmt = options.pix_fmt
    context.framerate, context.time_base = rate, 1 / rate
    context.gop_size = options.gop
    context.options = {"crf": str(options.quality), "preset": options.effort}
    if options.codec == "h264":
        # Without B-frames, frames are shown in the order they are stored: the first has pts 0, and
        # files join without gaps.
        context.max_b_frames = 0
        # No further keyframes at scene changes.
        context.options |= {"sc_threshold": "0"}
    if options.codec == "hevc":
        # The same two settings in x265's own syntax; and no banner.
        context.options |= {"x265-params": "bframes=0:scenecut=0:open-gop=0:log-level=none"}


class VideoEncoder(Closing):
    """An encoder that writes one episode of one camera to an mp4 file.

    The file has a constant frame rate, first pts 0, no B-frames, and its index in front. Frames are
    encoded as they come, so the memory does not grow with the episode.
    """

    def __init__(
        self, path: Path, *, fps: int, height: int, width: int, options: VideoOptions
    ) -> None:
        self._container: OutputContainer = av.open(str(path), "w", options=FASTSTART)
        stream = self._container.add_stream(ENCODERS[options.codec], rate=fps)
        assert isinstance(stream, VideoStream)
        _set_up(stream.codec_context, options, Fraction(fps), height, width)
        self._stream = stream
        self._time_base = Fraction(1, fps)
        self._count = 0

    def add(self, frame: NDArray[np.uint8]) -> None:
        """Encode one frame (H, W, 3), uint8 RGB."""
        picture = av.VideoFrame.from_ndarray(frame, format="rgb24")
        picture.pts, picture.time_base = self._count, self._time_base
        if self._count == 0:
            with kept_scheduling():
                self._container.start_encoding()
        self._count += 1
        self._container.mux(self._stream.encode(picture))

    def close(self) -> None:
        """Flush the encoder and finish the file."""
        if self._count:
            self._container.mux(self._stream.encode(None))
        self._container.close()


def join_videos(parts: Sequence[Path], path: Path, fps: int) -> None:
    """Concatenate mp4 files of one encoder by copying their packets; nothing is encoded again.

    Args:
        parts: files of one frame rate, without B-frames. Frame k of part p is shown at (number of
            frames before part p + k) / fps.
        path: of the file to write.
        fps: frames per second.
    """
    with av.open(str(path), "w", options=FASTSTART) as target:
        stream: VideoStream | None = None
        offset = 0
        for part in parts:
            with av.open(str(part)) as source:
                given = source.streams.video[0]
                assert given.time_base is not None
                if stream is None:
                    stream = target.add_stream_from_template(given, opaque=True)
                    stream.time_base = given.time_base
                ticks = round(1 / (fps * float(given.time_base)))
                for packet in source.demux(given):
                    if packet.size == 0:  # the flush packet that ends a demux
                        continue
                    assert packet.pts is not None
                    assert packet.pts % ticks == 0
                    packet.pts = packet.dts = offset + packet.pts
                    packet.duration = ticks
                    packet.stream = stream
                    target.mux(packet)
                offset += given.frames * ticks


def probe_video(file: StoredFile) -> dict[str, Any]:
    """Return the stream's part of a camera's `info` in info.json, read from the file itself.

    Raises:
        DataError: The file is damaged, or holds no video that FFmpeg knows.
    """
    try:
        with file.open() as data, open_video(file.path or data) as source:
            stream = next(iter(source.streams.video), None)
            codec: Any = stream and stream.codec_context  # None if FFmpeg does not know the codec
            if stream is None or codec is None or stream.average_rate is None:
                raise _unprobed(file, "no video in a codec that FFmpeg knows")
            return {
                "video.height": stream.height,
                "video.width": stream.width,
                "video.codec": codec.codec.canonical_name,
                "video.pix_fmt": stream.pix_fmt,
                "video.fps": round(float(stream.average_rate)),
                "video.channels": 3,
                "has_audio": bool(source.streams.audio),
            }
    except FFmpegError as error:
        raise _unprobed(file, str(error)) from error


def _unprobed(file: StoredFile, why: str) -> DataError:
    return DataError(
        f"{file} cannot be read: {why}",
        rule="a complete video file",
        remedy="download the file again",
    )


def first_time_s(file: StoredFile) -> float:
    """Return the time in seconds at which a player shows the first frame.

    It is the start time that the container declares.
    """
    with file.open() as data, open_video(file.path or data) as source:
        stream = source.streams.video[0]
        return float((stream.start_time or 0) * (stream.time_base or 0))
