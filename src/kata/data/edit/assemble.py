"""Opened datasets into one new dataset of format v3.0: rows, packets, statistics, metadata."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kata.data.arrays import Int64, Pixels
from kata.data.edit.compatibility import Common, common, shared
from kata.data.edit.edit_source import SUBTASKS, Part
from kata.data.edit.episode_frames import image_frames, video_frames
from kata.data.edit.table_rows import (
    TIME_TOLERANCE_S,
    EpisodeRows,
    TableSeries,
    cells,
    new_rows,
    numbers,
    viewer_note,
)
from kata.data.edit.transcode import Recoder
from kata.data.edit.video_copy import Cuts, VideoSeries
from kata.data.format.feature_stats import STATS, STATS_FILE, ImageCounts, Summary, summarise
from kata.data.format.info import BOOKKEEPING_COLUMNS, INFO_FILE
from kata.data.format.v3 import (
    CHUNKS_SIZE,
    DATA_FILES_MB,
    DATA_PATH,
    EPISODES_PATH,
    TASKS_FILE,
    VIDEO_FILES_MB,
    VIDEO_PATH,
    FileSeries,
    episode_row,
    feature_entry,
    info_json,
    stats_columns,
    totals,
    video_times,
    whole_split,
)
from kata.data.storage.store import local_file
from kata.data.video.encoder import probe_video
from kata.data.writing.arrow_tables import episode_table, stored, task_table
from kata.data.writing.running_stats import Totals
from kata.errors import ConfigError, DataError
from kata.files import write_json
from kata.spec import BOOKKEEPING, Stats

_EPISODES_AT_ONCE = 500

Progress = Callable[[int, int], None]


@dataclass(frozen=True)
class Rules:
    """Rules for the making of a new dataset.

    robot_type: a name for the result; None keeps that of the sources.
    camera_stats: 'exact' measures cameras whose stored statistics lack figures over all frames;
        'kept' takes what there is and measures only where there is nothing.
    """

    robot_type: str | None = None
    camera_stats: str = "exact"
    data_files_size_in_mb: int = DATA_FILES_MB
    video_files_size_in_mb: int = VIDEO_FILES_MB

    def __post_init__(self) -> None:
        if self.camera_stats not in ("exact", "kept"):
            raise ConfigError(
                f"camera_stats={self.camera_stats}", rule="exact or kept", remedy="choose one"
            )
        for name in ("data_files_size_in_mb", "video_files_size_in_mb"):
            if vars(self)[name] < 1:
                raise ConfigError(
                    f"{name}={vars(self)[name]}", rule="1 or more", remedy=f"leave out --{name}"
                )


def assemble(
    parts: Sequence[Part],
    folder: Path,
    rules: Rules,
    progress: Progress,
    recode: Recoder | None = None,
) -> list[str]:
    """Fill an empty folder with the episodes of all parts, in order; returns sentences that the
    user should read.

    Raises: DataError for parts that differ, and for files that are damaged.
    """
    agreed = common(parts, rules.robot_type)
    return _Assembly(parts, agreed, folder, rules, recode).run(progress)


class _Assembly:
    """The state of one run: series of files that grow, and the rows of the episode table."""

    def __init__(
        self,
        parts: Sequence[Part],
        agreed: Common,
        folder: Path,
        rules: Rules,
        recode: Recoder | None,
    ) -> None:
        self.parts = parts
        self.agreed = agreed
        self.folder = folder
        self.rules = rules
        self.recode = recode
        self.old = agreed.columns
        self.changed = recode.columns(agreed.columns, parts[0].unread) if recode else {}
        self.columns = {**agreed.columns, **self.changed, **BOOKKEEPING_COLUMNS}
        of_parts = itertools.chain.from_iterable(part.notes for part in parts)
        self.notes = [*dict.fromkeys(of_parts), *agreed.notes]
        self.videos: dict[str, VideoSeries] = {}
        for key, column in self.columns.items():
            if column.dtype == "video":
                self.videos[key] = VideoSeries(folder, self._video_files(key), agreed.fps)
        span = parts[0].layout.data
        schema = pq.read_schema(parts[0].root / span.files[span.file[0]])
        note = viewer_note(self.columns, schema)
        self.data = TableSeries(folder, self._table_files(DATA_PATH), note)
        self.rows: list[dict[str, Any]] = []
        self.frames = 0
        self.cuts: dict[str, Cuts] = {}

    def run(self, progress: Progress) -> list[str]:
        """All episodes, then the metadata; info.json comes last."""
        total = sum(len(part.layout.index) for part in self.parts)
        try:
            for part, renumber in zip(self.parts, self.agreed.renumber, strict=True):
                table = EpisodeRows(part)
                known = part.stored_stats(
                    [key for key, column in self.old.items() if column.is_camera]
                )
                for position in range(len(part.layout.index)):
                    self._episode(part, position, table, renumber, known)
                    progress(len(self.rows), total)
        finally:
            self.data.close()
        for series in self.videos.values():
            series.flush()
        self._metadata()
        return self.notes

    def _table_files(self, template: str) -> FileSeries:
        limit_mb = self.rules.data_files_size_in_mb
        return FileSeries(template, limit_mb, chunks_size=CHUNKS_SIZE)

    def _video_files(self, camera: str) -> FileSeries:
        limit_mb = self.rules.video_files_size_in_mb
        return FileSeries(VIDEO_PATH, limit_mb, chunks_size=CHUNKS_SIZE, camera=camera)

    def _episode(
        self,
        part: Part,
        position: int,
        table: EpisodeRows,
        renumber: Int64,
        known: dict[int, Stats],
    ) -> None:
        path, first = table.place(position)
        rows = table.get(position)
        values = self._values(path, rows, part, position) | self._book(
            path, rows, part, position, renumber
        )
        length = len(rows)
        tasks = part.layout.tasks[position]
        if not tasks:
            numbers_used = dict.fromkeys(values["task_index"].tolist())
            tasks = [self.agreed.tasks[number] for number in numbers_used]
        row = episode_row(len(self.rows), tasks, self.frames, length) | self.data.place(length)
        summaries = {
            key: summarise(found) for key, found in values.items() if isinstance(found, np.ndarray)
        }
        for key in self.columns:
            if self.columns[key].is_camera:
                frames = self._frames(part, position, key, path, first, rows)
                summaries |= self._camera(part, position, key, frames, known, row)
        row |= stats_columns(summaries)
        self.data.add(new_rows(values, self.columns))
        self.frames += length
        self.rows.append(row)

    def _values(self, path: Path, rows: pa.Table, part: Part, position: int) -> dict[str, Any]:
        """The columns that are not bookkeeping."""
        found: dict[str, Any] = {}
        for key, column in stored(self.columns).items():
            if key not in BOOKKEEPING:
                copied = column.dtype in ("image", "string", "language")
                found[key] = (cells if copied else numbers)(path, key, rows, column)
        return found

    def _book(
        self, path: Path, rows: pa.Table, part: Part, position: int, renumber: Int64
    ) -> dict[str, Any]:
        """The bookkeeping columns of an episode at its new place."""
        count, fps = len(rows), self.agreed.fps
        frame = np.arange(count, dtype=np.int64)
        time_s = (frame / fps).astype(np.float32)
        if "timestamp" in rows.column_names:
            given = numbers(path, "timestamp", rows, BOOKKEEPING_COLUMNS["timestamp"])
            off_s = float(np.abs(given - time_s).max())
            time_s = given if off_s <= TIME_TOLERANCE_S else time_s
            if off_s > TIME_TOLERANCE_S:
                self._note(
                    f"time stamps of {part.name} are off frame / fps and were computed again"
                )
        start = part.dataset.episodes.start[position]
        task = part.dataset.column("task_index")[start : start + count]
        return {
            "timestamp": time_s,
            "frame_index": frame,
            "episode_index": np.full(count, len(self.rows), dtype=np.int64),
            "index": frame + self.frames,
            "task_index": renumber[task],
        }

    def _frames(
        self, part: Part, position: int, key: str, path: Path, first: int, rows: pa.Table
    ) -> Callable[[], Iterator[Pixels]]:
        """The episode's frames of one camera, each time it is called."""
        column, count = self.old[key], len(rows)
        if column.dtype == "image":
            return lambda: image_frames(path, cells(path, key, rows, column), first, column.shape)
        cuts, start = self._cuts(part, position, key), int(part.layout.videos[key].first[position])
        return lambda: video_frames(cuts.index, start, count)

    def _camera(
        self,
        part: Part,
        position: int,
        key: str,
        frames: Callable[[], Iterator[Pixels]],
        known: dict[int, Stats],
        row: dict[str, Any],
    ) -> dict[str, Summary]:
        """Take over or encode an episode's video; its place goes into `row`, its statistics come
        back.
        """
        first, length = 0, row["length"]
        cuts: Cuts | None = None
        summary: Summary | None = None
        if key in self.changed and self.recode:
            cuts, summary = self.recode.episode(key, frames)
        elif self.columns[key].dtype == "video":
            cuts, first = (
                self._cuts(part, position, key),
                int(part.layout.videos[key].first[position]),
            )
        if cuts is not None:
            file_columns, first_in_file = self.videos[key].add(cuts, first, length)
            row |= file_columns | video_times(key, first_in_file, length, self.agreed.fps)
        if summary is None:
            stored_one = known.get(int(part.layout.index[position]), {}).get(key, {})
            summary = self._camera_stats(part, key, stored_one, frames, length)
        return {key: summary} if summary else {}

    def _camera_stats(
        self,
        part: Part,
        key: str,
        known: Summary,
        frames: Callable[[], Iterator[Pixels]],
        length: int,
    ) -> Summary:
        """Return the stored statistics where they suffice, else measure all frames."""
        basic = set(STATS[:5])
        if set(known) >= (set(STATS) if self.rules.camera_stats == "exact" else basic):
            # counts of some recorders are of pixels; of frames they weigh alike
            return {**known, "count": np.minimum(known["count"].reshape(-1)[:1], length)}
        if key in part.unread:
            self._note(f"'{key}' of {part.name} brings no statistics; depth maps are not measured")
            return {}
        counts = ImageCounts(self.old[key].shape[2])
        for frame in frames():
            counts.add(frame)
        self._note(f"statistics of '{key}' of {part.name} were measured over all frames")
        return counts.summary()

    def _cuts(self, part: Part, position: int, key: str) -> Cuts:
        """The packets of the file that holds an episode, after comparing them with what is
        declared.
        """
        span = part.layout.videos[key]
        path = part.root / span.files[span.file[position]]
        cuts = self.cuts.get(key)
        if cuts is None or cuts.path != path:
            cuts = self.cuts[key] = Cuts(path, self.agreed.fps)
        height, width, _ = self.old[key].shape
        last = int(span.first[position] + part.layout.length[position])
        if (cuts.index.height, cuts.index.width) != (height, width) or last > len(cuts.index):
            raise DataError(
                f"{path} has {len(cuts.index)} frames of {cuts.index.height}x{cuts.index.width}; "
                "episode "
                f"{part.layout.index[position]} needs {last} of {height}x{width}",
                rule="a video has the frames and the size that the metadata claim",
                remedy="download the file again, or leave the episode out with --exclude",
            )
        return cuts

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)

    def _metadata(self) -> None:
        extras = _united([part.extras() for part in self.parts])
        whole = Totals(self.columns)
        series = TableSeries(self.folder, self._table_files(EPISODES_PATH))
        for begin in range(0, len(self.rows), _EPISODES_AT_ONCE):
            rows = self.rows[begin : begin + _EPISODES_AT_ONCE]
            file_columns = series.place(len(rows))
            for row in rows:
                row |= file_columns
                whole.add(row)
            table = episode_table(self.columns, rows)
            for name in extras.column_names:
                table = table.append_column(name, extras[name].slice(begin, len(rows)))
            series.add(table)
        series.close()
        tasks = task_table(self.agreed.tasks)
        pq.write_table(tasks, self.folder / TASKS_FILE, compression="snappy")
        subtasks = self.parts[0].root / SUBTASKS
        if subtasks.is_file():
            shutil.copyfile(subtasks, self.folder / SUBTASKS)
        write_json(self.folder / STATS_FILE, whole.stats(self.data.files, self.frames))
        write_json(self.folder / INFO_FILE, self._info())

    def _info(self) -> dict[str, Any]:
        features = {key: dict(entry) for key, entry in self.agreed.features.items()}
        for key in self.videos:
            if key in self.changed and self.recode:
                features[key] = self.recode.entry(key, features[key])
            entry = features[key]
            probed = shared([probe_video(local_file(path)) for path in self.videos[key].files])
            if key in self.parts[0].unread:
                del probed["video.channels"]  # a depth map has one
            entry["info"] = {**entry.get("info", {}), **probed}
        for key, column in BOOKKEEPING_COLUMNS.items():
            features[key] = feature_entry(column)
        info = info_json(
            fps=self.agreed.fps,
            features=features,
            robot_type=self.agreed.robot_type,
            chunks_size=CHUNKS_SIZE,
            data_files_size_in_mb=self.rules.data_files_size_in_mb,
            video_files_size_in_mb=self.rules.video_files_size_in_mb,
        )
        counts = totals(len(self.rows), self.frames, len(self.agreed.tasks))
        return {**info, **counts, "splits": whole_split(len(self.rows)), **self.agreed.rest}


def _united(tables: Sequence[pa.Table]) -> pa.Table:
    """Extra columns of the episodes; null where a dataset lacks one."""
    try:
        return pa.concat_tables(tables, promote_options="permissive").drop_columns(["row"])
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise DataError(
            f"the episode tables have columns of one name and other types: {error}",
            rule="columns of equal names have equal types",
            remedy="rename one of them in its dataset",
        ) from error
