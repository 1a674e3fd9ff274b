"""Decoding of video frames by number, with decoders that stay open per thread.

A file's index holds the position of each packet, so decoding reads bytes and never seeks in a
container.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import av
from av.codec import CodecContext
from av.error import FFmpegError
from av.video.frame import PictureType, VideoFrame

from kata.data.arrays import Int64, Pixels
from kata.data.counters import CounterCollector
from kata.data.storage.file_stamp import Stamp
from kata.data.video.color import Planes, RgbConverter
from kata.data.video.packet_index import FrameIndex
from kata.data.video.packets import PADDING_BYTES, read_packets
from kata.errors import FrameError

_OPEN_DECODERS = 8
"""Decoders per thread: one per codec and stream parameters, which the files of a camera share."""


@dataclass(frozen=True, eq=False)
class Gop:
    """The wanted frames of one GOP of a video file.

    Attributes:
        index: of the file.
        stamp: of the file when it was indexed.
        camera: the dataset's key, for errors.
        frames: (n,) numbers of the frames in the file, all decoded from one keyframe.
        rows: (n,) rows of the same frames in the dataset, for errors.
    """

    index: FrameIndex
    stamp: Stamp
    camera: str
    frames: Int64
    rows: Int64

    def bad(self, place: int, why: str) -> FrameError:
        """Return the error for the frame at `place` of `frames`, with the reason."""
        index, number = self.index, int(self.frames[place])
        return FrameError(
            f"frame {number} of {index.file} (camera '{self.camera}') cannot be decoded: {why}",
            rule=f"every one of its {len(index)} frames decodes to {index.width}x{index.height} "
            "pixels",
            remedy="download the file again, or leave its episodes out with "
            "--dataset.exclude_episodes",
            camera=self.camera,
            file=str(index.file),
            frame=number,
            row=int(self.rows[place]),
        )


class Decoder:
    """A decoder of frames in the calling thread; each thread has its own open codecs."""

    def __init__(self, counters: CounterCollector) -> None:
        self._local, self._counters = threading.local(), counters

    def pictures(self, gop: Gop) -> Iterator[tuple[int, Planes]]:
        """Decode one GOP up to the last frame that is wanted.

        Yields:
            (place in `gop.frames`, decoded picture), in presentation order.

        Raises:
            FrameError: A frame cannot be decoded.
            DataError: The file has been replaced since it was indexed, or cannot be read.
        """
        # 1. The packets from the keyframe to the last wanted one, and the frames to return by time
        #    stamp. Lists: a GOP is short, and numpy costs more per call than such loops.
        index = gop.index
        first = int(index.start[gop.frames[0]])
        numbers: list[int] = index.packet[gop.frames].tolist()
        span = slice(first, max(numbers) + 1)
        pts: list[int] = index.pts[span].tolist()
        wanted: dict[int, list[int]] = {}
        for place, number in enumerate(numbers):
            wanted.setdefault(pts[number - first], []).append(place)
        # 2. One read for all packets.
        began_s = time.perf_counter()
        offsets, sizes = index.offset[span].tolist(), index.size[span].tolist()
        packets = read_packets(index.file, offsets, sizes, gop.stamp)
        read_s = time.perf_counter() - began_s
        # 3. Decode. Only `next` is timed, because the caller converts frames between two of them.
        decode_s, count = 0.0, 0
        try:
            frames = self._decode(index, packets, pts)
            while True:
                began_s = time.perf_counter()
                frame = next(frames, None)
                decode_s += time.perf_counter() - began_s
                if frame is None:
                    break
                count += 1
                # A decoder invents a picture for references that it lacks, without an error.
                if frame.pts == pts[0] and frame.pict_type != PictureType.I:
                    raise gop.bad(
                        0, "its group of pictures begins with one that leans on others, no keyframe"
                    )
                for place in wanted.pop(frame.pts, ()) if frame.pts is not None else ():
                    _check_picture(gop, place, frame)
                    yield place, Planes.of(frame)
        except (FFmpegError, OSError) as error:
            raise gop.bad(min(wanted.values(), default=[0])[0], str(error)) from error
        finally:
            # Also after an error, and when the caller stops early: the work was done.
            self._counters.add(
                read_s=read_s, decode_s=decode_s, frames_decoded=count, bytes_read=sum(sizes)
            )
        if wanted:
            raise gop.bad(min(wanted.values())[0], "the decoder gave no picture")

    def _decode(
        self, index: FrameIndex, packets: list[av.Packet], pts: list[int]
    ) -> Iterator[VideoFrame]:
        """Yield all frames of these packets, also those that the codec delays to reorder them."""
        codec = self._codec(index)
        # Before decoding, not after: an earlier call that ended with an error leaves frames behind.
        codec.flush_buffers()
        for packet, shown in zip(packets, pts, strict=True):
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
        # The pool decodes many GOPs at once; threads inside a codec would only compete with it.
        codec.thread_type = "NONE"
        codec.thread_count = 1
        if extradata:
            # PyAV does not clear the padding after these bytes; the first assignment writes zeros
            # there.
            codec.extradata = extradata + bytes(PADDING_BYTES)
            codec.extradata = extradata
        codec.color_range, codec.colorspace, codec.color_primaries, codec.color_trc = colour
        codec.open()
        codecs[index.setup] = codec
        if len(codecs) > _OPEN_DECODERS:
            codecs.popitem(last=False)
        return codec

    def to_rgb(self, picture: Planes, out: Pixels) -> None:
        """Write a decoded picture as RGB into `out` (h, w, 3), uint8, resized to that if needed."""
        converter: RgbConverter | None = self._local.__dict__.get("converter")
        if converter is None:
            converter = self._local.converter = RgbConverter()
        converter.to_rgb(picture, out)


def _check_picture(gop: Gop, place: int, frame: VideoFrame) -> None:
    """Raise FrameError if a decoded frame is corrupt or has another size than the index says."""
    if frame.is_corrupt:
        raise gop.bad(place, "the picture is damaged")
    if (frame.width, frame.height) != (gop.index.width, gop.index.height):
        raise gop.bad(place, f"its size is {frame.width}x{frame.height}")
