"""The arrays of a packet index as a short block of bytes: differences of neighbours, compressed.

A block takes about two bytes per frame, most of them for the sizes of packets.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Mapping

import numpy as np

from kata.data.arrays import Int64
from kata.data.storage.array_file import ArrayFile, Note

_HEAD = struct.Struct("<I")
_NAMES = ("offset", "size", "pts", "packet", "start")


def pack_index(arrays: Mapping[str, Int64], note: Note) -> bytes:
    """Return the arrays and the note of an index as bytes."""
    columns = {name: np.diff(arrays[name].astype(np.int64), prepend=0) for name in _NAMES[2:]}
    columns["size"] = arrays["size"].astype(np.int64)
    # Packets mostly lie one behind the other, so these gaps are zeros.
    offset = arrays["offset"].astype(np.int64)
    columns["offset"] = offset - np.append(0, (offset + columns["size"])[:-1])
    counts = [len(columns[name]) for name in _NAMES]
    text = json.dumps({"counts": counts, "note": note}).encode()
    parts = [_HEAD.pack(len(text)), text]
    for name in _NAMES:
        # Equal bytes side by side: the upper ones of small numbers are all zeros.
        parts.append(columns[name].astype("<i8").view(np.uint8).reshape(-1, 8).T.tobytes())
    return zlib.compress(b"".join(parts), 6)


def unpack_index(block: bytes) -> ArrayFile | None:
    """Return the arrays, as int64, and the note in a block; None if it is damaged."""
    try:
        data = zlib.decompress(block)
        (size,) = _HEAD.unpack_from(data)
        head = json.loads(data[_HEAD.size : _HEAD.size + size])
        columns: dict[str, Int64] = {}
        place = _HEAD.size + size
        for name, count in zip(_NAMES, head["counts"], strict=True):
            column = np.frombuffer(data, np.uint8, count * 8, place).reshape(8, count)
            numbers = np.ascontiguousarray(column.T).view("<i8").reshape(-1)
            columns[name] = numbers.astype(np.int64)
            place += count * 8
    except (zlib.error, struct.error, ValueError, KeyError):
        return None
    ends = np.append(0, columns["size"][:-1])
    arrays = {name: np.cumsum(columns[name]) for name in _NAMES[2:]}
    arrays |= {"size": columns["size"], "offset": np.cumsum(columns["offset"] + ends)}
    return ArrayFile(arrays, head["note"])
