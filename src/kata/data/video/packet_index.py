"""An index of a video file: the position of every packet, and the frame that each one shows.

It replaces seeking. Frame numbers count presentation time stamps in ascending order, so B-frames
and edit lists need no special case.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, BinaryIO, TypeAlias

import av
import numpy as np
from av.codec.codec import Codec, UnknownCodecError
from av.error import FFmpegError
from numpy.typing import NDArray

from kata.data.arrays import Int64
from kata.data.storage.array_file import (
    ArrayFile,
    Note,
    Put,
    cache_folder,
    load,
    save,
    say_unwritable,
)
from kata.data.storage.file_stamp import file_ends
from kata.data.storage.lfs_pointer import refuse_pointer
from kata.data.storage.store import StoredFile
from kata.data.video.container import open_video
from kata.data.video.mp4_boxes import count_setups, read_sample_table
from kata.data.video.packed_index import pack_index, unpack_index
from kata.errors import DataError

Colour: TypeAlias = tuple[int, int, int, int]
"""Color range, space, primaries and transfer as FFmpeg numbers them."""


_FORMAT = 1
"""Version of the indexes in the cache; raise it when their content or its meaning changes."""


_ARRAYS = {"pts", "offset", "size", "packet", "start"}


_ELEMENT_BYTES = 64
"""More bytes than the header of a Matroska element has."""


@dataclass(frozen=True, eq=False)
class FrameIndex:
    """Every packet of one video file in decoding order, and every frame in presentation order.

    The arrays are 32 bits wide where a file allows it: the sum of an offset and a size fits, a
    product does not.

    Attributes:
        file: that holds the packets.
        identity: (size in bytes, version) of the file when it was indexed; see `Stamp`.
        width: in pixels.
        height: in pixels.
        setup: codec name, codec parameters and color tags; files with equal ones share a decoder.
        tick_s: seconds per unit of `pts`.
        pts: (P,) presentation time stamp of each packet, counted from the first frame shown.
        offset: (P,) position of each packet in the file, in bytes.
        size: (P,) bytes of each packet.
        packet: (N,) the packet of frame n.
        start: (N,) the key packet from which decoding must begin to reach frame n.
    """

    file: StoredFile
    identity: tuple[int, int | str]
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

    @cached_property
    def gops(self) -> tuple[Int64, Int64, Int64]:
        """Return (G,) first frame, first byte and end of the bytes of each GOP.

        The bytes are those of the packets from the GOP's keyframe to its last frame.
        """
        first = np.flatnonzero(np.diff(self.start, prepend=-1))
        end_packet = np.maximum.reduceat(self.packet, first) + 1
        # `reduceat` takes pairs: the packets of one GOP, and those up to the next, left out below.
        pairs = np.stack([self.start[first], end_packet], axis=1).reshape(-1)
        offset = self.offset.astype(np.int64)
        ends = offset + self.size
        begin = np.minimum.reduceat(np.append(offset, offset[-1]), pairs)[::2]
        end = np.maximum.reduceat(np.append(ends, ends[-1]), pairs)[::2]
        return first, begin, end

    def check_rate(self, fps: int) -> None:
        """Check that frame n is the one shown nearest to n / fps after the first.

        Raises:
            DataError: The file has another rate, or frames are missing or doubled.
        """
        time_s = (self.pts[self.packet] - self.pts[self.packet[:1]]) * self.tick_s
        off = np.flatnonzero(np.abs(time_s * fps - np.arange(len(self))) > 0.5)
        if off.size:
            raise self._wrong_rate(fps, int(off[0]), time_s)

    def _wrong_rate(self, fps: int, frame: int, time_s: NDArray[Any]) -> DataError:
        step_s = float(np.median(np.diff(time_s)))
        shown = f"; most frames are 1 / {1 / step_s:.5g} s apart" if step_s > 0 else ""
        return DataError(
            f"{self.file} shows frame {frame} at {time_s[frame]:.3f} s; {fps} fps want "
            f"{frame / fps:.3f} s{shown}",
            rule=f"frames follow each other at the fps of info.json, {fps}, without gaps",
            remedy="`kata data repair <folder> --out=<folder> --fps=<rate>` gives tables and "
            "videos "
            "one rate, frame by frame; or leave the episodes out with --dataset.exclude_episodes",
        )


def check_whole(file: StoredFile) -> None:
    """Check that an mp4 file is as long as its boxes say; reads a few bytes per box.

    Raises:
        DataError: The file is cut off, or is a Git LFS pointer.
    """
    if file.path is not None:
        refuse_pointer(file.path)
    with file.open() as data:
        _check_length(file, data, file.stamp().size)


def _check_length(file: StoredFile, data: BinaryIO, size: int) -> None:
    place = 0
    while place < size:
        data.seek(place)
        head = data.read(16)
        # 1 means that 64 bits follow with the length, 0 that the box reaches to the file's end.
        length = int.from_bytes(head[:4], "big")
        if length == 1:
            length = int.from_bytes(head[8:16], "big")
        elif length == 0:
            return
        place += max(length, 8)
    if place != size or size == 0:
        raise _damaged(file, f"has {size} bytes, but its parts need {place or 'more'}")


def open_index(file: StoredFile) -> FrameIndex:
    """Return the index of a video file from the cache folder. If it is not there, take the one that
    is stored beside the dataset, or build it, and store it in the cache.

    Raises:
        DataError: See `build_index`.
    """
    place = _place(file)
    kept = load(place)
    if kept is not None:
        return _from_bundle(file, kept)
    index = _packed(file) or build_index(file)
    arrays, note = _to_bundle(index)

    def fill(put: Put) -> Note:
        for name, values in arrays.items():
            put(name, 0, values)
        return note

    try:
        save(place, {name: (values.dtype, values.shape) for name, values in arrays.items()}, fill)
    except OSError as error:
        say_unwritable(error)
    return index


def packed_bytes(index: FrameIndex) -> bytes:
    """Return an index as the bytes that are stored beside the dataset."""
    arrays, note = _to_bundle(index)
    return pack_index(arrays, note)


def _packed(file: StoredFile) -> FrameIndex | None:
    """Return the index that is stored beside the dataset, if it fits the file and this machine."""
    stamp = file.stamp()
    block = file.store.packed_index(file.name, stamp)
    found = None if block is None else unpack_index(block)
    if found is None:
        return None
    try:
        Codec(found.note["setup"][0], "r")
    except UnknownCodecError:
        return None  # made by an FFmpeg with other decoders
    names = ["pts", "offset", "size", "packet", "start"]
    arrays = dict(zip(names, _narrow(*map(found.arrays.__getitem__, names)), strict=True))
    return _from_bundle(file, ArrayFile(arrays, {**found.note, "identity": stamp.identity}))


def build_index(file: StoredFile) -> FrameIndex:
    """Index the packets of a video file without decoding them.

    Raises:
        DataError: The file is no video, is cut off, does not start with a keyframe or has several
            sets of coding parameters. Or its packets cannot be read without its container.
    """
    if file.path is not None:
        refuse_pointer(file.path)
    stamp = file.stamp()
    try:
        with file.open() as data, open_video(file.path or data) as container:
            if not container.streams.video:
                raise _damaged(file, "holds no video")
            stream = container.streams.video[0]
            # None where FFmpeg has no decoder; PyAV's stubs do not declare that.
            codec: Any = stream.codec_context
            if codec is None:
                raise _unknown(file)
            setup = (codec.codec.name, bytes(codec.extradata or b""), _colour(codec))
            shape = (codec.width, codec.height)
            tick_s = float(stream.time_base or 0)
            is_mp4 = "mp4" in container.format.name
            # An mp4 file is checked by its boxes, and its edit list may drop frames at either end,
            # so the count that it claims is of no use.
            claimed = 0 if is_mp4 else stream.frames
            # The header alone is much faster. Demuxing reads the whole file from the disk.
            table = _from_header(file, data, stamp.size) if is_mp4 else None
            if table is None:
                packets = list(_packets(file, container.demux(stream)))
                table = np.array(packets, dtype=np.int64).reshape(-1, 5)
    except (FFmpegError, OSError) as error:
        raise _damaged(file, f"cannot be read ({error})") from error
    pts, offset, size, key, hidden = table.T
    if len(table) < claimed or (offset + size).max(initial=0) > stamp.size:
        whole = int(((offset + size) <= stamp.size).sum())
        raise _damaged(file, f"is cut off: {whole} of {max(claimed, len(table))} frames are whole")
    # Presentation order; hidden packets are decoded, because others depend on them, but have no
    # frame number.
    shown = np.flatnonzero(hidden == 0)
    packet = shown[np.argsort(pts[shown], kind="stable")]
    if not len(packet):
        raise _damaged(file, "holds no frames")
    pts = pts - pts[packet[:1]]
    start = _starts(file, pts, np.flatnonzero(key), packet)
    if file.stamp().identity != stamp.identity:
        raise _damaged(file, "was written while it was read")
    return FrameIndex(
        file, stamp.identity, *shape, setup, tick_s, *_narrow(pts, offset, size, packet, start)
    )


def _from_header(file: StoredFile, data: BinaryIO, size: int) -> Int64 | None:
    """Return the frame table in the boxes of an mp4 file, or None if its packets must be read."""
    # FFmpeg may read the same file object, and expects it where it left it.
    place = data.tell()
    _check_length(file, data, size)
    table = read_sample_table(data, size)
    if table is None and count_setups(data) > 1:
        raise _damaged(file, "has several sets of coding parameters")
    data.seek(place)
    return table


def _packets(file: StoredFile, packets: Iterator[Any]) -> Iterator[tuple[int, int, int, int, int]]:
    """Yield (pts, offset, size, is key, is hidden) of every packet that FFmpeg's demuxer finds."""
    with file.open() as data:
        for packet in packets:
            if not packet.size:
                continue
            if packet.is_corrupt or packet.pos is None or packet.pos < 0:
                raise _damaged(file, "has a damaged packet")
            if packet.pts is None:
                raise _damaged(file, "has a frame without a time stamp")
            place = _payload(data, packet.pos, bytes(packet))
            if place is None:
                raise _damaged(file, "stores its packets in pieces or compressed")
            yield packet.pts, place, packet.size, packet.is_keyframe, packet.is_discard


def _payload(file: BinaryIO, near: int, data: bytes) -> int | None:
    """Return the position of a packet's bytes, or None if they are not stored in one piece.

    Matroska reports the position of the element around them, so they are searched from there on.
    """
    file.seek(near)
    found = file.read(len(data) + _ELEMENT_BYTES).find(data)
    return None if found < 0 else near + found


def _place(file: StoredFile) -> Path:
    """Return the path of the index in the cache, by the identity of the video.

    Another path to the same file finds the same index; another content does not.
    """
    size, version = file.stamp().identity
    name = file.name.rpartition("/")[2]
    digest = hashlib.sha256(json.dumps([_FORMAT, av.__version__, name, size, version]).encode())
    if file.path is not None:
        digest.update(file_ends(file.path, size))
    found = digest.hexdigest()[:32]
    return cache_folder() / "index" / found[:2] / f"{found[2:]}.bin"


def _narrow(*arrays: Int64) -> list[Int64]:
    """Return the arrays as 32-bit integers if all values and packet ends fit into that.

    This halves the index, and the time to read it.
    """
    pts, offset, size = arrays[:3]
    fits = (offset + size).max(initial=0) < 2**31 and np.abs(pts).max(initial=0) < 2**31
    if fits:
        return [array.astype(np.int32) for array in arrays]  # type: ignore
    return [np.ascontiguousarray(array) for array in arrays]


def _to_bundle(index: FrameIndex) -> tuple[dict[str, Int64], Note]:
    arrays = {name: array for name, array in vars(index).items() if name in _ARRAYS}
    codec, extradata, colour = index.setup
    setup = [codec, base64.b64encode(extradata).decode(), colour]
    note = {
        "identity": index.identity,
        "size": [index.width, index.height],
        "setup": setup,
        "tick_s": index.tick_s,
    }
    return arrays, note


def _from_bundle(file: StoredFile, kept: ArrayFile) -> FrameIndex:
    codec, extradata, colour = kept.note["setup"]
    size, version = kept.note["identity"]
    width, height = kept.note["size"]
    setup = (codec, base64.b64decode(extradata), tuple(colour))
    return FrameIndex(
        file, (size, version), width, height, setup, kept.note["tick_s"], **kept.arrays
    )


def _starts(file: StoredFile, pts: Int64, keys: Int64, packet: Int64) -> Int64:
    """Return for each frame the last key packet before it that is also shown before it.

    The leading frames of an open GOP are shown before their keyframe, so they are decoded from the
    GOP before.
    """
    # The last key packet before each frame in decoding order.
    place = np.searchsorted(keys, packet, side="right") - 1
    if (place < 0).any():
        raise _damaged(file, f"has {(place < 0).sum()} frames before its first keyframe")
    # One GOP back for leading frames; several where short open GOPs follow each other.
    early = (pts[keys[place]] > pts[packet]) & (place > 0)
    while early.any():
        place = place - early
        early = (pts[keys[place]] > pts[packet]) & (place > 0)
    return keys[place]


def _unknown(file: StoredFile) -> DataError:
    return DataError(
        f"{file} is in a codec that FFmpeg does not know",
        rule="PyAV has a decoder for every video of a dataset",
        remedy="download the file again, or encode it as h264 or AV1",
    )


def _colour(codec: Any) -> Colour:
    """Return the color tags of a stream, which a codec may leave to the container."""
    return codec.color_range, codec.colorspace, codec.color_primaries, codec.color_trc


def _damaged(file: StoredFile, what: str) -> DataError:
    return DataError(
        f"{file} {what}",
        rule="a complete video file",
        remedy="download the file again, or leave its episodes out with --dataset.exclude_episodes",
    )
