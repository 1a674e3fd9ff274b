"""Numeric columns of a dataset as contiguous arrays: parquet in, numpy out, no Python per row."""

from __future__ import annotations

from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kata.data.layout import Layout
from kata.data.order import Int64
from kata.data.window import ranges
from kata.errors import DataError
from kata.spec import BOOKKEEPING, Column

_REPAIR = "download the file again, or leave its episodes out with --dataset.exclude_episodes"


class Columns:
    """All columns of the opened episodes that are neither camera nor derived, read at first use.

    One pass over the files reads every column, because opening a file costs more than its numbers.

    Args:
        root: the dataset's folder.
        layout: the opened episodes; arrays follow their order.
        columns: what to read; `derived` names those that the files lack and arithmetic gives.
        task_number: per episode, the task of its frames where `task_index` is derived.
    """

    def __init__(
        self,
        root: Path,
        layout: Layout,
        columns: dict[str, Column],
        derived: set[str],
        fps: int,
        task_number: Int64,
    ) -> None:
        self._root, self._layout, self._fps, self._task_number = root, layout, fps, task_number
        self._columns, self._derived = columns, derived
        self._arrays: dict[str, NDArray[Any]] | None = None
        self._lock = Lock()

    def get(self, key: str) -> NDArray[Any]:
        """(frames, *shape) or (frames,) for shape [1]; float32, int64, bool, or object for strings."""
        with self._lock:
            if self._arrays is None:
                self._arrays = self._read()
        return self._arrays[key]

    def _read(self) -> dict[str, NDArray[Any]]:
        stored = {key: column for key, column in self._columns.items() if key not in self._derived}
        layout = self._layout
        starts = np.concatenate([[0], np.cumsum(layout.length)])
        arrays = {key: _empty(column, int(starts[-1])) for key, column in stored.items()}
        for number in np.unique(layout.data.file):
            episodes = np.flatnonzero(layout.data.file == number)
            path = self._root / layout.data.files[number]
            table = _read_table(path, list(stored))
            self._check_rows(path, table.num_rows, episodes)
            source = ranges(layout.data.first[episodes], layout.length[episodes])
            target = ranges(starts[episodes], layout.length[episodes])
            for key, column in stored.items():
                arrays[key][target] = _values(path, key, table[key], column)[source]
        for key in self._derived:
            arrays[key] = self._derive(key, arrays)
        self._check(arrays, starts)
        return arrays

    def _derive(self, key: str, arrays: dict[str, NDArray[Any]]) -> NDArray[Any]:
        length = self._layout.length
        frame = ranges(np.zeros_like(length), length)
        if key == "frame_index":
            return frame
        if key == "timestamp":
            return (frame / self._fps).astype(np.float32)
        if key == "episode_index":
            return np.repeat(self._layout.index, length)
        if key == "task_index":
            return np.repeat(self._task_number, length)
        assert key == "index"
        return np.arange(len(frame), dtype=np.int64)

    def _check_rows(self, path: Path, rows: int, episodes: Int64) -> None:
        ends = self._layout.data.first[episodes] + self._layout.length[episodes]
        short = np.flatnonzero(ends > rows)
        if short.size:
            worst = episodes[short[0]]
            raise DataError(
                f"{path} has {rows} rows, but episode {self._layout.index[worst]} ends at row {ends[short[0]]}",
                rule="a file has at least the rows that its episodes claim",
                remedy=_REPAIR,
            )

    def _check(self, arrays: dict[str, NDArray[Any]], starts: Int64) -> None:
        """Every frame belongs to the episode whose table entry points at it, and every number is finite."""
        layout = self._layout
        claimed = np.repeat(layout.index, layout.length)
        wrong = np.flatnonzero(arrays["episode_index"] != claimed)
        if wrong.size:
            row = wrong[0]
            raise DataError(
                f"{self._root}: the rows of episode {claimed[row]} say that they belong to episode "
                f"{arrays['episode_index'][row]} ({wrong.size} rows differ)",
                rule="the episode table and the column 'episode_index' agree",
                remedy=_REPAIR,
            )
        for key, values in arrays.items():
            if values.dtype == np.float32 and key not in BOOKKEEPING:
                _check_finite(self._root, key, values, layout, starts)


def _check_finite(root: Path, key: str, values: NDArray[Any], layout: Layout, starts: Int64) -> None:
    good = np.isfinite(values).reshape(len(values), -1).all(axis=1)
    if good.all():
        return
    bad = np.flatnonzero(~good)
    where = int(np.searchsorted(starts, bad[0], side="right")) - 1
    episodes = np.unique(np.searchsorted(starts, bad, side="right") - 1)
    names = ", ".join(str(layout.index[e]) for e in episodes[:5]) + (", ..." if len(episodes) > 5 else "")
    raise DataError(
        f"column '{key}' of {root} is NaN or infinite in {bad.size} frames, first in episode "
        f"{layout.index[where]}, frame {bad[0] - starts[where]}",
        rule="every number of a float column is finite",
        remedy=f"repair the data, or leave these episodes out: --dataset.exclude_episodes=[{names}]",
    )


def schema_names(path: Path) -> list[str]:
    """Column names of a parquet file from its footer.

    Raises: DataError when the file is damaged.
    """
    try:
        return list(pq.read_schema(path).names)
    except (pa.ArrowInvalid, OSError) as error:
        raise _damaged(path, error) from error


def _read_table(path: Path, keys: list[str]) -> pa.Table:
    try:
        table = pq.ParquetFile(path).read(columns=keys)
    except (pa.ArrowInvalid, OSError) as error:
        raise _damaged(path, error) from error
    missing = [key for key in keys if key not in table.column_names]
    if missing:
        raise DataError(
            f"{path} has no column '{missing[0]}'",
            rule="every data file has the columns that the first one has",
            remedy=_REPAIR,
        )
    return table


def _damaged(path: Path, error: Exception) -> DataError:
    return DataError(
        f"{path} cannot be read: {error}",
        rule="a complete parquet file",
        remedy="download the file again, or leave its episodes out with --dataset.exclude_episodes",
    )


def _dtype(column: Column) -> type:
    if column.dtype == "string":
        return object
    if column.dtype.startswith("float"):
        return np.float32
    return np.bool_ if column.dtype == "bool" else np.int64


def _tail(column: Column) -> tuple[int, ...]:
    return () if column.shape == (1,) else column.shape


def _empty(column: Column, rows: int) -> NDArray[Any]:
    return np.empty((rows, *_tail(column)), dtype=_dtype(column))


def _values(path: Path, key: str, chunks: pa.ChunkedArray, column: Column) -> NDArray[Any]:
    """One column of one file as (rows, *shape)."""
    array: Any = chunks.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    rows = len(array)
    nulls = array.null_count
    while pa.types.is_list(array.type) or pa.types.is_fixed_size_list(array.type) or pa.types.is_large_list(array.type):
        array = array.flatten()
        nulls += array.null_count
    size = int(np.prod(column.shape))
    if nulls or len(array) != rows * size:
        raise DataError(
            f"column '{key}' of {path} has {len(array)} values in {rows} rows ({nulls} empty)",
            rule=f"info.json declares shape {list(column.shape)}: {size} values in every row",
            remedy="repair the file or the shape in meta/info.json",
        )
    try:
        values = np.asarray(array.to_numpy(zero_copy_only=False))
        return values.astype(_dtype(column), copy=False).reshape(rows, *_tail(column))
    except (ValueError, TypeError) as error:
        raise DataError(
            f"column '{key}' of {path} holds {array.type}",
            rule=f"info.json declares {column.dtype}",
            remedy="repair the file or the dtype in meta/info.json",
        ) from error
