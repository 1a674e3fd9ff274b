"""Encoded images of table files, each read where it lies, with what says where within a budget
of bytes.
"""

from __future__ import annotations

import logging
import time
from array import array
from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import accumulate
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from kata.data.counters import CounterCollector
from kata.data.parquet.page_body import OpenFile, PageError
from kata.data.parquet.page_header import UnknownPageError
from kata.data.parquet.pages import (
    Chunk,
    Pages,
    find_cell,
    find_chunk,
    find_pages,
    read_cells,
    read_dictionary,
)
from kata.data.storage.file_stamp import Stamp, replaced

_log = logging.getLogger(__name__)

_BUFFER_BYTES = 2**20
ENCODED_BYTES = 2 * 1024**3
"""All cameras together; what was used longest ago goes first."""

_HEADERS, _DICTIONARY = -2, -1


@dataclass(frozen=True)
class ImageColumn:
    """An image column of a table file: row group k holds the rows from `first[k]` on.

    chunks: where its bytes lie in each row group, or why only pyarrow can read them.
    """

    path: Path
    key: str
    stamp: Stamp
    first: array[int]
    chunks: tuple[Chunk | str, ...]


def open_column(path: Path, key: str) -> ImageColumn:
    """Read the footer of a table file.

    Raises: KeyError for a column that is not there, PageError for one of no encoded images;
        ArrowInvalid, OSError.
    """
    stamp, meta = Stamp.of(path.stat()), pq.read_metadata(path)
    leaves = [meta.schema.column(number) for number in range(meta.num_columns)]
    leaf = next((number for number, leaf in enumerate(leaves) if leaf.path == f"{key}.bytes"), None)
    if leaf is None or leaves[leaf].physical_type != "BYTE_ARRAY":
        raise PageError(f"holds {meta.schema.to_arrow_schema().field(key).type}, no encoded images")
    groups = range(meta.num_row_groups)
    first = array("q", accumulate((meta.row_group(group).num_rows for group in groups), initial=0))
    return ImageColumn(
        path, key, stamp, first, tuple(_chunk(meta, group, leaf) for group in groups)
    )


def _chunk(meta: pq.FileMetaData, group: int, leaf: int) -> Chunk | str:
    try:
        return find_chunk(meta, group, leaf)
    except UnknownPageError as error:
        return str(error)


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=_Sized)


class EncodedImages:
    """Reads single images of image columns. Safe to call from several threads.

    Held within the budget: where images lie, pages that had to be decompressed, and row groups that
    only pyarrow reads.
    """

    def __init__(self, counters: CounterCollector, budget_bytes: int = ENCODED_BYTES) -> None:
        self._counters, self._budget = counters, budget_bytes
        self._lock = Lock()
        self._entries: OrderedDict[tuple[Path, str, int, int], Future[Any]] = OrderedDict()
        self._said: set[tuple[str, str]] = set()
        self.held_bytes = 0

    def get(self, column: ImageColumn, row: int) -> Any:
        """The encoded image in a row of the file, as bytes or a view of them; None when the cell is
        null.

        Raises: PageError, ArrowInvalid or OSError when it cannot be read; DataError when the file
            has changed.
        """
        began_s = time.perf_counter()
        group = bisect_right(column.first, row) - 1
        try:
            file = OpenFile(column.path)
        except OSError as error:
            raise replaced(column.path, f"cannot be opened ({error.strerror})") from error
        with file:
            if Stamp.of(file.stat()) != column.stamp:
                raise replaced(column.path, "is another file, or has other content")
            found = self._find(file, column, group, row - column.first[group])
        self._counters.add(read_s=time.perf_counter() - began_s, bytes_read=file.bytes_read)
        return found

    def _find(self, file: OpenFile, column: ImageColumn, group: int, row: int) -> Any:
        place = (column.path, column.key, group)
        pages = self._once((*place, _HEADERS), lambda: self._open(file, column, group))
        if not isinstance(pages, Pages):
            cell: Any = pages.field("bytes")[row]
            return cell.as_buffer() if cell.is_valid else None
        page, row = find_cell(pages, row)
        cells = self._once((*place, page), lambda: read_cells(file, pages, page))
        number = int(cells.numbers[row])
        if number < 0:
            return None
        strings = cells.strings or self._once(
            (*place, _DICTIONARY), lambda: read_dictionary(file, pages)
        )
        return strings.read(file, number)

    def _open(self, file: OpenFile, column: ImageColumn, group: int) -> Any:
        """The pages of a chunk; its images as one array where they are of a kind that pyarrow
        alone reads.
        """
        chunk = column.chunks[group]
        try:
            if not isinstance(chunk, str):
                return find_pages(file, chunk)
        except UnknownPageError as error:
            chunk = str(error)
        with self._lock:
            is_new = (column.key, chunk) not in self._said
            self._said.add((column.key, chunk))
        if is_new:
            _log.warning(
                "the images of '%s' in %s are read a row group at a time, for %s; that takes more "
                "time and memory",
                column.key,
                column.path,
                chunk,
            )
        return self._read_group(column, group)

    def _read_group(self, column: ImageColumn, group: int) -> Any:
        # Through a small buffer: the encoded column would need as much fresh memory again. One
        # thread: handing one column to a pool of readers takes six times as long.
        file: Any = pq.ParquetFile(column.path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        read: Any = file.read_row_group(group, columns=[column.key], use_threads=False)[column.key]
        array = read.combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks)
        rows = column.first[group + 1] - column.first[group]
        if len(array) != rows:  # pyarrow passes over pages that it does not understand
            raise PageError(f"{len(array)} of {rows} rows of a row group can be read")
        self._counters.add(bytes_read=array.nbytes)
        return array

    def _once(self, place: tuple[Path, str, int, int], make: Callable[[], T]) -> T:
        """What is held at this place, made first if there is nothing; others who ask for it
        meanwhile wait.
        """
        with self._lock:
            is_new = place not in self._entries
            coming = self._entries.setdefault(place, Future())
            self._entries.move_to_end(place)
        if not is_new:
            return coming.result()
        try:
            made = make()
        except BaseException as error:
            with self._lock:
                del self._entries[place]
            coming.set_exception(error)
            raise
        with self._lock:
            coming.set_result(made)
            self.held_bytes += made.nbytes
            self._drop()
        return made

    def _drop(self) -> None:
        """Forget what was used longest ago, but one entry, until the rest is within the budget."""
        for _ in range(len(self._entries) - 1):
            if self.held_bytes <= self._budget:
                break
            place, coming = self._entries.popitem(last=False)
            if coming.done():
                self.held_bytes -= coming.result().nbytes
            else:
                self._entries[place] = coming
