"""Plain bytes of parquet pages: left in the file where a compressor found nothing to shorten, else
in memory.

PNG and JPEG do not get smaller, and writers of image datasets put whole episodes into one page.
Snappy stores such bytes as they are, in runs of up to 64 KiB, so an image can be read out of a
compressed page without the rest. Format: github.com/google/snappy, format_description.txt.
"""

from __future__ import annotations

import os
from array import array
from bisect import bisect_right
from pathlib import Path
from types import TracebackType
from typing import Protocol

import pyarrow as pa

_LOOK_BYTES = 2**20
"""Read at a time while looking for runs. All of a page goes by, once: from a cold disk 75 MB take
0.05 s so, 0.1 s in pieces of 4 KiB (one in 64 KiB is looked at), and the images wanted next are
then in the system's cache.
"""

_MIN_RUN_BYTES = 256
"""Runs shorter than that on average cost more to find and to join than to decompress."""

_FREE_RUNS = 64
"""Short runs that are no reason to give up, as at the beginning of a page."""

_CODECS = {name: name.lower() for name in ("SNAPPY", "GZIP", "BROTLI", "ZSTD")} | {"LZ4": "lz4_raw"}
PLAIN = "UNCOMPRESSED"
CODECS = frozenset({PLAIN, *_CODECS})
"""What can be decompressed, in pyarrow's names."""


class PageError(ValueError):
    """Bytes of a page contradict themselves, or are not there."""


class OpenFile:
    """A file to read at places; `bytes_read` counts."""

    def __init__(self, path: Path) -> None:
        self._file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        self.bytes_read = 0

    def __enter__(self) -> OpenFile:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        os.close(self._file)

    def stat(self) -> os.stat_result:
        """Of the file that is open."""
        return os.fstat(self._file)

    def read(self, begin: int, size: int) -> bytes:
        """Exactly so many bytes."""
        found = os.pread(self._file, size, begin)
        self.bytes_read += len(found)
        if len(found) != size:
            raise PageError(f"{size} bytes are wanted at {begin}, and it has {len(found)}")
        return found


class Body(Protocol):
    """The plain bytes of a page.

    size: of them all. nbytes: memory that this takes.
    """

    size: int
    nbytes: int

    def read(self, file: OpenFile, begin: int, end: int) -> bytes | memoryview:
        """Bytes `begin` to `end`, which lie within; `file` is the one that holds the page."""
        ...


class InMemory:
    """A body that was decompressed."""

    def __init__(self, plain: memoryview) -> None:
        self._plain, self.size, self.nbytes = plain, len(plain), len(plain)

    def read(self, file: OpenFile, begin: int, end: int) -> memoryview:
        """A view."""
        del file
        return self._plain[begin:end]


class InFile:
    """A body whose bytes stand in the file, in runs: run k begins at `starts[k]` of it, and
    `places[k]` of the file.
    """

    def __init__(self, starts: array[int], places: array[int], size: int) -> None:
        self._starts, self._places, self.size = starts, places, size
        self.nbytes = 2 * len(starts) * starts.itemsize

    def read(self, file: OpenFile, begin: int, end: int) -> bytes:
        """Read from the file, run by run."""
        starts, parts = self._starts, list[bytes]()
        run = bisect_right(starts, begin) - 1
        while begin < end:
            stop = min(starts[run + 1], end) if run + 1 < len(starts) else end
            parts.append(file.read(self._places[run] + begin - starts[run], stop - begin))
            begin, run = stop, run + 1
        return parts[0] if len(parts) == 1 else b"".join(parts)


def open_body(file: OpenFile, begin: int, size: int, plain_size: int, codec: str) -> Body:
    """The body of `size` bytes at `begin`, which hold `plain_size` bytes.

    Raises: PageError.
    """
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
    except (pa.ArrowInvalid, OSError) as error:
        raise PageError(f"a page does not decompress ({error})") from error
    return InMemory(memoryview(plain))


def _runs(file: OpenFile, begin: int, size: int, plain_size: int) -> InFile | None:
    """Where the bytes of a snappy stream stand in it; None where the runs are short."""
    starts, places = array("q"), array("q")
    end, at = begin + size, begin
    seen, seen_at = b"", begin

    def look(num_bytes: int) -> bytes:
        """The next so many bytes, or what is left of the stream, padded with zeros."""
        nonlocal seen, seen_at
        if at + num_bytes > seen_at + len(seen):
            seen, seen_at = (
                file.read(at, max(min(_LOOK_BYTES, end - at), 0)).ljust(num_bytes, b"\0"),
                at,
            )
        return seen[at - seen_at : at - seen_at + num_bytes]

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
            wide = max((tag >> 2) - 59, 0)
            at += 1 + wide
            length = 1 + (int.from_bytes(rest[:wide], "little") if wide else tag >> 2)
            starts.append(made)
            places.append(at)
            at, made = at + length, made + length
        else:
            wide = (0, 1, 2, 4)[kind]
            at += 1 + wide
            length = 4 + (tag >> 2 & 7) if kind == 1 else 1 + (tag >> 2)
            back = int.from_bytes(rest[:wide], "little") + ((tag >> 5 << 8) if kind == 1 else 0)
            _repeat(starts, places, made, back, length)
            made += length
        if len(starts) > _FREE_RUNS + made // _MIN_RUN_BYTES:
            return None
    if (at, made) != (end, plain_size):
        raise PageError(f"a page should hold {plain_size} bytes, and its snappy stream has {made}")
    return InFile(starts, places, plain_size)


def _repeat(starts: array[int], places: array[int], made: int, back: int, length: int) -> None:
    """Add runs for `length` bytes that equal those `back` bytes before; the two may overlap."""
    if not 0 < back <= made:
        raise PageError(f"a snappy stream points {back} bytes back after {made}")
    source, end = made - back, made + length
    while made < end:
        run = bisect_right(starts, source) - 1
        stop = starts[run + 1] if run + 1 < len(starts) else made
        starts.append(made)
        places.append(places[run] + source - starts[run])
        took = min(stop - source, end - made)
        made, source = made + took, source + took


def varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of seven bits per byte, lowest first, and the place after it.

    Raises: IndexError when the bytes end before it does.
    """
    value = shift = 0
    while True:
        byte = data[at]
        at, value, shift = at + 1, value | (byte & 127) << shift, shift + 7
        if byte < 128:
            return value, at
