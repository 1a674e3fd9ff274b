"""Numeric columns of a dataset as contiguous arrays: parquet in, NumPy out, no Python per row."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kata.data.arrays import Int64, ranges
from kata.data.dataset.concat import join_values
from kata.data.format.episode_table import EpisodeTable
from kata.data.format.fingerprint import digest
from kata.data.format.flatten import flat_column
from kata.data.storage.array_file import ArrayFile, Note, Put, alone, cache_folder, load_or_make
from kata.data.storage.buffers import Empty
from kata.data.storage.lfs_pointer import refuse_pointer
from kata.data.storage.store import LocalStore
from kata.errors import DataError
from kata.spec import BOOKKEEPING, Column
from kata.units import counted

_log = logging.getLogger(__name__)

_FORMAT = 1
"""Version of the columns in the cache; raise it when their content or its meaning changes."""

_REPAIR = "download the file again, or leave its episodes out with --dataset.exclude_episodes"


class Columns:
    """All table columns of the opened episodes, as arrays that are mapped from the cache folder.

    They are written there in one pass over the data files when they are first used, because opening
    a file costs more than reading its numbers. Later runs and other processes touch only the pages
    that they gather from. The key is `digest` with columns and fps, so any change of a data file
    makes new ones.

    Args:
        root: the dataset's folder.
        layout: the opened episodes; arrays follow their order.
        columns: the columns to read.
        derived: the columns among them that the files lack, which arithmetic gives.
        fps: frames per second.
        task_number: (E,) the task of each episode's frames, if `task_index` is derived.
        joined: the parts of each joined column, in order.
    """

    def __init__(
        self,
        root: Path,
        layout: EpisodeTable,
        columns: dict[str, Column],
        derived: set[str],
        fps: int,
        task_number: Int64,
        joined: Mapping[str, Mapping[str, Column]] | None = None,
    ) -> None:
        self._root = root
        self.layout = layout
        self._fps = fps
        self._task_number = task_number
        self._columns, self._derived = columns, derived
        self.joined = dict(joined or {})
        self._starts = np.concatenate([[0], np.cumsum(layout.length)])
        self._stored: ArrayFile | None = None
        self._lock = Lock()

    def gather(self, key: str, rows: Int64, empty: Empty) -> NDArray[Any]:
        """Return the column at `rows`, with numbers in an array from `empty`.

        The rows are not checked.
        """
        stored = self._open()
        if key in stored.note["strings"]:
            return self.take(key, rows)
        values = stored.arrays[key]
        out = empty((*rows.shape, *values.shape[1:]), values.dtype)
        # The default mode 'raise' would copy through a temporary array.
        return values.take(rows, axis=0, out=out, mode="clip")

    def take(self, key: str, rows: Int64 | slice) -> NDArray[Any]:
        """Return the column at `rows`: (*rows.shape, *shape), without the last axis for shape [1].

        The dtype is float32, int64, bool, or object for strings. A slice of numbers is a view.
        """
        stored = self._open()
        values = stored.arrays[key][rows]
        if key not in stored.note["strings"]:
            return values
        return np.array(stored.note["strings"][key], dtype=object)[values]

    def task_range(self) -> tuple[int, int]:
        """Return the smallest and the largest task_index of all opened frames."""
        low, high = self._open().note["tasks"]
        return low, high

    def fresh(self) -> dict[str, NDArray[Any]]:
        """Read all columns from the files themselves, without the cache folder.

        Returns:
            (frames, *shape) by name, without the last axis for shape [1]; strings as numbers.

        Raises:
            DataError: See the first use of any column.
        """
        rows = int(self._starts[-1])
        arrays = {
            key: np.empty((rows, *_tail(c)), _stored_dtype(c)) for key, c in self._columns.items()
        }

        def put(key: str, first: int, values: NDArray[Any]) -> None:
            arrays[key][first : first + len(values)] = values

        self._fill(put)
        return arrays

    def _open(self) -> ArrayFile:
        # The first look needs no lock; the second one is for a thread that waited for another.
        if self._stored is not None:
            return self._stored
        with self._lock:
            if self._stored is None:
                place = cache_folder() / "columns" / f"{self._key()}.bin"
                rows = int(self._starts[-1])
                shapes = {
                    key: (_stored_dtype(c), (rows, *_tail(c))) for key, c in self._columns.items()
                }
                # One process makes the file while others wait, instead of reading all twice.
                with alone(place):
                    self._stored = load_or_make(place, shapes, self._fill)
                self._tell_unclaimed(self._stored.note.get("unclaimed", [0]))
            return self._stored

    def _tell_unclaimed(self, found: list[Any]) -> None:
        """Log rows that are left out, because the metadata count fewer rows than the files have."""
        if found[0]:
            _log.warning(
                "%s: %s that the metadata do not count, first in %s, %s left out; `kata data "
                "repair %s --out=<folder>` corrects lengths",
                self._root,
                counted(found[0], "row"),
                found[1],
                "is" if found[0] == 1 else "are",
                self._root,
            )

    def _key(self) -> str:
        columns = {key: [column.dtype, column.shape] for key, column in self._columns.items()}
        words = (
            _FORMAT,
            columns,
            sorted(self._derived),
            self._fps,
            self._task_number.tolist() if self._derived else [],
            *([self._joined_words()] if self.joined else []),
        )
        return digest(LocalStore(self._root), self.layout, self.layout.data, *words)

    def _joined_words(self) -> list[Any]:
        words: list[Any] = []
        for key, parts in self.joined.items():
            words.append([key, [[part, c.dtype, c.shape] for part, c in parts.items()]])
        return words

    def _in_files(self) -> dict[str, Column]:
        """Return the columns that are read: a joined one is there by its parts."""
        made = {*self._derived, *self.joined}
        found = {key: column for key, column in self._columns.items() if key not in made}
        for parts in self.joined.values():
            found |= parts
        return found

    def _whole(
        self,
        path: Path,
        table: pa.Table,
        stored: Mapping[str, Column],
        strings: Mapping[str, _Strings],
    ) -> dict[str, NDArray[Any]]:
        """Return the columns of a file, with joined ones joined."""
        read = {
            key: _values(path, key, table[key], column, strings.get(key))
            for key, column in stored.items()
        }
        found = {key: values for key, values in read.items() if key in self._columns}
        for key, parts in self.joined.items():
            found[key] = join_values([read[part] for part in parts])
        return found

    def _fill(self, put: Put) -> Note:
        """Write all columns, file by file, and check them.

        Every frame must belong to the episode whose table entry points at it, and every number must
        be finite.
        """
        layout, stored = self.layout, self._in_files()
        strings = {key: _Strings() for key, column in stored.items() if column.dtype == "string"}
        bad: dict[str, list[Int64]] = {}
        tasks: list[int] = []
        unclaimed: list[str] = []
        # 1. One data file is in memory at a time, whatever the size of the dataset.
        for number in np.unique(layout.data.file):
            path = self._root / layout.data.files[number]
            episodes = np.flatnonzero(layout.data.file == number)
            table = _read_table(path, list(stored))
            self._check_rows(path, table.num_rows, episodes)
            whole = self._whole(path, table, stored, strings)
            # 2. Consecutive episodes are copied together: one copy per run, not one per episode.
            beyond = np.ones(table.num_rows, dtype=np.bool_)
            for run in np.split(episodes, np.flatnonzero(np.diff(episodes) != 1) + 1):
                rows = ranges(layout.data.first[run], layout.length[run])
                beyond[rows] = False
                first = int(self._starts[run[0]])
                values = {key: array[rows] for key, array in whole.items()}
                values |= {key: self._derive(key, run) for key in self._derived}
                # 3. What is checked here is read only once; later runs trust the cache.
                self._check_episode(values["episode_index"], run)
                tasks += [int(values["task_index"].min()), int(values["task_index"].max())]
                for key, part in values.items():
                    put(key, first, part)
                    if part.dtype == np.float32 and key not in BOOKKEEPING:
                        wrong = ~np.isfinite(part).reshape(len(part), -1).all(axis=1)
                        bad.setdefault(key, []).append(first + np.flatnonzero(wrong))
            # 4. Rows that no episode claims, although they name one of them.
            if "episode_index" in whole and beyond.any():
                theirs = np.isin(whole["episode_index"][beyond], layout.index[episodes])
                unclaimed += [layout.data.files[number]] * int(theirs.sum())
        # 5. After all files, so that the message counts all bad frames.
        for key, rows in bad.items():
            self._check_finite(key, np.sort(np.concatenate(rows)))
        return {
            "strings": {key: found.names() for key, found in strings.items()},
            "tasks": [min(tasks), max(tasks)],
            "unclaimed": [len(unclaimed), *unclaimed[:1]],
        }

    def _derive(self, key: str, episodes: Int64) -> NDArray[Any]:
        """Return the rows of a column that the files lack, for consecutive episodes."""
        length = self.layout.length[episodes]
        frame = ranges(np.zeros_like(length), length)
        if key == "frame_index":
            return frame
        if key == "timestamp":
            return (frame / self._fps).astype(np.float32)
        if key == "episode_index":
            return np.repeat(self.layout.index[episodes], length)
        if key == "task_index":
            return np.repeat(self._task_number[episodes], length)
        assert key == "index"
        return int(self._starts[episodes[0]]) + np.arange(len(frame), dtype=np.int64)

    def _check_rows(self, path: Path, rows: int, episodes: Int64) -> None:
        ends = self.layout.data.first[episodes] + self.layout.length[episodes]
        short = np.flatnonzero(ends > rows)
        if short.size:
            worst = episodes[short[0]]
            raise DataError(
                f"{path} has {rows} rows, but episode {self.layout.index[worst]} ends at row "
                f"{ends[short[0]]}",
                rule="a file has at least the rows that its episodes claim",
                remedy=_REPAIR,
            )

    def _check_episode(self, found: Int64, episodes: Int64) -> None:
        claimed = np.repeat(self.layout.index[episodes], self.layout.length[episodes])
        wrong = np.flatnonzero(found != claimed)
        if wrong.size:
            raise DataError(
                f"{self._root}: the rows of episode {claimed[wrong[0]]} say that they belong to "
                "episode "
                f"{found[wrong[0]]} ({wrong.size} rows differ)",
                rule="the episode table and the column 'episode_index' agree",
                remedy=_REPAIR,
            )

    def _check_finite(self, key: str, bad: Int64) -> None:
        if not bad.size:
            return
        layout, starts = self.layout, self._starts
        where = int(np.searchsorted(starts, bad[0], side="right")) - 1
        episodes = np.unique(np.searchsorted(starts, bad, side="right") - 1)
        names = ", ".join(str(layout.index[e]) for e in episodes[:5]) + (
            ", ..." if len(episodes) > 5 else ""
        )
        raise DataError(
            f"column '{key}' of {self._root} is NaN or infinite in {bad.size} frames, first in "
            "episode "
            f"{layout.index[where]}, frame {bad[0] - starts[where]}",
            rule="every number of a float column is finite",
            remedy="repair the data, or leave these episodes out: "
            f"--dataset.exclude_episodes=[{names}]",
        )


class _Strings:
    """The distinct strings of a column; rows store their numbers."""

    def __init__(self) -> None:
        self._number: dict[str, int] = {}

    def numbers(self, strings: pa.Array) -> NDArray[np.int32]:
        encoded = strings.dictionary_encode()
        known = [
            self._number.setdefault(name, len(self._number))
            for name in encoded.dictionary.to_pylist()
        ]
        return np.array(known, dtype=np.int32)[encoded.indices.to_numpy(zero_copy_only=False)]

    def names(self) -> list[str]:
        return list(self._number)


def schema_names(path: Path) -> list[str]:
    """Return the column names of a parquet file from its footer.

    Raises:
        DataError: The file is damaged.
    """
    try:
        return list(pq.read_schema(path).names)
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        refuse_pointer(path)
        raise _damaged(path, error) from error


def _read_table(path: Path, keys: list[str]) -> pa.Table:
    try:
        table = pq.ParquetFile(path).read(columns=keys)
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        refuse_pointer(path)
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
    if column.dtype.startswith("float"):
        return np.float32
    return np.bool_ if column.dtype == "bool" else np.int64


def _stored_dtype(column: Column) -> type:
    return np.int32 if column.dtype == "string" else _dtype(column)


def _tail(column: Column) -> tuple[int, ...]:
    return () if column.shape == (1,) else column.shape


def _values(
    path: Path, key: str, chunks: pa.ChunkedArray, column: Column, strings: _Strings | None
) -> NDArray[Any]:
    """Return one column of one file as (rows, *shape); strings as their numbers."""
    # 1. Lists of any kind become one flat array, without a copy where Arrow allows that.
    rows = len(chunks)
    array, nulls = flat_column(chunks)
    if len(array) and pa.types.is_string(array.type) != (strings is not None):
        raise _other_type(path, key, array.type, column)
    # 2. The count must fit the shape; it is compared once per file, not row by row.
    size = int(np.prod(column.shape))
    if nulls or len(array) != rows * size:
        raise DataError(
            f"column '{key}' of {path} has {len(array)} values in {rows} rows ({nulls} empty)",
            rule=f"info.json declares shape {list(column.shape)}: {size} values in every row",
            remedy="repair the file or the shape in meta/info.json",
        )
    # 3. Numbers of the declared type, which costs a copy only if the file has another one.
    if strings is not None:
        return strings.numbers(array).reshape(rows, *_tail(column))
    try:
        values = np.asarray(array.to_numpy(zero_copy_only=False))
        return values.astype(_dtype(column), copy=False).reshape(rows, *_tail(column))
    except (ValueError, TypeError) as error:
        raise _other_type(path, key, array.type, column) from error


def _other_type(path: Path, key: str, found: pa.DataType, column: Column) -> DataError:
    return DataError(
        f"column '{key}' of {path} holds {found}",
        rule=f"info.json declares {column.dtype}",
        remedy="repair the file or the dtype in meta/info.json",
    )
