"""Checks of the data files: what opening them refuses, timestamps, counters, and statistics."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kata.data.arrays import Int64, ranges
from kata.data.check.findings import Findings
from kata.data.dataset.columns import Columns
from kata.data.format.episode_table import EpisodeTable
from kata.data.format.feature_stats import Summary, merge_summaries, moments
from kata.data.format.info import Info
from kata.data.format.tasks import check_task_range, task_numbers
from kata.data.format.text import REPAIR
from kata.spec import Column

_TOLERANCE_S = 1e-4
"""The largest error of a timestamp that LeRobot accepts."""

Values = dict[str, NDArray[Any]]


class TableCheck:
    """A check of data files, one by one, from any thread. It keeps the statistics of their columns.

    Args:
        root: the dataset's folder.
        info: its declarations.
        layout: the episodes that are checked.
        whole: all episodes of the dataset.
        columns: the readable columns that are no cameras.
        derived: the columns among them that the files lack.
        tasks: sentences by task_index.
    """

    def __init__(
        self,
        root: Path,
        info: Info,
        layout: EpisodeTable,
        whole: EpisodeTable,
        columns: dict[str, Column],
        derived: set[str],
        tasks: list[str],
    ) -> None:
        self._root = root
        self._info = info
        self._layout = layout
        self._columns = columns
        self._derived = derived
        self._tasks = tasks
        starts = np.cumsum(whole.length) - whole.length
        self._start = dict(zip(whole.index.tolist(), starts.tolist(), strict=True))
        self._claimed = np.bincount(whole.data.file, weights=whole.length).astype(np.int64)
        self._figures: dict[str, list[Summary]] = {}
        self._lock = Lock()

    def check(self, file: int, found: Findings) -> None:
        """Read one data file with the rules of opening, then check its values."""
        part = self._layout.take(np.flatnonzero(self._layout.data.file == file))
        path = self._root / part.data.files[file]
        rows = pq.read_metadata(path).num_rows
        if rows > self._claimed[file]:
            found.warning(
                "unused rows",
                f"{path.name} has {rows} rows, its episodes claim {self._claimed[file]}",
                rule="every row of a data file belongs to an episode",
                remedy="none for training; LeRobot's own readers count rows over all files. "
                f"{REPAIR} where the videos have as many frames",
            )
        self._check_layout(path, found)
        values: Values = {}
        if not found.attempt(
            "data", part, lambda layout: values.update(self._read(layout, list(self._columns)))
        ):
            values = self._rest(part, found)
        with self._lock:
            for key, array in values.items():
                if self._columns[key].dtype != "string":
                    self._figures.setdefault(key, []).append(moments(array))
        self._check_counters(part, values, found)
        if "timestamp" in values:
            _check_clock(part, values["timestamp"], self._info.fps, found)
        if "task_index" in values:
            tasks = values["task_index"]
            split = dict(
                zip(part.index.tolist(), np.split(tasks, np.cumsum(part.length)[:-1]), strict=True)
            )
            found.attempt("task numbers", part, lambda layout: self._check_tasks(split, layout))

    def _check_layout(self, path: Path, found: Findings) -> None:
        schema = pq.read_schema(path)
        for key, column in self._columns.items():
            if key in schema.names and is_list_of_one(schema, key, column):
                found.warning(
                    "column layout",
                    f"'{key}' of {path.name} holds lists of one number",
                    rule="a feature of shape [1] is a number in every row; LeRobot opens nothing "
                    "else",
                    remedy=f"none for kata; {REPAIR}",
                )

    def figures(self) -> dict[str, Summary]:
        """Return min, max, mean, std and count of each column over all frames that could be
        read.
        """
        return {key: merge_summaries(parts) for key, parts in self._figures.items()}

    def _read(self, layout: EpisodeTable, keys: list[str]) -> Values:
        columns = {key: self._columns[key] for key in {*keys, "episode_index", "task_index"}}
        derived = self._derived & set(columns)
        reader = Columns(
            self._root, layout, columns, derived, self._info.fps, task_numbers(layout, self._tasks)
        )
        values = reader.fresh()
        found = {key: values[key] for key in keys}
        # A file by itself does not tell how many frames come before it.
        if "index" in found and "index" in derived:
            found["index"] = self._indices(layout)
        return found

    def _indices(self, layout: EpisodeTable) -> Int64:
        """Return the place in the dataset of each frame of some episodes."""
        start = np.repeat([self._start[each] for each in layout.index.tolist()], layout.length)
        return start + ranges(np.zeros_like(layout.length), layout.length)

    def _rest(self, part: EpisodeTable, found: Findings) -> Values:
        """Return the columns of a bad file that are good by themselves.

        The faults of the others are recorded, each once.
        """
        values: Values = {}
        known = {problem.what for problem in found.problems}
        for key in self._columns:
            own = Findings()
            if own.attempt(
                "data", part, lambda layout, k=key: values.update(self._read(layout, [k]))
            ):
                continue
            values.pop(key, None)
            found.problems += [problem for problem in own.problems if problem.what not in known]
            known |= {problem.what for problem in own.problems}
        return values

    def _check_counters(self, part: EpisodeTable, values: Values, found: Findings) -> None:
        frame = ranges(np.zeros_like(part.length), part.length)
        for key, expected in (("frame_index", frame), ("index", self._indices(part))):
            if key not in values:
                continue
            for episode, rows in _by_episode(part, values[key] != expected):
                row = rows[0]
                found.error(
                    key,
                    f"episode {episode}: {key} is {values[key][row]} where {expected[row]} is due "
                    f"({len(rows)} frames differ, first frame {frame[row]})",
                    rule="frame_index counts the frames of an episode, index those of the dataset",
                    remedy=f"{REPAIR} where the times tell which it is; LeRobot's readers use both",
                    episodes=[episode],
                )

    def _check_tasks(self, split: dict[int, Int64], layout: EpisodeTable) -> None:
        for episode in layout.index.tolist():
            numbers = split[episode]
            check_task_range(
                f"episode {episode}", int(numbers.min()), int(numbers.max()), self._tasks
            )


def _by_episode(part: EpisodeTable, bad: NDArray[np.bool_]) -> list[tuple[int, Int64]]:
    """Return (episode, bad rows of the part) for the episodes that have any."""
    rows = np.flatnonzero(bad)
    position = np.searchsorted(np.cumsum(part.length), rows, side="right")
    return [(int(part.index[each]), rows[position == each]) for each in np.unique(position)]


def is_list_of_one(schema: pa.Schema, key: str, column: Column) -> bool:
    """Return whether a file stores lists where a feature is declared as one number or text."""
    kind = schema.field(key).type
    return column.shape == (1,) and (pa.types.is_list(kind) or pa.types.is_fixed_size_list(kind))


def clock_faults(
    time_s: NDArray[np.float32], frame: Int64, fps: int
) -> tuple[NDArray[np.bool_], NDArray[np.bool_], NDArray[np.bool_]]:
    """Find frames whose time does not rise, jumps by more than half a frame, or is off frame / fps.

    Args:
        time_s: (N,) times of episodes one after the other.
        frame: (N,) number of each frame in its episode.
        fps: frames per second.

    Returns:
        Three (N,) masks; a time that does not rise is no jump.
    """
    time = time_s.astype(np.float64)
    step = _steps(time, frame, fps)
    unordered = ~np.isfinite(time) | ~(step > 0)
    jumps = ~unordered & (np.abs(step * fps - 1) > 0.5)
    # A float32 of many seconds cannot be nearer.
    nearest = np.maximum(_TOLERANCE_S, 2 * np.spacing(time_s).astype(np.float64))
    return unordered, jumps, np.abs(time - frame / fps) > nearest


def _steps(time: NDArray[np.float64], frame: Int64, fps: int) -> NDArray[np.float64]:
    """Return the seconds since the frame before; for the first frame of an episode, 1 / fps."""
    step = np.diff(time, prepend=0.0)
    step[frame == 0] = 1 / fps
    return step


def _check_clock(
    part: EpisodeTable, time_s: NDArray[np.float32], fps: int, found: Findings
) -> None:
    """Report timestamps that do not rise by one frame per row from 0.

    There are three rules. Of each episode only the first that fails is reported.
    """
    time = time_s.astype(np.float64)
    frame = ranges(np.zeros_like(part.length), part.length)
    step = _steps(time, frame, fps)
    unordered, jumps, off = clock_faults(time_s, frame, fps)
    reported: set[int] = set()

    def tell(
        level: Callable[..., None],
        kind: str,
        bad: NDArray[np.bool_],
        what: Callable[[Int64], str],
        remedy: str,
    ) -> None:
        for episode, rows in _by_episode(part, bad):
            if episode not in reported:
                rule = f"timestamps begin at 0 and rise by {1 / fps:.4g} s"
                level(
                    kind,
                    f"episode {episode}: {what(rows)}",
                    rule=rule,
                    remedy=remedy,
                    episodes=[episode],
                )
                reported.add(episode)

    def disorder(rows: Int64) -> str:
        at = rows[0]
        before = time[at - 1] if frame[at] else time[at]
        return (
            f"time goes from {before:.4f} s to {time[at]:.4f} s at frame {frame[at]} "
            f"({len(rows)} such places)"
        )

    def gap(rows: Int64) -> str:
        at = rows[0]
        return (
            f"{step[at]:.4f} s between frames {frame[at] - 1} and {frame[at]} ({len(rows)} "
            "such places)"
        )

    def offset(rows: Int64) -> str:
        at, furthest = rows[0], np.abs(time[rows] - frame[rows] / fps).max()
        return (
            f"frame {frame[at]} is stamped {time[at]:.4f} s, {frame[at] / fps:.4f} s is due "
            f"({len(rows)} frames are off, by up to {furthest:.4f} s)"
        )

    repair = "frames are swapped or doubled: record the episode again or leave it out"
    tell(found.error, "time order", unordered, disorder, repair)
    cut = "frames were lost while recording: leave the episode out, or cut it at the gap"
    tell(found.error, "time gaps", jumps, gap, cut)
    refused = f"none for kata, which counts frames. LeRobot refuses {_TOLERANCE_S:g} s; {REPAIR}"
    tell(found.warning, "time offset", off, offset, refused)
