"""Frames of video files by number, with decoders that stay open per thread.

A file's index holds where each packet lies, so decoding reads bytes and never seeks in a container.
"""

from __future__ import annotations

import os
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import av
import numpy as np
from av.codec import CodecContext
from av.error import FFmpegError
from av.video.frame import PictureType, VideoFrame
from numpy.typing import NDArray

from kata.data.colour import Painter
from kata.data.index import FrameIndex
from kata.data.order import Int64
from kata.data.work import Tally
from kata.errors import DataError, FrameError

_OPEN_DECODERS = 8
"""Per thread; one per codec and stream parameters, which files of one camera share."""

Pixels: TypeAlias = NDArray[np.uint8]


@dataclass(frozen=True)
class Stamp:
    """What tells that a file is still the one that was indexed."""

    size: int
    mtime_ns: int
    inode: int

    @staticmethod
    def of(stat: os.stat_result) -> Stamp:
        """The stamp of a file."""
        return Stamp(stat.st_size, stat.st_mtime_ns, stat.st_ino)


@dataclass(frozen=True, eq=False)
class Gop:
    """Frames wanted of one group of pictures: `frames` (n,), all of one start; `rows` (n,) in the dataset."""

    index: FrameIndex
    stamp: Stamp
    camera: str
    frames: Int64
    rows: Int64

    def bad(self, place: int, why: str) -> FrameError:
        """The error of a frame that cannot be had."""
        index, number = self.index, int(self.frames[place])
        return FrameError(
            f"frame {number} of {index.path} (camera '{self.camera}') cannot be decoded: {why}",
            rule=f"every one of its {len(index)} frames decodes to {index.width}x{index.height} pixels",
            remedy="download the file again, or leave its episodes out with --dataset.exclude_episodes",
            camera=self.camera,
            file=str(index.path),
            frame=number,
            row=int(self.rows[place]),
        )


class Decoder:
    """Decodes frames in the calling thread; each thread keeps its own open codecs."""

    def __init__(self, tally: Tally) -> None:
        self._local, self._tally = threading.local(), tally

    def pictures(self, gop: Gop) -> Iterator[tuple[int, VideoFrame]]:
        """Yield (place in `gop.frames`, decoded frame), as the decoder gives them; the last packet is the last wanted.

        Raises: FrameError for a frame that cannot be decoded, DataError for a file that has been replaced.
        """
        index = gop.index
        packets = index.packet[gop.frames]
        first, last = int(index.start[gop.frames[0]]), int(packets.max())
        key_pts = int(index.pts[first])
        wanted: dict[int, list[int]] = {}
        for place, pts in enumerate(index.pts[packets].tolist()):
            wanted.setdefault(pts, []).append(place)
        began_s = time.perf_counter()
        data, begin = self._read(gop, first, last)
        read_s = time.perf_counter() - began_s
        decode_s, count = 0.0, 0
        try:
            frames = self._decode(index, data, begin, first, last)
            while True:
                began_s = time.perf_counter()
                frame = next(frames, None)
                decode_s += time.perf_counter() - began_s
                if frame is None:
                    break
                count += 1
                if frame.pts == key_pts and frame.pict_type != PictureType.I:
                    raise gop.bad(0, "its group of pictures begins with one that leans on others, no keyframe")
                for place in wanted.pop(frame.pts, ()) if frame.pts is not None else ():
                    _check_picture(gop, place, frame)
                    yield place, frame
        except (FFmpegError, OSError) as error:
            raise gop.bad(min(wanted.values(), default=[0])[0], str(error)) from error
        finally:
            self._tally.add(read_s=read_s, decode_s=decode_s, frames_decoded=count, bytes_read=len(data))
        if wanted:
            raise gop.bad(min(wanted.values())[0], "the decoder gave no picture")

    def _read(self, gop: Gop, first: int, last: int) -> tuple[bytes, int]:
        """The bytes that packets first..last lie in, and where in the file they begin."""
        index = gop.index
        offsets = index.offset[first : last + 1]
        begin, end = int(offsets.min()), int((offsets + index.size[first : last + 1]).max())
        try:
            file = os.open(index.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError as error:
            raise _replaced(index.path, f"cannot be opened ({error.strerror})") from error
        try:
            if Stamp.of(os.fstat(file)) != gop.stamp:
                raise _replaced(index.path, "is another file, or has other content")
            data = os.pread(file, end - begin, begin)
        finally:
            os.close(file)
        if len(data) < end - begin:
            raise _replaced(index.path, "is shorter")
        return data, begin

    def _decode(self, index: FrameIndex, data: bytes, begin: int, first: int, last: int) -> Iterator[VideoFrame]:
        """All frames of packets first..last, those held back for reordering included."""
        codec = self._codec(index)
        # Before, not after: a run that an error ended leaves frames behind.
        codec.flush_buffers()
        offset = (index.offset[first : last + 1] - begin).tolist()
        size, pts = index.size[first : last + 1].tolist(), index.pts[first : last + 1].tolist()
        for at, length, shown in zip(offset, size, pts, strict=True):
            packet = av.Packet(data[at : at + length])
            packet.pts = shown
            yield from codec.decode(packet)
        yield from codec.decode(None)

    def _codec(self, index: FrameIndex) -> Any:
        codecs: OrderedDict[Any, Any] = self._local.__dict__.setdefault("codecs", OrderedDict())
        if index.setup in codecs:
            codecs.move_to_end(index.setup)
            return codecs[index.setup]
        name, extradata, colour = index.setup
        codec: Any = CodecContext.create(name, "r")
        codec.thread_type = "NONE"
        codec.thread_count = 1
        codec.extradata = extradata or None
        codec.color_range, codec.colorspace, codec.color_primaries, codec.color_trc = colour
        codec.open()
        codecs[index.setup] = codec
        if len(codecs) > _OPEN_DECODERS:
            codecs.popitem(last=False)
        return codec

    def paint(self, frame: VideoFrame, out: Pixels) -> None:
        """Write a decoded frame as RGB into `out` (H, W, 3)."""
        painter: Painter | None = self._local.__dict__.get("painter")
        if painter is None:
            painter = self._local.painter = Painter()
        painter.paint(frame, out)


def _check_picture(gop: Gop, place: int, frame: VideoFrame) -> None:
    if frame.is_corrupt:
        raise gop.bad(place, "the picture is damaged")
    if (frame.width, frame.height) != (gop.index.width, gop.index.height):
        raise gop.bad(place, f"its size is {frame.width}x{frame.height}")


def _replaced(path: Path, how: str) -> DataError:
    return DataError(
        f"{path} has changed since the run began: it {how}",
        rule="the files of a dataset stay as they are while it is read",
        remedy="restore the file, or start again once the dataset is complete",
    )
