"""Episode table of format v3.0: parquet files in which many episodes share a file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kata.data.arrays import Int64
from kata.data.format.episode_table import EpisodeTable, Span, TaskLists
from kata.data.format.info import Info, file_name
from kata.data.storage.lfs_pointer import refuse_pointer
from kata.errors import DataError

EPISODE_FILES = "meta/episodes/*/*.parquet"


def read(root: Path, info: Info) -> EpisodeTable:
    """The layout from meta/episodes, ordered by episode index."""
    table = episode_table(root)
    index = (
        _ints(root, table, "episode_index")
        if "episode_index" in table.column_names
        else np.arange(len(table))
    )
    order = np.argsort(index, kind="stable")
    begin, end = (_ints(root, table, f"dataset_{edge}_index")[order] for edge in ("from", "to"))
    data = _files(root, table, "data", order, lambda chunk, file: _data_name(info, chunk, file))
    videos: dict[str, Span] = {}
    for key, column in info.columns.items():
        if column.dtype == "video" and f"videos/{key}/from_timestamp" in table.column_names:
            span = _files(
                root,
                table,
                f"videos/{key}",
                order,
                lambda chunk, file, k=key: _video_name(info, k, chunk, file),
            )
            start_s = np.asarray(table[f"videos/{key}/from_timestamp"].to_numpy())[order]
            if not np.isfinite(start_s).all():
                raise _bad(root, f"has no start time of '{key}' for every episode")
            videos[key] = Span(span.files, span.file, np.rint(start_s * info.fps).astype(np.int64))
    return EpisodeTable(
        index=index[order].astype(np.int64),
        length=end - begin,
        tasks=_tasks(table, order),
        data=Span(data.files, data.file, _row_in_file(data.file, begin)),
        videos=videos,
    )


def episode_table(root: Path, prefix: str = "") -> pa.Table:
    """All episode rows without statistics, or only 'episode_index' and columns that start with
    `prefix`.
    """
    paths = sorted(root.glob(EPISODE_FILES))
    if not paths:
        raise _bad(root, f"is absent: no {EPISODE_FILES}")
    tables: list[pa.Table] = []
    for path in paths:
        try:
            file = pq.ParquetFile(path)
            names = list(file.schema_arrow.names)
            if prefix:
                names = [
                    name for name in names if name == "episode_index" or name.startswith(prefix)
                ]
            else:
                names = [name for name in names if not name.startswith("stats/")]
            tables.append(file.read(columns=names))
        except (pa.ArrowInvalid, OSError) as error:
            refuse_pointer(path)
            raise _bad(root, f"cannot be read: {path.name}: {error}") from error
    return pa.concat_tables(tables, promote_options="permissive")


def _files(
    root: Path, table: pa.Table, prefix: str, order: Int64, name: Callable[[int, int], str]
) -> Span:
    chunk, file = (
        _ints(root, table, f"{prefix}/{part}_index")[order] for part in ("chunk", "file")
    )
    pairs, number = np.unique(np.stack([chunk, file], axis=1), axis=0, return_inverse=True)
    files = tuple(name(int(pair[0]), int(pair[1])) for pair in pairs)
    return Span(files, number.reshape(-1).astype(np.int64), np.zeros(len(order), np.int64))


def _row_in_file(file: Int64, begin: Int64) -> Int64:
    """Rows count over the whole dataset: a file starts with the first row of its first episode."""
    first = np.full(int(file.max(initial=0)) + 1, np.iinfo(np.int64).max)
    np.minimum.at(first, file, begin)
    return begin - first[file]


def _tasks(table: pa.Table, order: Int64) -> TaskLists:
    if "tasks" not in table.column_names:
        return TaskLists.of([()] * len(order))
    if not len(table):
        return TaskLists.of([])
    lists: Any = pa.concat_arrays(table["tasks"].chunks)
    length = lists.value_lengths().fill_null(0).to_numpy().astype(np.int64)
    encoded = lists.flatten().dictionary_encode()
    number = encoded.indices.to_numpy().astype(np.int64)
    return TaskLists(encoded.dictionary.to_pylist(), number, np.cumsum(length)).take(order)


def _ints(root: Path, table: pa.Table, name: str) -> Int64:
    if name not in table.column_names:
        raise _bad(root, f"has no column '{name}'")
    column = table[name]
    if column.null_count:
        raise _bad(root, f"has {column.null_count} empty values in '{name}'")
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        raise _bad(root, f"has {column.type} in '{name}', not whole numbers")
    return np.asarray(column.to_numpy()).astype(np.int64)


def _data_name(info: Info, chunk: int, file: int) -> str:
    return file_name(info.data_path, chunk_index=chunk, file_index=file)


def _video_name(info: Info, key: str, chunk: int, file: int) -> str:
    return file_name(info.video_path, video_key=key, chunk_index=chunk, file_index=file)


def _bad(root: Path, what: str) -> DataError:
    return DataError(
        f"the episode table {root}/meta/episodes {what}",
        rule="format v3.0 has one row per episode with its files and frame range",
        remedy="download the dataset again, or call finalize() where it was recorded",
    )
