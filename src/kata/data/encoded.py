"""Encoded images of table files, kept per row group within a budget of bytes."""

from __future__ import annotations

import time
from collections import OrderedDict
from concurrent.futures import Future
from pathlib import Path
from threading import Lock
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kata.data.work import Tally

_BUFFER_BYTES = 2**20
ENCODED_BYTES = 2 * 1024**3
"""All cameras together; the row group used longest ago goes first. One row group is always kept."""


class EncodedImages:
    """Row groups of image columns, each read when it is first needed. Safe to call from several threads."""

    def __init__(self, tally: Tally, budget_bytes: int = ENCODED_BYTES) -> None:
        self._tally, self._budget = tally, budget_bytes
        self._lock = Lock()
        self._groups: OrderedDict[tuple[Path, str, int], Future[Any]] = OrderedDict()
        self.held_bytes = 0

    def get(self, path: Path, key: str, group: int) -> Any:
        """Column `key` of one row group, an arrow array; readers of the same group wait for the first.

        Raises: ArrowInvalid, KeyError or OSError when it cannot be read.
        """
        place = (path, key, group)
        with self._lock:
            is_new = place not in self._groups
            coming = self._groups.setdefault(place, Future())
            self._groups.move_to_end(place)
        if not is_new:
            return coming.result()
        try:
            array = self._read(path, key, group)
        except BaseException as error:
            with self._lock:
                del self._groups[place]
            coming.set_exception(error)
            raise
        coming.set_result(array)
        self._admit(array.nbytes)
        return array

    def _read(self, path: Path, key: str, group: int) -> Any:
        began_s = time.perf_counter()
        # Through a small buffer: the encoded column would need as much fresh memory again. One thread: handing one
        # column to a pool of readers takes six times as long.
        file: Any = pq.ParquetFile(path, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        column: Any = file.read_row_group(group, columns=[key], use_threads=False)[key]
        array = column.combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks)
        self._tally.add(read_s=time.perf_counter() - began_s, bytes_read=array.nbytes)
        return array

    def _admit(self, num_bytes: int) -> None:
        with self._lock:
            self.held_bytes += num_bytes
            for place in [place for place, coming in self._groups.items() if coming.done()][:-1]:
                if self.held_bytes <= self._budget:
                    break
                self.held_bytes -= self._groups.pop(place).result().nbytes
