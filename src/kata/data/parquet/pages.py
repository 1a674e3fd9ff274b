"""Byte strings of a parquet column one by one: where they lie, from the headers of its pages.

pyarrow reads whole row groups alone. Known here are PLAIN and dictionaries, with and without nulls,
both versions of data pages; UnknownPageError is raised for others. Checksums are not looked at.
Format: github.com/apache/parquet-format (README.md, Encodings.md).
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from dataclasses import dataclass

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kata.data.parquet.page_body import CODECS, Body, OpenFile, PageError, open_body, varint
from kata.data.parquet.page_header import Page, UnknownPageError, read_page

_PAGE_BYTES = 400
"""Of Python's objects per page, about."""


@dataclass(frozen=True)
class Chunk:
    """One column of one row group: its pages lie from `begin` on and hold `rows` cells.

    level: the definition level of a cell that is there; 0 where none may be null.
    """

    begin: int
    rows: int
    level: int
    codec: str


@dataclass(frozen=True)
class Pages:
    """The pages of a chunk: data page k holds the cells from `first[k]` on."""

    level: int
    first: array[int]
    data: tuple[Page, ...]
    dictionary: Page | None

    @property
    def nbytes(self) -> int:
        """Memory that this takes."""
        return (len(self.data) + 1) * _PAGE_BYTES


class Strings:
    """Byte strings one after the other in a body from `begin` on, each behind its length in 4
    bytes.
    """

    def __init__(self, file: OpenFile, body: Body, begin: int, count: int) -> None:
        self._body, self._begins = body, array("q", [begin])
        for _ in range(count):
            if begin + 4 <= body.size:
                begin += 4 + int.from_bytes(body.read(file, begin, begin + 4), "little")
            if begin > body.size or begin == self._begins[-1]:
                raise PageError(
                    f"a page should have {count} values, and its {body.size} bytes have fewer"
                )
            self._begins.append(begin)
        self.nbytes = body.nbytes + 8 * count

    def read(self, file: OpenFile, number: int) -> bytes | memoryview:
        """One of them."""
        if not 0 <= number < len(self._begins) - 1:
            raise PageError(f"value {number} is wanted of {len(self._begins) - 1}")
        return self._body.read(file, self._begins[number] + 4, self._begins[number + 1])


@dataclass(frozen=True)
class Cells:
    """The cells of a data page: each one's number (-1: null) in `strings` or, where that is
    None, in the dictionary.
    """

    numbers: NDArray[np.int32]
    strings: Strings | None

    @property
    def nbytes(self) -> int:
        """Memory that this takes."""
        return self.numbers.nbytes + (0 if self.strings is None else self.strings.nbytes)


def find_chunk(meta: pq.FileMetaData, group: int, leaf: int) -> Chunk:
    """Where column `leaf` of a row group lies.

    Raises: UnknownPageError.
    """
    column, kind = meta.row_group(group).column(leaf), meta.schema.column(leaf)
    if kind.max_repetition_level:
        raise UnknownPageError("its cells are lists")
    if column.compression not in CODECS:
        raise UnknownPageError(f"its compression is {column.compression}")
    if column.file_path:
        raise UnknownPageError(f"it lies in another file ({column.file_path})")
    begin = min(column.dictionary_page_offset or column.data_page_offset, column.data_page_offset)
    return Chunk(
        begin, meta.row_group(group).num_rows, kind.max_definition_level, column.compression
    )


def find_pages(file: OpenFile, chunk: Chunk) -> Pages:
    """Walk the headers of a chunk's pages.

    Raises: UnknownPageError, PageError.
    """
    at, rows, last = chunk.begin, 0, file.stat().st_size
    first, data, dictionary = array("q"), list[Page](), None
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


def find_cell(pages: Pages, row: int) -> tuple[int, int]:
    """The data page of a cell, and the cell's number in it."""
    number = bisect_right(pages.first, row) - 1
    return number, row - pages.first[number]


def read_cells(file: OpenFile, pages: Pages, number: int) -> Cells:
    """Look into one data page.

    Raises: PageError.
    """
    page = pages.data[number]
    body = open_body(file, page.begin, page.size, page.plain_size, page.codec)
    is_there, begin = np.ones(page.rows, np.bool_), 0
    if pages.level:
        if page.level_size is None:
            levels, begin = _levels_of(file, body)
        else:
            levels = file.read(page.begin - page.level_size, page.level_size)
        is_there = hybrid(levels, pages.level.bit_length(), page.rows) == pages.level
    numbers, count = np.full(page.rows, -1, np.int32), int(is_there.sum())
    if not page.refers:
        numbers[is_there] = np.arange(count)
        return Cells(numbers, Strings(file, body, begin, count))
    if count:
        indices = bytes(body.read(file, begin, body.size))
        numbers[is_there] = hybrid(indices[1:], indices[0] if indices else 0, count)
    return Cells(numbers, None)


def read_dictionary(file: OpenFile, pages: Pages) -> Strings:
    """The values that data pages refer to.

    Raises: PageError.
    """
    page = pages.dictionary
    if page is None:
        raise PageError("its pages refer to a dictionary that it does not have")
    return Strings(
        file, open_body(file, page.begin, page.size, page.plain_size, page.codec), 0, page.rows
    )


def _levels_of(file: OpenFile, body: Body) -> tuple[bytes, int]:
    """The definition levels at the beginning of a body, and where they end."""
    end = 4 + int.from_bytes(body.read(file, 0, min(4, body.size)), "little")
    if end > body.size:
        raise PageError(
            f"a page of {body.size} bytes should begin with {end} bytes of definition levels"
        )
    return bytes(body.read(file, 4, end)), end


def hybrid(data: bytes, width: int, count: int) -> NDArray[np.int32]:
    """Numbers (count,) of `width` bits each, in runs of one number repeated or of numbers packed.

    Raises: PageError when the bytes have fewer.
    """
    if not width:
        return np.zeros(count, np.int32)
    runs, at, left = list[NDArray[np.int32]](), 0, count
    try:
        while left > 0:
            head, at = varint(data, at)
            size = (head >> 1) * width if head & 1 else (width + 7) // 8
            if width > 31 or at + size > len(data):
                raise IndexError
            if head & 1:
                bits = np.unpackbits(np.frombuffer(data, np.uint8, size, at), bitorder="little")
                run = bits.reshape(-1, width)[:left] @ (1 << np.arange(width, dtype=np.int32))
            else:
                number = int.from_bytes(data[at : at + size], "little") & (1 << width) - 1
                run = np.full(min(head >> 1, left), number, np.int32)
            runs.append(run)
            at, left = at + size, left - len(run)
    except IndexError as error:
        raise PageError(
            f"a page has numbers of {width} bits for fewer than {count} values"
        ) from error
    return np.concatenate([np.zeros(0, np.int32), *runs])
