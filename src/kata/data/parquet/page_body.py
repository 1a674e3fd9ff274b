"""Plain bytes of parquet pages: left in the file where compression changed nothing, else in memory.

PNG and JPEG do not get smaller, and writers of image datasets put whole episodes into one page.
Snappy stores such bytes unchanged, in runs of up to 64 KiB. So one image can be read out of a
compressed page without the rest. Format: github.com/google/snappy, format_description.txt.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from typing import Protocol, TypeAlias

import pyarrow as pa

from kata.data.storage.file_stamp import Stamp
from kata.data.storage.store import StoredFile

_LOOK_BYTES = 2**20
"""Bytes read at a time in search of runs. All of a page is read, once. From a cold disk 75 MB take
0.05 s this way, and 0.1 s in reads of 4 KiB (one of every 64 KiB). The images that are wanted next
are then in the system's cache.
"""

_MIN_RUN_BYTES = 256
"""Runs shorter than that on average cost more to find and to join than to decompress."""

_BLOCK_BYTES = 2**16
"""Bytes that Snappy's encoders compress at a time."""

_FREE_RUNS = 64
"""Number of short runs that is accepted in any page: a few often stand at its beginning."""

_CODECS = {name: name.lower() for name in ("SNAPPY", "GZIP", "BROTLI", "ZSTD")} | {"LZ4": "lz4_raw"}
PLAIN = "UNCOMPRESSED"
CODECS = frozenset({PLAIN, *_CODECS})
"""Compressions that can be read, in pyarrow's names."""


Plain: TypeAlias = bytes | bytearray | memoryview
"""Bytes as they were written, before compression."""


class PageError(ValueError):
    """Bytes of a page contradict themselves, or are not there."""


class UnevenError(Exception):
    """A page that seemed to be stored in blocks of one size has others."""


class OpenFile:
    """A file that is read at given positions; `bytes_read` counts.

    Args:
        file: the file.
        stamp: of the file when its footer was read.
    """

    def __init__(self, file: StoredFile, stamp: Stamp) -> None:
        self._file, self._stamp = file, stamp
        self.bytes_read = 0

    @property
    def size(self) -> int:
        """Return the bytes of the file."""
        return self._stamp.size

    def read(self, begin: int, size: int) -> bytearray:
        """Read exactly `size` bytes at `begin`, or raise PageError."""
        there = max(self.size - begin, 0)
        if begin < 0 or size < 0 or size > there:
            raise PageError(f"{size} bytes are wanted at {begin}, and it has {min(there, size)}")
        self.bytes_read += size
        return self._file.read(begin, size, self._stamp)


class Body(Protocol):
    """The plain bytes of a page.

    Attributes:
        size: number of plain bytes.
        nbytes: memory that this object takes.
    """

    size: int
    nbytes: int

    def read(self, file: OpenFile, begin: int, end: int) -> Plain:
        """Return bytes `begin` to `end` of the body; `file` is the one that holds the page."""
        ...

    def peek(self, file: OpenFile, begin: int, end: int) -> Plain:
        """Return the same bytes from as few of the file's as possible, less checked."""
        ...

    def place(self, begin: int, end: int) -> tuple[int, int] | None:
        """Return the range of the file that `read` reads, or None if it reads none, or several."""
        ...


class InMemory:
    """A body that was decompressed into memory."""

    def __init__(self, plain: memoryview) -> None:
        self._plain = plain
        self.size = len(plain)
        self.nbytes = len(plain)

    def read(self, file: OpenFile, begin: int, end: int) -> memoryview:
        """Return a view of the bytes."""
        del file
        return self._plain[begin:end]

    def peek(self, file: OpenFile, begin: int, end: int) -> memoryview:
        """Return a view of the bytes."""
        return self.read(file, begin, end)

    def place(self, begin: int, end: int) -> None:
        """Return None: the bytes are here."""
        del begin, end


class InFile:
    """A body whose bytes are stored in the file, in runs.

    Args:
        starts: position of each run in the body.
        places: position of each run in the file.
        size: number of plain bytes.
    """

    def __init__(self, starts: array[int], places: array[int], size: int) -> None:
        self._starts = starts
        self._places = places
        self.size = size
        self.nbytes = 2 * len(starts) * starts.itemsize

    def read(self, file: OpenFile, begin: int, end: int) -> Plain:
        """Read the bytes from the file, run by run."""
        starts, parts = self._starts, list[bytearray]()
        run = bisect_right(starts, begin) - 1
        while begin < end:
            stop = min(starts[run + 1], end) if run + 1 < len(starts) else end
            parts.append(file.read(self._places[run] + begin - starts[run], stop - begin))
            begin, run = stop, run + 1
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def peek(self, file: OpenFile, begin: int, end: int) -> Plain:
        """Read the bytes from the file."""
        return self.read(file, begin, end)

    def place(self, begin: int, end: int) -> tuple[int, int] | None:
        """Return the range of the file with the bytes, or None if they are not close together."""
        first = bisect_right(self._starts, begin) - 1
        last = bisect_right(self._starts, end - 1) - 1
        at = self._places[first] + begin - self._starts[first]
        stop = self._places[last] + end - self._starts[last]
        is_close = 0 <= stop - at <= 2 * (end - begin) + _LOOK_BYTES
        return (at, stop) if is_close else None


class InBlocks:
    """A body that Snappy stored unchanged in blocks of 64 KiB, so that places follow from numbers.

    Nothing is read to find a place. The tag before each block of which something is read is
    compared, once; where it is another one, UnevenError is raised.

    Args:
        begin: position of the first tag in the file.
        size: number of plain bytes.
    """

    def __init__(self, begin: int, size: int) -> None:
        self._begin = begin
        self.size = size
        blocks = -(-size // _BLOCK_BYTES)
        self._is_checked = bytearray(blocks)
        self._whole, self._last = _tag(_BLOCK_BYTES), _tag(size - (blocks - 1) * _BLOCK_BYTES)
        self._stored = _BLOCK_BYTES + len(self._whole)
        self.nbytes = blocks

    @staticmethod
    def of(begin: int, size: int, plain_size: int) -> InBlocks | None:
        """Return the body of a snappy stream, or None if its size shows that some block shrank.

        Args:
            begin: position of the stream in the file.
            size: bytes of the stream.
            plain_size: bytes after decompression.
        """
        # The stream begins with the number of plain bytes, seven bits in each byte.
        head = max(-(-plain_size.bit_length() // 7), 1)
        body = InBlocks(begin + head, plain_size) if plain_size else None
        is_even = body is not None and body.place(0, plain_size)[1] == begin + size
        return body if is_even else None

    def peek(self, file: OpenFile, begin: int, end: int) -> bytes:
        """Return bytes of the body; the tag of the first block is not compared."""
        return self._read(file, begin, end, self._at(begin))

    def read(self, file: OpenFile, begin: int, end: int) -> bytes:
        """Return bytes of the body.

        Raises:
            UnevenError: A tag is another one than expected.
        """
        return self._read(file, begin, end, self.place(begin, end)[0]) if begin < end else b""

    def place(self, begin: int, end: int) -> tuple[int, int]:
        """Return the range of the file that `read` reads: from a tag on that was not compared."""
        block = begin // _BLOCK_BYTES
        first = self._at(begin) if self._is_checked[block] else self._begin + block * self._stored
        return first, self._at(end - 1) + 1

    def _tag_of(self, block: int) -> bytes:
        return self._last if block == len(self._is_checked) - 1 else self._whole

    def _at(self, place: int) -> int:
        block, within = divmod(place, _BLOCK_BYTES)
        return self._begin + block * self._stored + len(self._tag_of(block)) + within

    def _read(self, file: OpenFile, begin: int, end: int, first: int) -> bytes:
        data = memoryview(file.read(first, self._at(end - 1) + 1 - first))
        parts: list[memoryview] = []
        for block in range(begin // _BLOCK_BYTES, (end - 1) // _BLOCK_BYTES + 1):
            at = self._begin + block * self._stored - first
            if at >= 0:
                self._check(block, data[at:])
            start = max(begin, block * _BLOCK_BYTES)
            stop = min(end, (block + 1) * _BLOCK_BYTES)
            parts.append(data[self._at(start) - first : self._at(stop - 1) + 1 - first])
        return b"".join(parts)

    def _check(self, block: int, data: memoryview) -> None:
        tag = self._tag_of(block)
        if bytes(data[: len(tag)]) != tag:
            raise UnevenError(f"block {block} of a page is not stored as it is")
        self._is_checked[block] = 1


def _tag(length: int) -> bytes:
    """Return what Snappy writes before a literal of 1 to 65536 bytes."""
    if length <= 60:
        return bytes([length - 1 << 2])
    if length <= 256:
        return bytes([60 << 2, length - 1])
    return bytes([61 << 2]) + (length - 1).to_bytes(2, "little")


def sparse_body(begin: int, size: int, plain_size: int, codec: str) -> Body | None:
    """Return the body of a page whose bytes can be found without reading it, else None.

    Args:
        begin: position of the page's bytes.
        size: number of stored bytes.
        plain_size: number of bytes after decompression.
        codec: name of the compression, one of CODECS.
    """
    if codec == "SNAPPY":
        return InBlocks.of(begin, size, plain_size)
    is_plain = codec == PLAIN and size == plain_size > 0
    return InFile(array("q", [0]), array("q", [begin]), plain_size) if is_plain else None


def open_body(file: OpenFile, begin: int, size: int, plain_size: int, codec: str) -> Body:
    """Return the body of a page.

    Args:
        file: that holds the page.
        begin: position of the page's bytes.
        size: number of stored bytes.
        plain_size: number of bytes after decompression.
        codec: name of the compression, one of CODECS.

    Raises:
        PageError: The page does not decompress to `plain_size` bytes.
    """
    # Uncompressed pages, and runs that snappy left unchanged, need no memory.
    if codec == PLAIN and size != plain_size:
        raise PageError(f"a page of {plain_size} bytes that are not compressed takes {size}")
    if codec == PLAIN or not plain_size:
        return InFile(array("q", [0]), array("q", [begin]), plain_size)
    in_file = _runs(file, begin, size, plain_size) if codec == "SNAPPY" else None
    if in_file is not None:
        return in_file
    try:
        plain = pa.decompress(
            file.read(begin, size), decompressed_size=plain_size, codec=_CODECS[codec]
        )
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        raise PageError(f"a page does not decompress ({error})") from error
    return InMemory(memoryview(plain))


def _runs(file: OpenFile, begin: int, size: int, plain_size: int) -> InFile | None:
    """Return the runs of unchanged bytes in a snappy stream, or None if they are too short.

    A copy element of the stream repeats earlier output. It becomes further runs, which point to the
    places in the file that this output came from.
    """
    starts, places = array("q"), array("q")
    end, at = begin + size, begin
    seen, seen_at = bytearray(), begin

    def look(num_bytes: int) -> bytearray:
        """Return the next `num_bytes` bytes of the stream, padded with zeros at its end."""
        nonlocal seen, seen_at
        if at + num_bytes > seen_at + len(seen):
            left = max(min(_LOOK_BYTES, end - at), 0)
            seen, seen_at = file.read(at, left).ljust(num_bytes, b"\0"), at
        return seen[at - seen_at : at - seen_at + num_bytes]

    # 1. The stream begins with the number of plain bytes.
    stated, length = varint(look(10) + b"\0", 0)
    if stated != plain_size:
        raise PageError(
            f"a page should hold {plain_size} bytes, and its snappy stream says {stated}"
        )
    at, made = at + length, 0
    while at < end:
        tag, *rest = look(5)
        kind = tag & 3
        if kind == 0:
            # 2. A literal: its length less 1 stands in the tag's upper six bits. From 60 on these
            #    say in how many bytes it follows. The literal's bytes are a run.
            wide = max((tag >> 2) - 59, 0)
            at += 1 + wide
            length = 1 + (int.from_bytes(rest[:wide], "little") if wide else tag >> 2)
            starts.append(made)
            places.append(at)
            at, made = at + length, made + length
        else:
            # 3. A copy of `length` earlier bytes, with an offset of 1, 2 or 4 bytes. The kind of
            #    1 byte holds three more bits of the offset, and a length from 4 on, in its tag.
            wide = (0, 1, 2, 4)[kind]
            at += 1 + wide
            back = int.from_bytes(rest[:wide], "little")
            length = 1 + (tag >> 2)
            if kind == 1:
                back += tag >> 5 << 8
                length = 4 + (tag >> 2 & 7)
            _repeat(starts, places, made, back, length)
            made += length
        # 4. Give up early where the page did compress: then to decompress it is cheaper.
        if len(starts) > _FREE_RUNS + made // _MIN_RUN_BYTES:
            return None
    if (at, made) != (end, plain_size):
        raise PageError(f"a page should hold {plain_size} bytes, and its snappy stream has {made}")
    return InFile(starts, places, plain_size)


def _repeat(starts: array[int], places: array[int], made: int, back: int, length: int) -> None:
    """Add runs for `length` bytes that repeat those `back` bytes before; the two may overlap."""
    if not 0 < back <= made:
        raise PageError(f"a snappy stream points {back} bytes back after {made}")
    source, end = made - back, made + length
    while made < end:
        run = bisect_right(starts, source) - 1
        stop = starts[run + 1] if run + 1 < len(starts) else made
        starts.append(made)
        places.append(places[run] + source - starts[run])
        # An overlapping copy reads runs that this loop added, as in run-length encoding.
        took = min(stop - source, end - made)
        made, source = made + took, source + took


def varint(data: Plain, at: int) -> tuple[int, int]:
    """Read a number of seven bits per byte, lowest first.

    Returns:
        The number, and the position after it.

    Raises:
        IndexError: The bytes end before the number does.
    """
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        shift += 7
        if byte < 128:
            return value, at
