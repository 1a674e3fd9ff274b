"""Packets of a video file, read into memory in the layout that FFmpeg's decoders expect."""

from __future__ import annotations

from typing import Any

import av

from kata.data.storage.file_stamp import Stamp
from kata.data.storage.store import StoredFile

PADDING_BYTES = 64
"""Zero bytes that must follow a packet in memory: FFmpeg's AV_INPUT_BUFFER_PADDING_SIZE."""

_GAP_BYTES = 1 << 16
"""Bytes between two packets that are read and dropped; a longer gap takes another system call."""

_DROPPED = memoryview(bytearray(_GAP_BYTES))
"""Receives the bytes of gaps. All threads write here and none reads."""

_MAX_PIECES = 1000
"""Buffers per read: preadv of Linux and macOS allows 1024."""


def read_packets(
    file: StoredFile, offsets: list[int], sizes: list[int], stamp: Stamp
) -> list[av.Packet]:
    """Read packets of a file into one buffer, each followed by FFmpeg's padding.

    Decoders read past the end of a packet: the one for MPEG-4 part 2 parses some bytes there as
    macroblocks, and then reports a sound picture as damaged. PyAV 15 and 16 copy and pad packets
    themselves; PyAV 17 and newer decode from the memory that they are given.

    Args:
        file: that holds them.
        offsets: (P,) position of each packet in the file, in bytes.
        sizes: (P,) bytes of each packet.
        stamp: of the file when it was indexed.

    Returns:
        (P,) packets without time stamps. They share one buffer, which lives as long as any of them.

    Raises:
        DataError: The file has changed since it was indexed, or cannot be read.
    """
    buffer = memoryview(bytearray(sum(sizes) + len(sizes) * PADDING_BYTES))
    views: list[Any] = []  # PyAV's stubs allow only bytes
    pieces: list[memoryview] = []
    begin = end = offsets[0]
    place = 0
    for offset, size in zip(offsets, sizes, strict=True):
        gap = offset - end
        if not 0 <= gap <= _GAP_BYTES or len(pieces) + 2 > _MAX_PIECES:
            file.read_into(begin, pieces, stamp)
            pieces = []
            begin = offset
            gap = 0
        if gap:
            pieces.append(_DROPPED[:gap])
        views.append(buffer[place : place + size])
        pieces.append(views[-1])
        end = offset + size
        place += size + PADDING_BYTES
    file.read_into(begin, pieces, stamp)
    return [av.Packet(view) for view in views]
