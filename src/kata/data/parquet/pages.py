"""Byte strings of a parquet column, read one by one at positions from the headers of its pages.

pyarrow reads only whole row groups. Known here are PLAIN and dictionaries, with and without nulls,
and both versions of data pages; others raise UnknownPageError. Checksums are not verified. Format:
github.com/apache/parquet-format (README.md, Encodings.md).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kata.data.parquet.page_body import (
    CODECS,
    Body,
    OpenFile,
    PageError,
    Plain,
    open_body,
    sparse_body,
    varint,
)
from kata.data.parquet.page_header import Page, UnknownPageError, read_page
from kata.data.parquet.string_walk import Span, walk

_PAGE_BYTES = 400
"""Estimated memory of the Python objects of a page."""

SMALL_BYTES = 64 * 1024
"""Bytes that are read with one request rather than with several. Strings that take fewer on average
are read with their page.
"""


class SideBySide(Protocol):
    """A map whose calls run side by side, as those of an executor do."""

    def __call__(
        self, function: Callable[[Span], Plain], items: Sequence[Span], /
    ) -> Iterable[Plain]:
        """Return the results in order."""
        ...


class WholePageError(Exception):
    """A page that is to be read whole, though it is far."""


@dataclass(frozen=True)
class Chunk:
    """One column of one row group.

    Attributes:
        begin: position of its first page in the file.
        size: bytes of all its pages.
        rows: number of cells.
        level: the definition level of a cell that is not null; 0 if no cell may be null.
        codec: name of the compression.
    """

    begin: int
    size: int
    rows: int
    level: int
    codec: str


@dataclass(frozen=True)
class Pages:
    """The pages of a chunk.

    Attributes:
        level: see Chunk.
        first: the first cell of each data page.
        data: the data pages.
        dictionary: the page of the values that data pages refer to, if there is one.
    """

    level: int
    first: array[int]
    data: tuple[Page, ...]
    dictionary: Page | None

    @property
    def nbytes(self) -> int:
        """Return the bytes of memory that this takes."""
        return (len(self.data) + 1) * _PAGE_BYTES


class Strings:
    """Byte strings one after the other in a body, each after its length in 4 bytes.

    Args:
        body: the plain bytes of the page.
        begins: position of each length in the body, and of the end of the last string.
    """

    def __init__(self, body: Body, begins: array[int]) -> None:
        self._body, self._begins = body, begins
        self.nbytes = body.nbytes + 8 * len(begins)

    @staticmethod
    def of(file: OpenFile, body: Body, begin: int, count: int) -> Strings:
        """Return the strings of a page that begin at a position of its body.

        Raises:
            PageError: The page has fewer.
        """
        begins = array("q", [begin])
        # The lengths are a chain, so every one must be read once to know where the next one is.
        for _ in range(count):
            if begin + 4 <= body.size:
                begin += 4 + int.from_bytes(body.read(file, begin, begin + 4), "little")
            if begin > body.size or begin == begins[-1]:
                raise PageError(
                    f"a page should have {count} values, and its {body.size} bytes have fewer"
                )
            begins.append(begin)
        return Strings(body, begins)

    def read(self, file: OpenFile, number: int) -> Plain:
        """Return one of the strings."""
        if not 0 <= number < len(self._begins) - 1:
            raise PageError(f"value {number} is wanted of {len(self._begins) - 1}")
        return self._body.read(file, self._begins[number] + 4, self._begins[number + 1])

    def place(self, number: int) -> tuple[int, int] | None:
        """Return the range of the file that holds one of the strings; see `Body.place`."""
        return self._body.place(self._begins[number] + 4, self._begins[number + 1])


@dataclass(frozen=True)
class Cells:
    """The cells of a data page.

    Attributes:
        numbers: (rows,) int32, the number of each cell's value in `strings`; -1 for null.
        strings: the values; None if the numbers are those of the dictionary.
    """

    numbers: NDArray[np.int32]
    strings: Strings | None

    @property
    def nbytes(self) -> int:
        """Return the bytes of memory that this takes."""
        return self.numbers.nbytes + (0 if self.strings is None else self.strings.nbytes)


def find_chunk(meta: pq.FileMetaData, group: int, leaf: int) -> Chunk:
    """Return the position of column `leaf` in a row group.

    Raises:
        UnknownPageError: Its cells are lists, its compression is unknown, or it is stored in
            another file.
    """
    column, kind = meta.row_group(group).column(leaf), meta.schema.column(leaf)
    if kind.max_repetition_level:
        raise UnknownPageError("its cells are lists")
    if column.compression not in CODECS:
        raise UnknownPageError(f"its compression is {column.compression}")
    if column.file_path:
        raise UnknownPageError(f"it lies in another file ({column.file_path})")
    begin = min(column.dictionary_page_offset or column.data_page_offset, column.data_page_offset)
    rows = meta.row_group(group).num_rows
    size = column.total_compressed_size
    return Chunk(begin, size, rows, kind.max_definition_level, column.compression)


def find_pages(file: OpenFile, chunk: Chunk) -> Pages:
    """Read the headers of a chunk's pages.

    Raises:
        UnknownPageError: A page is of a kind that is not read here.
        PageError: A header is damaged, or the pages do not hold the row group's rows.
    """
    at = chunk.begin
    last = file.size
    rows = 0
    first = array("q")
    data: list[Page] = []
    dictionary: Page | None = None
    # The footer's page index is optional and many writers omit it, so the headers are walked. That
    # costs one small read per page, once per row group.
    while rows < chunk.rows:
        page = read_page(file, at, last, chunk.codec, has_levels=chunk.level > 0)
        at = page.begin + page.size
        if page.is_dictionary:
            dictionary = page
            continue
        first.append(rows)
        data.append(page)
        rows += page.rows
    if rows != chunk.rows or any(page.rows < 0 for page in data):
        raise PageError(f"its pages have {rows} rows, and its row group has {chunk.rows}")
    return Pages(chunk.level, first, tuple(data), dictionary)


def first_string(file: OpenFile, chunk: Chunk) -> bytes | None:
    """Return how the first string of a chunk begins, up to `SMALL_BYTES` of it, by two reads.

    Returns:
        None where more reads would be needed, and for a first page without strings.

    Raises:
        UnknownPageError, PageError: As `find_pages` does.
        UnevenError: The page is not stored as it seems to be.
    """
    page = read_page(file, chunk.begin, file.size, chunk.codec, has_levels=chunk.level > 0)
    body = sparse_body(page.begin, page.size, page.plain_size, page.codec)
    if body is None or page.refers:
        return None
    head = bytes(body.read(file, 0, min(SMALL_BYTES, body.size)))
    has_levels_inside = chunk.level > 0 and not page.is_dictionary and page.level_size is None
    begin = 4 + int.from_bytes(head[:4], "little") if has_levels_inside else 0
    length = int.from_bytes(head[begin : begin + 4], "little")
    return head[begin + 4 : begin + 4 + length] or None


def find_cell(pages: Pages, row: int) -> tuple[int, int]:
    """Return the number of the data page that holds a row, and the cell's number in that page."""
    number = bisect_right(pages.first, row) - 1
    return number, row - pages.first[number]


def read_cells(
    file: OpenFile, pages: Pages, number: int, requests: SideBySide | None = None
) -> Cells:
    """Read which value each cell of a data page has.

    Args:
        file: that holds the page.
        pages: the pages.
        number: of the data page.
        requests: to read little of a file that is far; without it a page is read whole.

    Raises:
        PageError: The page is damaged.
        WholePageError: It cannot be read with few requests.
    """
    # 1. Definition levels tell which cells are null; null cells have no value in the page.
    page = pages.data[number]
    body = _opened(file, page, requests)
    is_there, begin = np.ones(page.rows, np.bool_), 0
    if pages.level:
        if page.level_size is None:
            levels, begin = _levels_of(file, body)
        else:
            levels = file.read(page.begin - page.level_size, page.level_size)
        is_there = hybrid(levels, pages.level.bit_length(), page.rows) == pages.level
    # 2. The values themselves, numbered in their order, or the numbers of dictionary values.
    numbers, count = np.full(page.rows, -1, np.int32), int(is_there.sum())
    if not page.refers:
        numbers[is_there] = np.arange(count)
        return Cells(numbers, _strings(file, body, begin, count, requests))
    if count:
        # The first byte is the width of a number in bits.
        indices = bytes(body.read(file, begin, body.size))
        numbers[is_there] = hybrid(indices[1:], indices[0] if indices else 0, count)
    return Cells(numbers, None)


def read_dictionary(file: OpenFile, pages: Pages, requests: SideBySide | None = None) -> Strings:
    """Return the values that data pages refer to; `requests` are those of `read_cells`.

    Raises:
        PageError: There is no dictionary, or it is damaged.
        WholePageError: It cannot be read with few requests.
    """
    page = pages.dictionary
    if page is None:
        raise PageError("its pages refer to a dictionary that it does not have")
    return _strings(file, _opened(file, page, requests), 0, page.rows, requests)


def _opened(file: OpenFile, page: Page, requests: SideBySide | None) -> Body:
    """Return the body of a page; with `requests`, no large page is read for it."""
    if requests is not None and page.size > SMALL_BYTES:
        body = sparse_body(page.begin, page.size, page.plain_size, page.codec)
        if body is None:
            raise WholePageError
        return body
    return open_body(file, page.begin, page.size, page.plain_size, page.codec)


def _strings(
    file: OpenFile, body: Body, begin: int, count: int, requests: SideBySide | None
) -> Strings:
    """Return the strings of a page; with `requests`, their lengths are read without the rest."""
    if requests is None or body.size <= SMALL_BYTES:
        return Strings.of(file, body, begin, count)
    if body.size - begin < count * SMALL_BYTES:
        raise WholePageError

    def gather(spans: Sequence[Span]) -> list[bytes]:
        return list(map(bytes, requests(lambda span: body.peek(file, *span), spans)))

    begins = walk(gather, begin, body.size, count)
    if begins is None:
        raise WholePageError
    return Strings(body, begins)


def _levels_of(file: OpenFile, body: Body) -> tuple[bytes, int]:
    """Return the definition levels at the beginning of a body, and the position after them."""
    end = 4 + int.from_bytes(body.read(file, 0, min(4, body.size)), "little")
    if end > body.size:
        raise PageError(
            f"a page of {body.size} bytes should begin with {end} bytes of definition levels"
        )
    return bytes(body.read(file, 4, end)), end


def hybrid(data: bytes | bytearray, width: int, count: int) -> NDArray[np.int32]:
    """Decode parquet's hybrid of run-length encoding and bit packing.

    Args:
        data: the encoded bytes.
        width: bits of each number.
        count: of the numbers.

    Returns:
        (count,) int32.

    Raises:
        PageError: The bytes hold fewer numbers.
    """
    if not width:
        return np.zeros(count, np.int32)
    runs: list[NDArray[np.int32]] = []
    at = 0
    left = count
    try:
        while left > 0:
            # The lowest bit of a run's head says which kind it is; the other bits are its length,
            # for packed numbers in groups of 8, which take `width` bytes each.
            head, at = varint(data, at)
            size = (head >> 1) * width if head & 1 else (width + 7) // 8
            if width > 31 or at + size > len(data):
                raise IndexError
            if head & 1:
                # Packed: one row of bits per number, times the weight of each bit.
                bits = np.unpackbits(np.frombuffer(data, np.uint8, size, at), bitorder="little")
                run = bits.reshape(-1, width)[:left] @ (1 << np.arange(width, dtype=np.int32))
            else:
                # Repeated: one number in whole bytes.
                number = int.from_bytes(data[at : at + size], "little") & (1 << width) - 1
                run = np.full(min(head >> 1, left), number, np.int32)
            runs.append(run)
            at, left = at + size, left - len(run)
    except IndexError as error:
        raise PageError(
            f"a page has numbers of {width} bits for fewer than {count} values"
        ) from error
    return np.concatenate([np.zeros(0, np.int32), *runs])
