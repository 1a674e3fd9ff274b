"""Where every packet of a video file lies and which frame it shows: what decoding needs instead of seeking.

Frame numbers count presentation time stamps in ascending order: B-frames and edit lists need no special case.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import av
import numpy as np
from av.error import FFmpegError

from kata.data.order import Int64
from kata.errors import DataError

Colour: TypeAlias = tuple[int, int, int, int]
"""Range, space, primaries and transfer as FFmpeg numbers them."""


@dataclass(frozen=True, eq=False)
class FrameIndex:
    """Every packet of one video file in decoding order, and every frame in presentation order.

    pts, offset, size: (P,) time stamp and bytes of each packet. packet: (N,) the packet of frame n.
    start: (N,) the key packet from which decoding reaches frame n. setup: codec name, parameters, colour.
    tick_s: seconds per unit of pts. identity: (size in bytes, mtime_ns) of the file that was indexed.
    """

    path: Path
    identity: tuple[int, int]
    width: int
    height: int
    setup: tuple[str, bytes, Colour]
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


def file_identity(path: Path) -> tuple[int, int]:
    """(size in bytes, mtime_ns): another pair means that the file was replaced."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def build_index(path: Path) -> FrameIndex:
    """Read the packets of a video file without decoding them.

    Raises: DataError when the file is no video, is cut off, or changes its parameters on the way.
    """
    identity = file_identity(path)
    try:
        with av.open(str(path)) as container:
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
    if len(table) < claimed or (offset + size).max(initial=0) > identity[0]:
        raise _damaged(path, f"is cut off: {len(table)} of {claimed} frames are whole")
    shown = np.flatnonzero(hidden == 0)
    packet = shown[np.argsort(pts[shown], kind="stable")]
    return FrameIndex(
        path, identity, *shape, setup, tick_s, pts, offset, size, packet, _starts(pts, np.flatnonzero(key), packet)
    )


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


def _colour(codec: Any) -> Colour:
    """What the container says about colour; a stream may leave it to the container."""
    return codec.color_range, codec.colorspace, codec.color_primaries, codec.color_trc


def _damaged(path: Path, what: str) -> DataError:
    return DataError(
        f"{path} {what}",
        rule="a complete video file",
        remedy="download the file again, or leave its episodes out with --dataset.exclude_episodes",
    )
