"""Repairs of meta/episodes: order, lengths and frame ranges, and times in the videos."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kata.data.arrays import Int64
from kata.data.check.findings import episodes_text, numbers_text
from kata.data.format.info import Info, file_name
from kata.data.format.v3 import EPISODE_FILES, EPISODES_PATH
from kata.data.repair.declarations import name_pattern
from kata.data.repair.working_copy import WorkingCopy
from kata.data.storage.store import local_file
from kata.data.video.packet_index import open_index
from kata.errors import DataError

_NEAR_FRAMES = 0.25
"""A start this near to a frame means that frame."""

_TIME_SLACK_S = 2e-5
"""LeRobot refuses a frame that is 1e-4 s off; a start may use up a fifth of that."""


def read_episodes_v3(root: Path) -> pa.Table:
    """Return the whole episode table, ordered by episode.

    Raises:
        DataError: A file of the table cannot be read.
    """
    tables: list[pa.Table] = []
    for path in sorted(root.glob(EPISODE_FILES)):
        try:
            tables.append(pq.ParquetFile(path).read())
        except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
            raise DataError(
                f"{path} cannot be read: {error}",
                rule="a complete parquet file",
                remedy="download the file again",
            ) from error
    table = pa.concat_tables(tables, promote_options="permissive")
    if "episode_index" not in table.column_names:
        return table.append_column("episode_index", pa.array(np.arange(len(table))))
    return table.take(pa.array(np.argsort(table["episode_index"].to_numpy(), kind="stable")))


def write_episodes_v3(
    copy: WorkingCopy, table: pa.Table, columns: Mapping[str, np.ndarray]
) -> None:
    """Write the episode table as one file, with some columns replaced.

    Args:
        copy: The copy whose table it is.
        table: Every episode, in order.
        columns: New values by name.
    """
    zeros = np.zeros(len(table), dtype=np.int64)
    places = {f"meta/episodes/{part}_index": zeros for part in ("chunk", "file")}
    for name, values in {**columns, **places}.items():
        place = table.schema.get_field_index(name)
        array = pa.array(values)
        table = (
            table.append_column(name, array) if place < 0 else table.set_column(place, name, array)
        )
    target = EPISODES_PATH.format(chunk_index=0, file_index=0)
    for name in copy.names(EPISODE_FILES):
        if name != target:
            copy.remove(name)
    copy.replace(target, lambda path: pq.write_table(table, path, compression="snappy"))


def repair_episodes_v3(copy: WorkingCopy, info: Info) -> None:
    """Correct the order of the rows, their lengths and frame ranges, and the times in the videos.

    Raises:
        DataError: The table cannot be read.
    """
    stored = np.concatenate(
        [_stored_order(copy.root / name) for name in copy.names(EPISODE_FILES)] or [np.empty(0)]
    )
    table = read_episodes_v3(copy.root)
    columns: dict[str, np.ndarray] = {}
    if (np.diff(stored) < 0).any():
        copy.changed("episode table", "its rows are ordered by episode")
        columns["episode_index"] = np.sort(stored)
    columns |= _ranges(copy, info, table)
    length = columns.get("length")
    if length is None:
        length = _ints(table, "dataset_to_index") - _ints(table, "dataset_from_index")
    if "length" not in table.column_names:
        columns["length"] = length
        copy.changed("episode table", "it has the column 'length'")
    for key, column in info.columns.items():
        if column.dtype == "video" and f"videos/{key}/from_timestamp" in table.column_names:
            columns |= _times(copy, info, key, table, length)
    if columns:
        write_episodes_v3(copy, table, columns)


def _stored_order(path: Path) -> Int64:
    names = pq.read_schema(path).names
    if "episode_index" not in names:
        return np.empty(0, np.int64)
    return pq.read_table(path, columns=["episode_index"])["episode_index"].to_numpy()


def _ints(table: pa.Table, name: str) -> Int64:
    return np.asarray(table[name].to_numpy()).astype(np.int64)


# --- frame ranges -------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Run:
    """Rows of a data file that name one episode. is_whole: frame_index counts them from 0."""

    file: int
    episode: int
    rows: int
    is_whole: bool


def _ranges(copy: WorkingCopy, info: Info, table: pa.Table) -> dict[str, np.ndarray]:
    """Return the columns that are not those of the data files, where these leave no doubt."""
    files = copy.names("data/*/*.parquet")
    runs = _runs(copy, files)
    index = _ints(table, "episode_index")
    begin, end = _ints(table, "dataset_from_index"), _ints(table, "dataset_to_index")
    length = _ints(table, "length") if "length" in table.column_names else end - begin
    consistent = (
        np.array_equal(length, end - begin)
        and np.array_equal(begin[1:], end[:-1])
        and begin[:1].sum() == 0
    )
    if runs is None or (consistent and _fills_files(copy, info, table, files, length)):
        return {}
    by_episode = {run.episode: run for run in runs}
    lacking = [int(each) for each in index if int(each) not in by_episode]
    if (
        len(by_episode) != len(runs)
        or not all(run.is_whole for run in runs)
        or not set(by_episode) <= set(index.tolist())
    ):
        if not consistent:
            copy.leave(
                "episode table",
                "neither its frame ranges nor the rows of the data files are without fault",
            )
        return {}
    if [run.episode for run in runs] != sorted(by_episode) or (
        lacking and not _is_absent(copy, info, table, lacking)
    ):
        copy.leave(
            "episode table",
            "its episodes are not those of the data files, in the order of their numbers",
        )
        return {}
    return _from_runs(copy, info, table, files, by_episode)


def _runs(copy: WorkingCopy, files: list[str]) -> list[_Run] | None:
    """Return the runs of all data files, None where a file cannot be read or has no counters."""
    found: list[_Run] = []
    for number, name in enumerate(files):
        try:
            table = pq.read_table(copy.root / name, columns=["episode_index", "frame_index"])
        except (pa.ArrowException, UnicodeDecodeError, OSError, KeyError):
            return None
        if set(table.column_names) != {"episode_index", "frame_index"} or any(
            table[n].null_count for n in table.column_names
        ):
            return None
        episode, frame = _ints(table, "episode_index"), _ints(table, "frame_index")
        edges = [0, *(np.flatnonzero(np.diff(episode)) + 1).tolist(), len(episode)]
        for first, last in pairwise(edges):
            if last > first:
                is_whole = np.array_equal(frame[first:last], np.arange(last - first))
                found.append(_Run(number, int(episode[first]), last - first, is_whole))
    return found


def _fills_files(
    copy: WorkingCopy, info: Info, table: pa.Table, files: list[str], length: Int64
) -> bool:
    """Return whether the episodes of each file that is here claim all of its rows."""
    chunk, file = _ints(table, "data/chunk_index"), _ints(table, "data/file_index")
    claimed = dict.fromkeys(files, 0)
    for position, pair in enumerate(zip(chunk.tolist(), file.tolist(), strict=True)):
        name = file_name(info.data_path, chunk_index=pair[0], file_index=pair[1])
        claimed[name] = claimed.get(name, 0) + int(length[position])
    return all(claimed[name] == pq.read_metadata(copy.root / name).num_rows for name in files)


def _is_absent(copy: WorkingCopy, info: Info, table: pa.Table, episodes: list[int]) -> bool:
    """Return whether the data files of some episodes are absent, or the episodes have no frames."""
    places = np.flatnonzero(np.isin(_ints(table, "episode_index"), episodes))
    for place in places.tolist():
        pair = {
            f"{part}_index": int(table[f"data/{part}_index"][place].as_py())
            for part in ("chunk", "file")
        }
        frames = (
            table["dataset_to_index"][place].as_py() - table["dataset_from_index"][place].as_py()
        )
        if frames > 0 and (copy.root / file_name(info.data_path, **pair)).is_file():
            return False
    return True


def _from_runs(
    copy: WorkingCopy, info: Info, table: pa.Table, files: list[str], runs: Mapping[int, _Run]
) -> dict[str, np.ndarray]:
    """Return lengths, frame ranges and files of the episodes as the rows have them."""
    index = _ints(table, "episode_index")
    length = np.array([runs[e].rows if e in runs else 0 for e in index.tolist()], dtype=np.int64)
    before = _ints(table, "length") if "length" in table.column_names else length
    here = np.isin(index, list(runs))
    for key, column in info.columns.items():
        if column.dtype == "video" and not _has_frames(
            copy, info, key, table, np.where(here, length, 0), before
        ):
            copy.leave(
                "episode table",
                f"its lengths are not those of the data files, and '{key}' has other frames",
            )
            return {}
    end = np.cumsum(length)
    columns = {"length": length, "dataset_from_index": end - length, "dataset_to_index": end}
    pairs = np.array(
        [_numbers_of(info, files[runs[e].file]) if e in runs else (-1, -1) for e in index.tolist()]
    )
    for place, part in enumerate(("chunk", "file")):
        values = _ints(table, f"data/{part}_index")
        columns[f"data/{part}_index"] = np.where(pairs[:, place] >= 0, pairs[:, place], values)
    bad = np.zeros(len(index), dtype=bool)
    for name, values in columns.items():
        bad |= here & (True if name not in table.column_names else _ints(table, name) != values)
    copy.changed(
        "episode table",
        f"frame ranges are those of the data files: {episodes_text(index[bad].tolist())}",
    )
    return columns


def _numbers_of(info: Info, name: str) -> tuple[int, int]:
    """Return chunk and file number of a name, (-1, -1) where the path template is another."""
    found = name_pattern(info.data_path).fullmatch(name)
    return (int(found["chunk_index"]), int(found["file_index"])) if found else (-1, -1)


def _has_frames(
    copy: WorkingCopy, info: Info, key: str, table: pa.Table, length: Int64, before: Int64
) -> bool:
    """Return whether the videos hold the frames of other lengths than the table says."""
    if (
        np.array_equal(length, np.where(length > 0, before, 0))
        or f"videos/{key}/file_index" not in table.column_names
    ):
        return True
    for name, rows in _by_file(info, key, table).items():
        frames = _frames(copy, name)
        if frames is not None and int(length[rows].sum()) != frames:
            return False
    return True


def _by_file(info: Info, key: str, table: pa.Table) -> dict[str, Int64]:
    """Return the rows of the table by the video file that holds their episodes."""
    chunk, file = (_ints(table, f"videos/{key}/{part}_index") for part in ("chunk", "file"))
    found: dict[str, list[int]] = {}
    for row, pair in enumerate(zip(chunk.tolist(), file.tolist(), strict=True)):
        name = file_name(info.video_path, video_key=key, chunk_index=pair[0], file_index=pair[1])
        found.setdefault(name, []).append(row)
    return {name: np.array(rows) for name, rows in found.items()}


def _frames(copy: WorkingCopy, name: str) -> int | None:
    if not (copy.root / name).is_file():
        return None
    try:
        return len(open_index(local_file(copy.root / name)))
    except DataError:
        return None


# --- times in the videos ------------------------------------------------------------------------


def _times(
    copy: WorkingCopy, info: Info, key: str, table: pa.Table, length: Int64
) -> dict[str, np.ndarray]:
    """Return the time columns of a camera as whole frames, where the files leave no doubt."""
    names = [f"videos/{key}/{edge}_timestamp" for edge in ("from", "to")]
    begin_s = np.asarray(table[names[0]].to_numpy(), dtype=np.float64)
    if not np.isfinite(begin_s).all():
        return {}
    start = np.rint(begin_s * info.fps).astype(np.int64)
    doubtful = np.abs(begin_s * info.fps - start) > _NEAR_FRAMES
    for name, rows in _by_file(info, key, table).items():
        order = rows[np.argsort(start[rows], kind="stable")]
        overlap = (np.diff(start[order]) < length[order][:-1]).any()
        frames = _frames(copy, name)
        beyond = frames is not None and (start[rows] + length[rows] > frames).any()
        if not (overlap or beyond or doubtful[rows].any()):
            continue
        # Episodes that fill a file to its last frame can only lie in it one behind the other.
        if frames == int(length[rows].sum()):
            start[rows], doubtful[rows] = np.cumsum(length[rows]) - length[rows], False
        else:
            doubtful[rows] = True
    index = _ints(table, "episode_index")
    if doubtful.any():
        said = numbers_text(index[doubtful].tolist())
        copy.leave(
            "video times",
            f"where '{key}' begins in its files cannot be told for the episodes {said}",
        )
        start[doubtful] = -1
    wanted = {names[0]: start / info.fps, names[1]: (start + length) / info.fps}
    columns: dict[str, np.ndarray] = {}
    for name, values in wanted.items():
        known = (
            np.asarray(table[name].to_numpy(), dtype=np.float64)
            if name in table.column_names
            else values + 1
        )
        off = ~(np.abs(known - values) <= _TIME_SLACK_S) & ~doubtful
        if off.any():
            columns[name] = np.where(off, values, known)
            edge = name.rpartition("/")[2]
            copy.changed(
                "video times",
                f"{edge} of '{key}' is that of a frame: {episodes_text(index[off].tolist())}",
            )
    return columns
