"""Format v3.0 on disk: names and numbers of files, content of info.json, the episode table.

Many episodes share a file. The files of one stream (frames, each camera, episode rows) are numbered
from 0 over all chunks, which are folders of `chunks_size` files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kata.data.arrays import Int64
from kata.data.format.episode_table import EpisodeTable, Span, TaskLists
from kata.data.format.feature_stats import Summary
from kata.data.format.info import CAMERA_NAMES, V3_PATHS, Info, file_name
from kata.data.storage.lfs_pointer import refuse_pointer
from kata.errors import DataError
from kata.spec import Column

VERSION = "v3.0"
DATA_PATH, VIDEO_PATH = V3_PATHS
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
EPISODE_FILES = "meta/episodes/*/*.parquet"
TASKS_FILE = "meta/tasks.parquet"
CHUNKS_SIZE = 1000
DATA_FILES_MB = 100
VIDEO_FILES_MB = 200
_MB = 1024**2


# --- files --------------------------------------------------------------------------------------


class FileSeries:
    """The numbered files of one stream of a new dataset: their names, and when the next begins.

    Args:
        template: The path of its files, with places for chunk and file.
        limit_mb: A file ends before it would reach this size; a single longer episode exceeds it.
        chunks_size: Files per folder.
        camera: The camera's key, for a stream of videos.

    Attributes:
        number: That of the current file, over all chunks.
        held_bytes: What the current file holds so far.
    """

    def __init__(
        self, template: str, limit_mb: int, *, chunks_size: int = CHUNKS_SIZE, camera: str = ""
    ) -> None:
        self.number = 0
        self.held_bytes = 0
        self._template = template
        self._limit_bytes = limit_mb * _MB
        self._chunks_size = chunks_size
        self._camera = camera
        self._stream = str(PurePosixPath(self.name).parents[1])

    @property
    def name(self) -> str:
        """Return the path of the current file below the dataset's folder."""
        chunk, file = divmod(self.number, self._chunks_size)
        return self._template.format(video_key=self._camera, chunk_index=chunk, file_index=file)

    def columns(self) -> dict[str, int]:
        """Return the columns of the episode table that point at the current file."""
        chunk, file = divmod(self.number, self._chunks_size)
        return {f"{self._stream}/chunk_index": chunk, f"{self._stream}/file_index": file}

    def has_room(self, more_bytes: float) -> bool:
        """Return True while the current file may grow by `more_bytes`; an empty one always may."""
        return not self.held_bytes or self.held_bytes + more_bytes < self._limit_bytes

    def next_file(self) -> None:
        """End the current file."""
        self.number += 1
        self.held_bytes = 0

    def skip(self, row: Mapping[str, Any]) -> None:
        """Skip the file that a row of the episode table points at, if it names one."""
        chunk = row.get(f"{self._stream}/chunk_index")
        if chunk is not None:
            used = chunk * self._chunks_size + row[f"{self._stream}/file_index"]
            self.number = max(self.number, used + 1)


# --- info.json ----------------------------------------------------------------------------------


def info_json(
    *,
    fps: int,
    features: Mapping[str, Mapping[str, Any]],
    robot_type: str | None,
    chunks_size: int = CHUNKS_SIZE,
    data_files_size_in_mb: int = DATA_FILES_MB,
    video_files_size_in_mb: int = VIDEO_FILES_MB,
) -> dict[str, Any]:
    """Return the content of info.json before the first episode, in LeRobot's order.

    Args:
        fps: Frames per second.
        features: The entry of each column, as `feature_entry` makes it.
        robot_type: Free text.
        chunks_size: Files per folder.
        data_files_size_in_mb: The limit of a table file.
        video_files_size_in_mb: The limit of a video file.
    """
    has_video = any(entry["dtype"] == "video" for entry in features.values())
    return {
        "codebase_version": VERSION,
        "fps": fps,
        "features": dict(features),
        **totals(0, 0, 0),
        "chunks_size": chunks_size,
        "data_files_size_in_mb": data_files_size_in_mb,
        "video_files_size_in_mb": video_files_size_in_mb,
        "data_path": DATA_PATH,
        "video_path": VIDEO_PATH if has_video else None,
        "robot_type": robot_type,
        "splits": {},
    }


def feature_entry(column: Column) -> dict[str, Any]:
    """Return the entry of a column in info.json; that of a video still lacks its `info`."""
    names = column.names or (CAMERA_NAMES if column.is_camera else None)
    return {
        "dtype": column.dtype,
        "shape": list(column.shape),
        "names": names and list(names),
    }


def totals(episodes: int, frames: int, tasks: int) -> dict[str, int]:
    """Return the entries of info.json that count."""
    return {"total_episodes": episodes, "total_frames": frames, "total_tasks": tasks}


def whole_split(episodes: int) -> dict[str, str]:
    """Return the splits of a dataset whose episodes are all for training."""
    return {"train": f"0:{episodes}"}


# --- rows of the episode table ------------------------------------------------------------------


def episode_row(episode: int, tasks: Sequence[str], first: int, length: int) -> dict[str, Any]:
    """Return the row of an episode, without files and statistics.

    Args:
        episode: Its index.
        tasks: The sentences of its frames.
        first: The index of its first frame in the dataset.
        length: Its frames.
    """
    return {
        "episode_index": episode,
        "tasks": list(tasks),
        "length": length,
        "dataset_from_index": first,
        "dataset_to_index": first + length,
    }


def video_times(camera: str, first: int, length: int, fps: int) -> dict[str, float]:
    """Return the columns that say where in its video file an episode lies.

    Args:
        camera: The camera's key.
        first: The episode's first frame in the file.
        length: Its frames.
        fps: Frames per second.
    """
    return {
        f"videos/{camera}/from_timestamp": first / fps,
        f"videos/{camera}/to_timestamp": (first + length) / fps,
    }


def stats_columns(summaries: Mapping[str, Summary]) -> dict[str, Any]:
    """Return the statistics of an episode as columns of its row."""
    columns: dict[str, Any] = {}
    for key, summary in summaries.items():
        for stat, value in summary.items():
            columns[f"stats/{key}/{stat}"] = value.tolist()
    return columns


# --- reading the episode table ------------------------------------------------------------------


def read_v3(root: Path, info: Info) -> EpisodeTable:
    """Read the episode table from meta/episodes, ordered by episode index."""
    table = read_episode_rows(root)
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


def read_episode_rows(root: Path, prefix: str = "") -> pa.Table:
    """Return all episode rows without their statistics.

    Args:
        root: the dataset's folder.
        prefix: if given, only 'episode_index' and the columns that start with it are read.
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
        except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
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
    """Return the row in its file at which each episode starts, (E,).

    `begin` counts rows over the whole dataset, and a file starts with its first episode's row.
    """
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
