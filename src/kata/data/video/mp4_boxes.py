"""The frame table of an mp4 file, read from its header alone: no packet is read.

The boxes are those of ISO/IEC 14496-12, section 8. Where a table needs interpretation, None is
returned and FFmpeg's demuxer reads the file.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from kata.data.arrays import Int64

_CTTS_MAX = 1 << 28
"""FFmpeg treats larger composition offsets as damage."""


def read_sample_table(file: BinaryIO, file_bytes: int) -> Int64 | None:
    """Return the frame table of the only video track of an mp4 file.

    Args:
        file: open for reading.
        file_bytes: size of the file.

    Returns:
        (P, 5) int64: presentation time stamp, offset and size in bytes, is key, is hidden, for
        every packet in decoding order. None where only the packets have this: fragmented files,
        edit lists that hide frames, several sets of coding parameters.
    """
    moov = _read(file, b"moov")
    if moov is None or _find(moov, b"mvex") is not None:
        return None
    tracks = [track for track in _all(moov, b"trak") if _is_video(track)]
    if len(tracks) != 1:
        return None
    try:
        return _samples(tracks[0], _time_scale(_need(moov, b"mvhd")), file_bytes)
    except ValueError:
        return None


def count_setups(file: BinaryIO) -> int:
    """Return the largest number of sets of coding parameters that a video track declares."""
    moov = _read(file, b"moov") or b""
    counts = [0]
    for track in _all(moov, b"trak"):
        if _is_video(track):
            media = _find(_find(track, b"mdia") or b"", b"minf") or b""
            counts.append(_count(_find(_find(media, b"stbl") or b"", b"stsd") or b""))
    return max(counts)


def _samples(track: bytes, movie_scale: int, file_bytes: int) -> Int64 | None:
    """Return the frame table of a track, or None if its packets must be read for it.

    Raises:
        ValueError: Boxes are absent, cut off or contradict one another.
    """
    # 1. Leave to FFmpeg what needs judgement: several sets of parameters, partial sync samples, and
    #    random access points that are not sync samples.
    media = _need(track, b"mdia")
    boxes = _need(_need(media, b"minf"), b"stbl")
    one_setup = _count(_need(boxes, b"stsd")) == 1
    grouped = any(box[4:8] == b"rap " for box in _all(boxes, b"sbgp"))
    if not one_setup or grouped or _find(boxes, b"stps") is not None:
        return None
    # 2. Time stamps: the sum of the durations before a sample, plus its composition offset. By that
    #    B-frames are shown later than they are decoded.
    size = _sizes(_need(boxes, b"stsz"), file_bytes)
    duration = _runs(_need(boxes, b"stts"), len(size))
    composed = _find(boxes, b"ctts")
    ahead = np.zeros_like(size) if composed is None else _runs(composed, len(size))
    if not size.all() or (duration < 0).any() or np.abs(ahead).max(initial=0) > _CTTS_MAX:
        return None
    pts = np.cumsum(duration) - duration + ahead
    # 3. An edit list that hides frames is left to FFmpeg as well.
    edits = _find(_find(track, b"edts") or b"", b"elst")
    if edits is not None and not _shows_all(
        edits, pts, _time_scale(_need(media, b"mdhd")), movie_scale
    ):
        return None
    return np.stack(
        [pts, _offsets(boxes, size), size, _keys(boxes, len(size)), np.zeros_like(size)], axis=1
    )


def _sizes(box: bytes, file_bytes: int) -> Int64:
    """Return the bytes of each sample, from stsz."""
    same = int(_words(box, 4, 1)[0])
    count = int(_words(box, 8, 1)[0])
    if not count or same * count > file_bytes:
        raise ValueError
    return np.full(count, same, np.int64) if same else _words(box, 12, count)


def _offsets(boxes: bytes, size: Int64) -> Int64:
    """Return the position of each sample in the file; the samples of a chunk are contiguous."""
    short, long = _find(boxes, b"stco"), _find(boxes, b"co64")
    if short is not None:
        chunk = _words(short, 8, _count(short))
    else:
        chunk = _words(long or b"", 8, _count(long or b""), ">i8")
    # stsc holds runs: from chunk `first` (counted from 1) on, each chunk has `samples` samples.
    spread = _need(boxes, b"stsc")
    first, samples, _ = _words(spread, 8, 3 * _count(spread)).reshape(-1, 3).T
    per_chunk = np.repeat(samples, np.diff(first, append=len(chunk) + 1))
    if len(per_chunk) != len(chunk) or per_chunk.sum() != len(size):
        raise ValueError
    # The chunk's position plus the bytes of the chunk's samples before this one.
    before = np.cumsum(size) - size
    first_of_chunk = np.repeat(np.cumsum(per_chunk) - per_chunk, per_chunk)
    return np.repeat(chunk, per_chunk) + before - before[first_of_chunk]


def _keys(boxes: bytes, count: int) -> Int64:
    """Return 1 for samples that decoding may begin with, from stss; without that box all are."""
    box = _find(boxes, b"stss")
    if box is None:
        return np.ones(count, np.int64)
    numbers = _words(box, 8, _count(box))
    if not len(numbers) or numbers.min() < 1 or numbers.max() > count:
        raise ValueError
    keys = np.zeros(count, np.int64)
    keys[numbers - 1] = 1
    return keys


def _runs(box: bytes, count: int) -> Int64:
    """Expand the run lengths of stts or ctts to one value per sample."""
    lengths, values = _words(box, 8, 2 * _count(box), ">i4").reshape(-1, 2).T
    if (lengths < 0).any() or lengths.sum() != count:
        raise ValueError
    return np.repeat(values, lengths)


def _shows_all(edits: bytes, pts: Int64, scale: int, movie_scale: int) -> bool:
    """Return whether an edit list shows every frame, perhaps after an empty edit."""
    wide = edits[:1] == b"\1"
    kind = np.dtype(
        [
            ("duration", ">u8" if wide else ">u4"),
            ("begin", ">i8" if wide else ">i4"),
            ("rate", ">i4"),
        ]
    )
    # An edit that begins at -1 is empty: a pause before the first frame.
    every = np.frombuffer(edits, kind, _count(edits), 8)
    shown = [(int(edit["duration"]), int(edit["begin"])) for edit in every if edit["begin"] >= 0]
    if len(shown) != 1 or every["begin"][-1] < 0 or len(every) > 2:
        return False
    duration, begin = shown[0]
    end = begin + (duration * scale + movie_scale // 2) // movie_scale
    return bool(pts.min() >= begin and pts.max() < end)


def _is_video(track: bytes) -> bool:
    handler = _find(_find(track, b"mdia") or b"", b"hdlr") or b""
    return handler[8:12] == b"vide"


def _time_scale(box: bytes) -> int:
    """Return the units per second, from mvhd or mdhd."""
    scale = int(_words(box, 20 if box[:1] == b"\1" else 12, 1)[0])
    if not scale:
        raise ValueError
    return scale


def _count(box: bytes) -> int:
    """Return the number of entries that a box with version and flags claims to hold."""
    return int.from_bytes(box[4:8], "big")


def _words(box: bytes, begin: int, count: int, kind: str = ">u4") -> Int64:
    """Return `count` integers of a box from byte `begin` on; ValueError if it is too short."""
    words: NDArray[np.integer] = np.frombuffer(box, kind, count, begin)
    return words.astype(np.int64)


def _need(box: bytes, kind: bytes) -> bytes:
    """Return the content of a box within another; ValueError if there is none."""
    found = _find(box, kind)
    if found is None:
        raise ValueError
    return found


def _all(box: bytes, kind: bytes) -> Iterator[bytes]:
    """Yield the contents of all boxes of one kind at the top level of a box."""
    place = 0
    while place + 8 <= len(box):
        length = int.from_bytes(box[place : place + 4], "big")
        if length < 8:
            return
        if box[place + 4 : place + 8] == kind:
            yield box[place + 8 : place + length]
        place += length


def _find(box: bytes, kind: bytes) -> bytes | None:
    return next(_all(box, kind), None)


def _read(file: BinaryIO, kind: bytes) -> bytes | None:
    """Return the content of the first box of this kind at the top level of the file."""
    file.seek(0)
    while len(head := file.read(16)) >= 8:
        length, skip = int.from_bytes(head[:4], "big"), 8
        if length == 1:
            length, skip = int.from_bytes(head[8:16], "big"), 16
        if length < skip:
            return None
        file.seek(skip - len(head), 1)
        if head[4:8] == kind:
            return file.read(length - skip)
        file.seek(length - skip, 1)
    return None
