"""Repairs of timestamp, frame_index, episode_index, index and task_index in the data files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kata.data.arrays import Int64
from kata.data.check.findings import episodes_text
from kata.data.check.tables import clock_faults
from kata.data.format.episode_table import EpisodeTable
from kata.data.format.info import BOOKKEEPING_COLUMNS, Info, read_info
from kata.data.format.read import read_episode_table
from kata.data.format.tasks import read_tasks
from kata.data.repair.table_file import rewrite_table
from kata.data.repair.working_copy import WorkingCopy

_IN_ORDER = ("episode_index", "frame_index", "index", "timestamp", "task_index")
"""Of the columns, what is decided first may depend on nothing that is decided later."""


def repair_columns(copy: WorkingCopy) -> None:
    """Correct the index columns of every data file where episodes and times leave one answer.

    Raises:
        DataError: The metadata cannot be read.
    """
    info = read_info(copy.root)
    layout = read_episode_table(copy.root, info, lambda _: None, [])
    tasks = read_tasks(copy.root, info, layout, [])
    work = _Columns(copy, info, layout, tasks)
    for number in np.unique(layout.data.file).tolist():
        work.file(number)
    work.tell()


@dataclass
class _Columns:
    """Findings in the files so far. fixed, open: Episodes by column."""

    copy: WorkingCopy
    info: Info
    layout: EpisodeTable
    tasks: list[str]
    fixed: dict[str, list[int]] = field(default_factory=dict)
    open: dict[str, list[int]] = field(default_factory=dict)

    def file(self, number: int) -> None:
        """Correct one data file; one that is damaged or short is left as it is."""
        name = self.layout.data.files[number]
        positions = np.flatnonzero(self.layout.data.file == number)
        try:
            file = pq.ParquetFile(self.copy.root / name)
            present = [key for key in BOOKKEEPING_COLUMNS if key in file.schema_arrow.names]
            table = file.read(columns=present)
        except (pa.ArrowException, UnicodeDecodeError, OSError):
            return
        part = self.layout.take(positions)
        rows = file.metadata.num_rows
        if int((part.data.first + part.length).max()) > rows:
            return
        known = {key: _numbers(table[key], rows) for key in present}
        wanted = {key: values.copy() for key, values in known.items()}
        lacking = [key for key in BOOKKEEPING_COLUMNS if key not in known]
        if lacking and int(part.length.sum()) != rows:
            return
        for key in lacking:
            wanted[key] = np.full(rows, np.nan)
        starts = np.cumsum(self.layout.length) - self.layout.length
        for at, position in enumerate(positions.tolist()):
            first, length = int(part.data.first[at]), int(part.length[at])
            self._episode(
                wanted, slice(first, first + length), position, int(starts[position]), lacking
            )
        self._write(name, known, wanted, lacking)

    def _write(
        self, name: str, known: dict[str, Any], wanted: dict[str, Any], lacking: Sequence[str]
    ) -> None:
        changed = {
            key: values.astype(BOOKKEEPING_COLUMNS[key].dtype)
            for key, values in wanted.items()
            if np.isfinite(values).all()
            and (key in lacking or not np.array_equal(values, known[key]))
        }
        if changed:
            rewrite_table(self.copy, name, changed)

    def _episode(
        self, wanted: dict[str, Any], rows: slice, position: int, start: int, lacking: Sequence[str]
    ) -> None:
        episode, length = int(self.layout.index[position]), rows.stop - rows.start
        frame = np.arange(length)
        time = wanted["timestamp"][rows]
        is_timed = "timestamp" not in lacking and _is_regular(time, frame, self.info.fps)
        counts = np.array_equal(wanted["frame_index"][rows], frame)
        expected = {
            "frame_index": (frame, is_timed or "frame_index" in lacking),
            "episode_index": (
                np.full(length, episode),
                counts or is_timed or "episode_index" in lacking,
            ),
            "index": (start + frame, True),
            "timestamp": (
                (frame / self.info.fps).astype(np.float32),
                is_timed or self._is_given("timestamp", lacking),
            ),
        }
        for key, (values, is_sure) in expected.items():
            found = wanted[key][rows]
            good = (
                _is_exact(found, frame, self.info.fps)
                if key == "timestamp"
                else np.array_equal(found, values)
            )
            if good:
                continue
            if is_sure:
                wanted[key][rows] = values
            self._note(key, episode, is_sure)
        self._task(wanted, rows, position)

    def _is_given(self, key: str, lacking: Sequence[str]) -> bool:
        return key in lacking or self.copy.answers.fps is not None

    def _task(self, wanted: dict[str, Any], rows: slice, position: int) -> None:
        """A task number without a task is that of the episode's one task."""
        numbers = wanted["task_index"][rows]
        if np.isfinite(numbers).all() and numbers.min() >= 0 and numbers.max() < len(self.tasks):
            return
        sentences = self.layout.tasks[position]
        is_sure = len(sentences) == 1 and self.tasks.count(sentences[0]) == 1
        if is_sure:
            wanted["task_index"][rows] = self.tasks.index(sentences[0])
        self._note("task_index", int(self.layout.index[position]), is_sure)

    def _note(self, key: str, episode: int, is_sure: bool) -> None:
        (self.fixed if is_sure else self.open).setdefault(key, []).append(episode)

    def tell(self) -> None:
        """Note every column once, with its episodes."""
        for key, episodes in self.fixed.items():
            self.copy.changed(key, f"{_MADE[key]}: {episodes_text(episodes)}")
        for key, episodes in self.open.items():
            choices = [f"--exclude={episodes} leaves them out".replace(", ", ",")]
            if key == "timestamp":
                choices.append(f"--fps={self.info.fps} gives frame k the time k / {self.info.fps}")
            self.copy.leave(key, f"{_OPEN[key]}: {episodes_text(episodes)}", *choices)


_MADE = {
    "episode_index": "it is that of the episode table",
    "frame_index": "it counts the frames of the episode",
    "index": "it counts the frames of the dataset",
    "timestamp": "it is frame_index / fps",
    "task_index": "it is that of the episode's task",
}

_OPEN = {
    "episode_index": "rows name another episode, and their times are no help",
    "frame_index": "it does not count the frames, and the times have faults too",
    "timestamp": "time runs back, stands still or jumps, so frames may be lost, doubled or swapped",
    "task_index": "it names no task, and the episode has not one task",
}


def _numbers(column: pa.ChunkedArray, rows: int) -> np.ndarray:
    """Return a column as float64 with NaN for what is empty; indices stay exact up to 2 ** 53."""
    if not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
        return np.full(rows, np.nan)
    return np.asarray(column.cast(pa.float64()).to_numpy(), dtype=np.float64)


def _is_regular(time: np.ndarray, frame: Int64, fps: int) -> bool:
    """Return whether time rises from frame to frame without a jump."""
    unordered, jumps, _ = clock_faults(time.astype(np.float32), frame, fps)
    return not (unordered.any() or jumps.any())


def _is_exact(time: np.ndarray, frame: Int64, fps: int) -> bool:
    return not any(fault.any() for fault in clock_faults(time.astype(np.float32), frame, fps))
