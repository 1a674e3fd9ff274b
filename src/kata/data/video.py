"""Frames of video files by number: an index of packets per file, and decoders that stay open per thread.

The index holds where each packet lies, so decoding reads bytes and never seeks in a container. Frame numbers
count presentation time stamps in ascending order: B-frames and edit lists need no special case.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import av
import numpy as np
from av.codec import CodecContext
from av.error import FFmpegError
from av.video.frame import VideoFrame
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from kata.data.order import Int64
from kata.errors import DataError

_OPEN_DECODERS = 8
"""Per thread; one per codec and stream parameters, which files of one camera share."""

_FORMATS = {"protocol_whitelist": "file", "format_whitelist": "mov,matroska,webm,avi"}
"""FFmpeg tells a format by its content, and would follow a playlist that calls itself a video to other files."""

Pixels: TypeAlias = NDArray[np.uint8]
_Colour: TypeAlias = tuple[int, int, int, int]


@dataclass(frozen=True, eq=False)
class FrameIndex:
    """Every packet of one video file in decoding order, and every frame in presentation order.

    pts, offset, size: (P,) time stamp and bytes of each packet. packet: (N,) the packet of frame n.
    start: (N,) the key packet from which decoding reaches frame n. setup: codec name, parameters, colour.
    tick_s: seconds per unit of pts.
    """

    path: Path
    width: int
    height: int
    setup: tuple[str, bytes, _Colour]
    tick_s: float
    pts: Int64
    offset: Int64
    size: Int64
    packet: Int64
    start: Int64

    def __len__(self) -> int:
        return len(self.packet)

    def check_rate(self, fps: int) -> None:
        """Frame n must be the one shown nearest to n / fps after the first.

        Raises: DataError for another rate, or for frames that are missing or doubled.
        """
        time_s = (self.pts[self.packet] - self.pts[self.packet[:1]]) * self.tick_s
        off = np.flatnonzero(np.abs(time_s * fps - np.arange(len(self))) > 0.5)
        if off.size:
            raise _damaged(
                self.path,
                f"shows frame {off[0]} at {time_s[off[0]]:.3f} s; {fps} fps want {off[0] / fps:.3f} s",
            )


def check_whole(path: Path) -> None:
    """Compare the boxes of an mp4 file with its size; reads a few bytes per box.

    Raises: DataError when the file is cut off, wherever its frame table lies.
    """
    size, place = path.stat().st_size, 0
    with path.open("rb") as file:
        while place < size:
            file.seek(place)
            head = file.read(16)
            length = int.from_bytes(head[:4], "big")
            if length == 1:
                length = int.from_bytes(head[8:16], "big")
            elif length == 0:
                return
            place += max(length, 8)
    if place != size or size == 0:
        raise _damaged(path, f"has {size} bytes, but its parts need {place or 'more'}")


def build_index(path: Path) -> FrameIndex:
    """Read the packets of a video file without decoding them.

    Raises: DataError when the file is no video, is cut off, or changes its parameters on the way.
    """
    try:
        with av.open(str(path), options=_FORMATS) as container:
            if not container.streams.video:
                raise _damaged(path, "holds no video")
            stream = container.streams.video[0]
            codec = stream.codec_context
            setup = (codec.codec.name, bytes(codec.extradata or b""), _colour(codec))
            shape = (codec.width, codec.height)
            claimed, tick_s = stream.frames, float(stream.time_base or 0)
            rows = list(_packets(path, container.demux(stream)))
    except (FFmpegError, OSError) as error:
        raise _damaged(path, f"cannot be read ({error})") from error
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    pts, offset, size, key, hidden = table.T
    if len(table) < claimed or (offset + size).max(initial=0) > path.stat().st_size:
        raise _damaged(path, f"is cut off: {len(table)} of {claimed} frames are whole")
    shown = np.flatnonzero(hidden == 0)
    packet = shown[np.argsort(pts[shown], kind="stable")]
    return FrameIndex(path, *shape, setup, tick_s, pts, offset, size, packet, _starts(pts, np.flatnonzero(key), packet))


def _packets(path: Path, packets: Iterator[Any]) -> Iterator[tuple[int, int, int, int, int]]:
    for packet in packets:
        if not packet.size:
            continue
        if packet.is_corrupt or packet.pts is None or packet.pos is None or packet.pos < 0:
            raise _damaged(path, "has a damaged packet")
        if packet.has_sidedata("new_extradata"):
            raise _damaged(path, "changes its coding parameters on the way")
        yield packet.pts, packet.pos, packet.size, packet.is_keyframe, packet.is_discard


def _starts(pts: Int64, keys: Int64, packet: Int64) -> Int64:
    """The last key packet before each frame that is also shown before it: frames that lead an open group of
    pictures are decoded from the group before."""
    if not len(keys):
        return np.zeros(len(packet), np.int64)
    place = np.searchsorted(keys, packet, side="right") - 1
    early = (pts[keys[np.maximum(place, 0)]] > pts[packet]) & (place > 0)
    while early.any():
        place = place - early
        early = (pts[keys[np.maximum(place, 0)]] > pts[packet]) & (place > 0)
    return np.where(place < 0, 0, keys[np.maximum(place, 0)])


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


def _colour(codec: Any) -> _Colour:
    """What the container says about colour; a stream may leave it to the container."""
    return codec.color_range, codec.colorspace, codec.color_primaries, codec.color_trc


def _damaged(path: Path, what: str) -> DataError:
    return DataError(
        f"{path} {what}",
        rule="a complete video file",
        remedy="download the file again, or leave its episodes out with --dataset.exclude_episodes",
    )


def _undecodable(index: FrameIndex, camera: str, number: int, why: str) -> DataError:
    return DataError(
        f"frame {number} of {index.path} (camera '{camera}') cannot be decoded: {why}",
        rule=f"every one of its {len(index)} frames decodes to {index.width}x{index.height} pixels",
        remedy="download the file again, or leave its episodes out with --dataset.exclude_episodes",
    )
