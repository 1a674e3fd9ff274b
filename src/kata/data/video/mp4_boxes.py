"""The frame table of an mp4 file from its header alone: no packet is read, however large the file.

FFmpeg's demuxer parses the table (stsz, stco, stts, stss, edit lists) and hands it out in decoding order; what it
leaves out are the composition offsets (ISO/IEC 14496-12, 8.6.1.3), which are read here.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from kata.data.arrays import Int64


def frame_table(path: Path, stream: Any) -> Int64 | None:
    """(P, 5) presentation stamp, offset, size, keyframe, hidden of every packet; None where only reading the packets
    tells: fragmented files, edit lists that hide frames, several sets of parameters."""
    entries = stream.index_entries
    if not stream.frames or len(entries) != stream.frames:
        return None
    rows = [(e.timestamp, e.pos, e.size, e.is_keyframe, e.is_discard) for e in entries]
    table = np.array(rows, dtype=np.int64).reshape(-1, 5)
    offsets = _composition_offsets(path, len(table))
    if offsets is None or table[:, 4].any():
        return None
    table[:, 0] += offsets
    return table


def _composition_offsets(path: Path, count: int) -> Int64 | None:
    """Presentation minus decoding time per packet of the only video track; None where it cannot be told."""
    with path.open("rb") as file:
        moov = _read(file, b"moov")
    if moov is None or _find(moov, b"mvex") is not None:
        return None
    tables = [table for table in map(_sample_table, _all(moov, b"trak")) if table is not None]
    edits = [
        _find(_find(track, b"edts") or b"", b"elst") or bytes(8) for track in _all(moov, b"trak")
    ]
    if len(tables) != 1 or any(int.from_bytes(edit[4:8], "big") > 2 for edit in edits):
        return None
    described = _find(tables[0], b"stsd")
    if described is None or int.from_bytes(described[4:8], "big") != 1:
        return None
    found = _find(tables[0], b"ctts")
    if found is None:
        return np.zeros(count, np.int64)
    runs = np.frombuffer(found[8:], ">i4")[: 2 * int.from_bytes(found[4:8], "big")].reshape(-1, 2)
    offsets = np.repeat(runs[:, 1].astype(np.int64), runs[:, 0])
    return offsets if len(offsets) == count else None


def _sample_table(track: bytes) -> bytes | None:
    """The box stbl of a track, if that is a video track."""
    media = _find(track, b"mdia") or b""
    handler = _find(media, b"hdlr") or b""
    return _find(_find(media, b"minf") or b"", b"stbl") if handler[8:12] == b"vide" else None


def _all(box: bytes, kind: bytes) -> Iterator[bytes]:
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
    """The content of the first box of this kind at the top of the file."""
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
