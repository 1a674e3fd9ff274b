"""The check of a dataset: every rule of opening one, applied file by file, and further rules.

No rule is written twice: what opening refuses is found by calling the code that opens.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np

from kata.data.check.cameras import CameraCheck, Piece, run_all
from kata.data.check.faults import RecordingFaults
from kata.data.check.findings import Findings, Problem, Report
from kata.data.check.metadata import (
    check_episode_table,
    check_files,
    check_numbering,
    check_overlaps,
    check_tasks,
    check_texts,
    check_totals,
)
from kata.data.check.recording import check_recording
from kata.data.check.stats import check_constant, check_stored
from kata.data.check.tables import TableCheck
from kata.data.dataset.columns import schema_names
from kata.data.dataset.dataset import Dataset, open_source, readable_columns
from kata.data.format.episode_table import EpisodeTable
from kata.data.format.info import Info, raw_info, read_info
from kata.data.format.read import read_episode_table, refuse_empty
from kata.data.format.selection import AVAILABLE, choose, drop_absent_cameras, only_whole
from kata.data.format.source import Source
from kata.data.format.tasks import read_tasks
from kata.data.format.text import REPAIR
from kata.errors import DataError

__all__ = ["Problem", "Report", "check_dataset"]

Counting: TypeAlias = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]
"""Shows progress, as `kata.log.counting` does."""


def check_dataset(
    source: Source,
    *,
    episodes: Sequence[int] | str | None = None,
    exclude_episodes: Sequence[int] | None = None,
    decode: bool = False,
    sampled_frames: int | None = None,
    threads: int | None = None,
    counting: Counting,
) -> Report:
    """Check a dataset, or some of its episodes. Files are only read.

    Args:
        source: of the dataset. Files that only the Hub has are downloaded first.
        episodes: as for `open_dataset`; 'available' accepts an incomplete download.
        exclude_episodes: as for `open_dataset`.
        decode: True to decode every frame.
        sampled_frames: None, or the most frames per camera in which faults of recording are sought.
        threads: number of threads; None means one per core.
        counting: shows progress.

    Returns:
        The problems, and what was looked at.

    Raises:
        DataError: There is no dataset, or no such episode.
    """
    root, found = source.root, Findings()
    if not (root / "meta" / "info.json").is_file():
        read_info(root)
    try:
        check_texts(root, found)
        info, notes = read_info(root), [*source.notes]
        whole = read_episode_table(root, info, source.ensure, notes)
        tasks = read_tasks(root, info, whole, notes)
    except (DataError, PermissionError) as error:
        found.caught("metadata", error)
        return _report(source, found)
    layout = whole.take(choose(source.repo_id, whole.index, episodes, exclude_episodes))
    if episodes != AVAILABLE or source.mirror is not None:
        source.ensure(layout.files())
    layout = _with_frames(root, layout, found)
    found.count("episodes", len(layout.index))
    found.count("frames", int(layout.length.sum()))
    _check_metadata(root, info, whole, tasks, found)
    layout, absent = drop_absent_cameras(
        source.store, info, whole, layout, available=episodes == AVAILABLE
    )
    if episodes != AVAILABLE:
        check_files(source.store, layout, found)
    job = _Job(source, info, whole, tasks, absent, found, threads or os.cpu_count() or 1, counting)
    layout = job.run(layout, decode)
    recording = None if sampled_frames is None else job.record(layout, sampled_frames)
    return _report(source, found, recording)


def _with_frames(root: Path, layout: EpisodeTable, found: Findings) -> EpisodeTable:
    """Return the episodes that have frames; the others are recorded as errors."""
    try:
        refuse_empty(root, layout)
    except DataError as error:
        found.caught("empty episodes", error, layout.index[layout.length < 1])
    return layout.take(np.flatnonzero(layout.length > 0))


def _report(source: Source, found: Findings, recording: RecordingFaults | None = None) -> Report:
    problems = tuple(found.problems)
    return Report(source.repo_id, problems, found.seen, source.place, recording)


def open_good(source: Source, episodes: Sequence[int], found: Findings) -> Dataset | None:
    """Open the episodes that have no error; return None if these cannot be opened either."""
    bad: set[int] = set()
    for problem in found.problems:
        bad.update(problem.episodes if problem.error else ())
    good = sorted(set(episodes) - bad)
    if not good:
        return None
    try:
        data = open_source(source, episodes=good)
        data.task_range()
    except DataError:
        return None  # recorded already
    return data


def _check_metadata(
    root: Path, info: Info, whole: EpisodeTable, tasks: list[str], found: Findings
) -> None:
    check_totals(raw_info(root), whole, tasks, found)
    check_numbering(whole, found)
    if info.is_v3:
        check_episode_table(root, info, found)
    check_tasks(root, info, whole, tasks, found)
    check_overlaps(whole, found)


@dataclass(frozen=True)
class _Job:
    """The part of a check that looks into files."""

    source: Source
    info: Info
    whole: EpisodeTable
    tasks: list[str]
    absent: list[str]
    found: Findings
    threads: int
    counting: Counting

    def run(self, layout: EpisodeTable, decode: bool) -> EpisodeTable:
        """Check the tables and the cameras of the episodes whose files are present; return these
        episodes.
        """
        layout = self._readable(layout)
        if not len(layout.index):
            return layout
        notes: list[str] = []
        columns, derived = readable_columns(self.source, self.info, layout, self.absent, notes)
        tables = TableCheck(
            self.source.root,
            self.info,
            layout,
            self.whole,
            {key: column for key, column in columns.items() if not column.is_camera},
            derived,
            self.tasks,
        )
        raw = raw_info(self.source.root)["features"]
        cameras = [
            CameraCheck(self.source, self.info, key, layout, self.whole, raw[key])
            for key, column in columns.items()
            if column.is_camera
        ]
        good = self._look(layout, tables, cameras)
        check_constant(columns, tables.figures(), self.found)
        self._open(layout, tables)
        if decode:
            self._decode(good)
        return layout

    def record(self, layout: EpisodeTable, sampled_frames: int) -> RecordingFaults:
        """Look for faults of recording in the episodes without errors."""
        data = open_good(self.source, layout.index.tolist(), self.found)
        if data is None:
            return RecordingFaults(looked={"recording": "not looked at: no episode opens"})
        return check_recording(
            data,
            self.found,
            sampled_frames=sampled_frames,
            threads=self.threads,
            counting=self.counting,
        )

    def _readable(self, layout: EpisodeTable) -> EpisodeTable:
        """Return the episodes whose files exist and whose tables have a footer."""
        root = self.source.root
        try:
            layout = only_whole(self.source.repo_id, self.source.store, layout, available=True)
        except DataError:
            return layout.take(np.empty(0, np.int64))  # each absent file is recorded already
        bad: list[int] = []
        for number in np.unique(layout.data.file).tolist():
            try:
                schema_names(root / layout.data.files[number])
            except DataError as error:
                bad.append(number)
                self.found.caught("data", error, layout.index[layout.data.file == number])
        return layout.take(np.flatnonzero(~np.isin(layout.data.file, bad)))

    def _look(
        self, layout: EpisodeTable, tables: TableCheck, cameras: list[CameraCheck]
    ) -> list[tuple[CameraCheck, int]]:
        """Check every file once without decoding; return the camera files whose frames can be
        read.
        """
        good: list[tuple[CameraCheck, int]] = []

        def look(camera: CameraCheck, file: int) -> int:
            if camera.check(file, self.found):
                good.append((camera, file))
            return 1

        def read(file: int) -> int:
            tables.check(file, self.found)
            return 1

        pieces: list[Piece] = [partial(read, file) for file in np.unique(layout.data.file).tolist()]
        self.found.count("table files", len(pieces))
        for camera in cameras:
            pieces += [partial(look, camera, file) for file in camera.files()]
        self.found.count("camera files", sum(len(camera.files()) for camera in cameras))
        with self.counting("files looked at") as progress:
            run_all(iter(pieces), self.threads, progress, len(pieces))
        return good

    def _open(self, layout: EpisodeTable, tables: TableCheck) -> None:
        """Open the remaining episodes as training does, for its own errors and the stored
        statistics.
        """
        try:
            data = open_source(self.source, episodes=layout.index.tolist())
            figures = {
                key: figure
                for key, figure in tables.figures().items()
                if figure["count"][0] == data.num_frames
            }
            check_stored(data, figures, self.found)
        except DataError as error:
            self.found.caught("metadata", error)
            return
        for note in data.notes:
            self.found.warning(
                "oddities",
                note,
                rule="what is unusual is reported",
                remedy="none needed" if "is left out" in note else f"none for kata; {REPAIR}",
            )

    def _decode(self, good: list[tuple[CameraCheck, int]]) -> None:
        def pieces() -> Iterator[Piece]:
            for camera, file in good:
                yield from camera.pieces(file, self.found)

        total = sum(camera.num_frames(file) for camera, file in good)
        self.found.count("frames decoded", total)
        with self.counting("frames decoded") as progress:
            run_all(pieces(), self.threads, progress, total)
