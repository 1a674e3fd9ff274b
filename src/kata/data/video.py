"""Frames of video files by number, with decoders that stay open per thread.

A file's index holds where each packet lies, so decoding reads bytes and never seeks in a container.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

import av
import numpy as np
from av.codec import CodecContext
from av.error import FFmpegError
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from kata.data.index import FrameIndex
from kata.data.order import Int64
from kata.errors import DataError

_OPEN_DECODERS = 8
"""Per thread; one per codec and stream parameters, which files of one camera share."""

Pixels: TypeAlias = NDArray[np.uint8]


class Decoder:
    """Decodes runs of frames in the calling thread; each thread keeps its own open codecs."""

    def __init__(self) -> None:
        self._local = threading.local()

    def run(self, index: FrameIndex, camera: str, frames: Int64, write: Callable[[int, Pixels], None]) -> None:
        """Decode `frames` (ascending, of one start) and hand each to `write` as (place in frames, (H, W, 3)).

        The pixels are valid only during the call of `write`.

        Raises: DataError naming file, camera and frame.
        """
        packets = index.packet[frames]
        first, last = int(index.start[frames[0]]), int(packets.max())
        wanted = {int(pts): place for place, pts in enumerate(index.pts[packets])}
        try:
            for frame in self._decode(index, first, last):
                place = wanted.pop(frame.pts, None) if frame.pts is not None else None
                if place is not None:
                    write(place, self._rgb(index, camera, int(frames[place]), frame))
        except (FFmpegError, OSError) as error:
            number = int(frames[min(wanted.values(), default=0)])
            raise _undecodable(index, camera, number, str(error)) from error
        if wanted:
            raise _undecodable(index, camera, int(frames[min(wanted.values())]), "the decoder gave no picture")

    def _decode(self, index: FrameIndex, first: int, last: int) -> Iterator[VideoFrame]:
        """All frames of packets first..last, those held back for reordering included."""
        codec = self._codec(index)
        begin = int(index.offset[first : last + 1].min())
        end = int((index.offset[first : last + 1] + index.size[first : last + 1]).max())
        with index.path.open("rb", buffering=0) as file:
            file.seek(begin)
            data = file.read(end - begin)
        if len(data) < end - begin:
            raise OSError("the file is shorter than when it was opened")
        # Before, not after: a run that an error ended leaves frames behind.
        codec.flush_buffers()
        for number in range(first, last + 1):
            at = int(index.offset[number]) - begin
            packet = av.Packet(data[at : at + int(index.size[number])])
            packet.pts = int(index.pts[number])
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

    def _rgb(self, index: FrameIndex, camera: str, number: int, frame: VideoFrame) -> Pixels:
        if frame.is_corrupt:
            raise _undecodable(index, camera, number, "the picture is damaged")
        if (frame.width, frame.height) != (index.width, index.height):
            raise _undecodable(index, camera, number, f"its size is {frame.width}x{frame.height}")
        reformatter = self._local.__dict__.setdefault("reformatter", VideoReformatter())
        plane = reformatter.reformat(frame, format="rgb24", threads=1).planes[0]
        lines = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
        return lines[: frame.height, : frame.width * 3].reshape(frame.height, frame.width, 3)


def _undecodable(index: FrameIndex, camera: str, number: int, why: str) -> DataError:
    return DataError(
        f"frame {number} of {index.path} (camera '{camera}') cannot be decoded: {why}",
        rule=f"every one of its {len(index)} frames decodes to {index.width}x{index.height} pixels",
        remedy="download the file again, or leave its episodes out with --dataset.exclude_episodes",
    )
