"""Encoded images of table files, read one at a time; an index of their positions is held in
memory.
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
from threading import Lock
from typing import Any, Protocol, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from kata.data.counters import CounterCollector
from kata.data.parquet.page_body import OpenFile, PageError, UnevenError
from kata.data.parquet.page_header import LOOK_BYTES, UnknownPageError
from kata.data.parquet.pages import (
    SMALL_BYTES,
    Chunk,
    Pages,
    SideBySide,
    WholePageError,
    find_cell,
    find_chunk,
    find_pages,
    first_string,
    read_cells,
    read_dictionary,
)
from kata.data.storage.file_stamp import Stamp
from kata.data.storage.store import StoredFile

_log = logging.getLogger(__name__)

_BUFFER_BYTES = 2**20
ENCODED_BYTES = 2 * 1024**3
"""Budget of all cameras together; the least recently used entries are dropped first."""

_HEADERS, _DICTIONARY = -2, -1


@dataclass(frozen=True)
class ImageColumn:
    """An image column of a table file.

    Attributes:
        file: the table file.
        key: the camera.
        stamp: of the file when its footer was read.
        first: the first row of each row group, and the number of rows at the end.
        chunks: the position of each row group's bytes, or the reason why only pyarrow can read
            them.
    """

    file: StoredFile
    key: str
    stamp: Stamp
    first: array[int]
    chunks: tuple[Chunk | str, ...]


def open_column(file: StoredFile, key: str) -> ImageColumn:
    """Read the footer of a table file.

    Raises:
        KeyError: There is no such column.
        PageError: The column holds no encoded images.
        ArrowInvalid, OSError: The file cannot be read.
    """
    stamp = file.stamp()
    with file.open() as data:
        meta = pq.read_metadata(data)
    leaves = [meta.schema.column(number) for number in range(meta.num_columns)]
    leaf = next((number for number, leaf in enumerate(leaves) if leaf.path == f"{key}.bytes"), None)
    if leaf is None or leaves[leaf].physical_type != "BYTE_ARRAY":
        raise PageError(f"holds {meta.schema.to_arrow_schema().field(key).type}, no encoded images")
    groups = range(meta.num_row_groups)
    first = array("q", accumulate((meta.row_group(group).num_rows for group in groups), initial=0))
    return ImageColumn(
        file, key, stamp, first, tuple(_chunk(meta, group, leaf) for group in groups)
    )


def _chunk(meta: pq.FileMetaData, group: int, leaf: int) -> Chunk | str:
    try:
        return find_chunk(meta, group, leaf)
    except UnknownPageError as error:
        return str(error)


def first_image(column: ImageColumn, row: int) -> bytes | None:
    """Return how the first image of the row group of a row begins, by little reading.

    Returns:
        At most `SMALL_BYTES`; None where more must be read to know.

    Raises:
        PageError, OSError: The file cannot be read.
        DataError: The file has changed.
    """
    chunk = column.chunks[bisect_right(column.first, row) - 1]
    if isinstance(chunk, str):
        return None
    try:
        return first_string(OpenFile(column.file, column.stamp), chunk)
    except (UnknownPageError, UnevenError):
        return None


class _Sized(Protocol):
    @property
    def nbytes(self) -> int: ...


T = TypeVar("T", bound=_Sized)


class EncodedImages:
    """A reader of single images of image columns, to be shared by threads.

    Within the budget it holds the positions of images, pages that had to be decompressed, and row
    groups that only pyarrow can read.
    """

    def __init__(self, counters: CounterCollector, budget_bytes: int = ENCODED_BYTES) -> None:
        self._counters, self._budget = counters, budget_bytes
        self._lock = Lock()
        self._entries: OrderedDict[tuple[StoredFile, str, int, int], Future[Any]] = OrderedDict()
        self._said: set[tuple[str, str]] = set()
        self._whole: set[tuple[StoredFile, str, int]] = set()
        self.held_bytes = 0

    def get(self, column: ImageColumn, row: int) -> Any:
        """Return the encoded image in a row of the file, or None if the cell is null.

        Returns:
            bytes, or a view of bytes that are held.

        Raises:
            PageError, ArrowInvalid, OSError: The image cannot be read.
            DataError: The file has changed.
        """
        began_s = time.perf_counter()
        group = bisect_right(column.first, row) - 1
        file = OpenFile(column.file, column.stamp)
        found = self._find(file, column, group, row - column.first[group])
        self._counters.add(read_s=time.perf_counter() - began_s, bytes_read=file.bytes_read)
        return found

    def byte_range(self, column: ImageColumn, row: int) -> tuple[int, int] | None:
        """Return the range of the file that `get` will read for a row.

        Returns:
            The image, the page, or all pages of the row group, by what is known of their positions.
            None where nothing is read, or pyarrow reads it.
        """
        group = bisect_right(column.first, row) - 1
        chunk = column.chunks[group]
        if isinstance(chunk, str):
            return None
        place = (column.file, column.key, group)
        # A header is read with a few bytes more, in case it is a long one.
        end = min(chunk.begin + chunk.size + LOOK_BYTES, column.stamp.size)
        everything = (chunk.begin, end)
        pages = self._made((*place, _HEADERS))
        if not isinstance(pages, Pages):
            return everything if pages is None else None
        number, row = find_cell(pages, row - column.first[group])
        cells = self._made((*place, number))
        if cells is None:
            page = pages.data[number]
            return page.begin - (page.level_size or 0), page.begin + page.size
        value = int(cells.numbers[row])
        strings = cells.strings or self._made((*place, _DICTIONARY))
        if value < 0 or strings is None:
            return None if value < 0 else everything
        return strings.place(value)

    def is_found(self, column: ImageColumn, row: int) -> bool:
        """Return True if `find` cannot make the range of a row smaller."""
        group = bisect_right(column.first, row) - 1
        chunk, place = column.chunks[group], (column.file, column.key, group)
        if isinstance(chunk, str) or place in self._whole:
            return True
        if chunk.size < chunk.rows * SMALL_BYTES:
            return True
        pages = self._made((*place, _HEADERS))
        if not isinstance(pages, Pages):
            return pages is not None
        number, row = find_cell(pages, row - column.first[group])
        cells = self._made((*place, number))
        return cells is not None and (
            cells.strings is not None
            or int(cells.numbers[row]) < 0
            or self._made((*place, _DICTIONARY)) is not None
        )

    def find(self, column: ImageColumn, row: int, requests: SideBySide) -> None:
        """Find where the images of a row's page lie, by small reads side by side.

        Where that takes more than to read the page, nothing is done.

        Raises:
            PageError, DataError: As `get` does.
        """
        group = bisect_right(column.first, row) - 1
        if self.is_found(column, row):
            return
        file = OpenFile(column.file, column.stamp)
        try:
            self._cell(file, column, group, row - column.first[group], requests)
        except WholePageError:
            self._whole.add((column.file, column.key, group))

    def _made(self, place: tuple[StoredFile, str, int, int]) -> Any:
        """Return the entry at `place`, or None if it is not there yet."""
        with self._lock:
            coming = self._entries.get(place)
        is_made = coming is not None and coming.done() and coming.exception() is None
        return coming.result() if coming is not None and is_made else None

    def _find(self, file: OpenFile, column: ImageColumn, group: int, row: int) -> Any:
        while True:
            try:
                found = self._cell(file, column, group, row)
                return found[0].read(file, found[1]) if isinstance(found, tuple) else found
            except WholePageError:
                # Another thread found this out while this one waited for it.
                continue
            except UnevenError:
                self._read_whole(column, group)

    def _read_whole(self, column: ImageColumn, group: int) -> None:
        """Forget what `find` found in a row group, so that its pages are read whole."""
        place = (column.file, column.key, group)
        with self._lock:
            self._whole.add(place)
            for number in [each for each in self._entries if each[:3] == place]:
                if self._entries[number].done():
                    self.held_bytes -= self._entries.pop(number).result().nbytes

    def _cell(
        self,
        file: OpenFile,
        column: ImageColumn,
        group: int,
        row: int,
        requests: SideBySide | None = None,
    ) -> Any:
        """Return the strings of a cell's page with the number of its value in them; or the value,
        where pyarrow had to read it or the cell is null.
        """
        # 1. The page headers of the row group, or its images if pyarrow had to read them.
        place = (column.file, column.key, group)
        pages = self._once((*place, _HEADERS), lambda: self._open(file, column, group))
        if not isinstance(pages, Pages):
            cell: Any = pages.field("bytes")[row]
            return cell.as_buffer() if cell.is_valid else None
        # 2. The number of the cell's value in its page, or in the dictionary.
        page, row = find_cell(pages, row)
        cells = self._once((*place, page), lambda: read_cells(file, pages, page, requests))
        number = int(cells.numbers[row])
        if number < 0:
            return None
        # 3. The strings: from the file where they are stored there as they are, else from memory.
        strings = cells.strings or self._once(
            (*place, _DICTIONARY), lambda: read_dictionary(file, pages, requests)
        )
        return strings, number

    def _open(self, file: OpenFile, column: ImageColumn, group: int) -> Any:
        """Return the pages of a row group, or all of its images as an array if only pyarrow reads
        them.
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
                column.file,
                chunk,
            )
        return self._read_group(column, group)

    def _read_group(self, column: ImageColumn, group: int) -> Any:
        # Through a small buffer: else the encoded column takes as much fresh memory once more. In
        # one thread: to hand one column to pyarrow's pool takes six times as long.
        with column.file.open() as data:
            file: Any = pq.ParquetFile(data, buffer_size=_BUFFER_BYTES, pre_buffer=False)
            rows = file.read_row_group(group, columns=[column.key], use_threads=False)
        read: Any = rows[column.key]
        array = read.combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks)
        rows = column.first[group + 1] - column.first[group]
        if len(array) != rows:  # pyarrow passes over pages that it does not understand
            raise PageError(f"{len(array)} of {rows} rows of a row group can be read")
        self._counters.add(bytes_read=array.nbytes)
        return array

    def _once(self, place: tuple[StoredFile, str, int, int], make: Callable[[], T]) -> T:
        """Return the entry at `place`; make it if there is none, while other threads that ask
        wait.
        """
        with self._lock:
            # The future enters the table under the lock, so only one thread makes each entry.
            is_new = place not in self._entries
            coming = self._entries.setdefault(place, Future())
            self._entries.move_to_end(place)
        if not is_new:
            return coming.result()
        try:
            made = make()
        except BaseException as error:
            with self._lock:
                # Threads that wait get the error; the next one that asks tries again.
                del self._entries[place]
            coming.set_exception(error)
            raise
        with self._lock:
            coming.set_result(made)
            self.held_bytes += made.nbytes
            self._drop()
        return made

    def _drop(self) -> None:
        """Drop the least recently used entries until the rest is within the budget; keep the last
        one.
        """
        for _ in range(len(self._entries) - 1):
            if self.held_bytes <= self._budget:
                break
            place, coming = self._entries.popitem(last=False)
            if coming.done():
                self.held_bytes -= coming.result().nbytes
            else:
                # Still being made, by a thread that will count its bytes: put back, at the recent
                # end.
                self._entries[place] = coming
