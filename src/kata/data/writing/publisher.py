"""The published part of a dataset that is being written: whole files, and info.json as the last
word.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from kata.data.format.feature_stats import STATS_FILE
from kata.data.format.info import INFO_FILE
from kata.data.format.v3 import (
    CHUNKS_SIZE,
    DATA_FILES_MB,
    DATA_PATH,
    EPISODE_FILES,
    EPISODES_PATH,
    TASKS_FILE,
    VIDEO_FILES_MB,
    VIDEO_PATH,
    FileSeries,
    totals,
    video_times,
    whole_split,
)
from kata.data.storage.store import local_file
from kata.data.video.encoder import join_videos, probe_video
from kata.data.writing.arrow_tables import episode_table, frame_schema, task_table
from kata.data.writing.episode_buffer import DATA, copy_frames
from kata.data.writing.running_stats import Totals
from kata.files import fsync
from kata.spec import Column


class Publisher:
    """The published part of a dataset: each `publish` adds a file per stream and changes no earlier
    one.

    Args:
        root: the dataset's folder.
        hidden: a folder on the same disk, for files that are not finished.
        info: the content of info.json.
    """

    def __init__(self, root: Path, hidden: Path, info: dict[str, Any]) -> None:
        self.info = info
        self.columns = {
            key: Column(entry["dtype"], tuple(entry["shape"]))
            for key, entry in info["features"].items()
        }
        self._root = root
        self._hidden = hidden
        self._totals = Totals(self.columns)
        chunks_size = info.get("chunks_size", CHUNKS_SIZE)
        data_mb = info.get("data_files_size_in_mb", DATA_FILES_MB)
        video_mb = info.get("video_files_size_in_mb", VIDEO_FILES_MB)
        self._data = FileSeries(DATA_PATH, data_mb, chunks_size=chunks_size)
        self._episodes = FileSeries(EPISODES_PATH, data_mb, chunks_size=chunks_size)
        self._videos: dict[str, FileSeries] = {}
        for key, column in self.columns.items():
            if column.dtype == "video":
                self._videos[key] = FileSeries(
                    VIDEO_PATH, video_mb, chunks_size=chunks_size, camera=key
                )

    def has_room(self, folder: Path) -> bool:
        """Return True while a saved episode fits into the files of the next `publish`."""
        return all(series.has_room(size) for series, size in self._sizes(folder))

    def count_in(self, folder: Path) -> None:
        """Add a saved episode to the sizes of the files of the next `publish`."""
        for series, size in self._sizes(folder):
            series.held_bytes += size

    def _sizes(self, folder: Path) -> Iterator[tuple[FileSeries, int]]:
        """Yield the series of each file of a saved episode, and its bytes."""
        yield self._data, (folder / DATA).stat().st_size
        for key, series in self._videos.items():
            yield series, (folder / f"{key}.mp4").stat().st_size

    def publish(
        self, rows: Sequence[Mapping[str, Any]], folders: Sequence[Path], tasks: Sequence[str]
    ) -> None:
        """Copy saved episodes into one new file per stream, then say so in info.json."""
        work = self._hidden / "publish"
        shutil.rmtree(work, ignore_errors=True)
        videos = [series.name for series in self._videos.values()]
        names = [*videos, self._data.name, TASKS_FILE, self._episodes.name]
        for name in names:
            (work / name).parent.mkdir(parents=True, exist_ok=True)

        # Make every file where no reader looks.
        for key, series in self._videos.items():
            joined = work / series.name
            join_videos([folder / f"{key}.mp4" for folder in folders], joined, self.info["fps"])
            entry = self.info["features"][key]
            entry["info"] = probe_video(local_file(joined)) | (entry.get("info") or {})
        copy_frames(folders, frame_schema(self.columns), work / self._data.name)
        table = episode_table(self.columns, self._placed(rows))
        pq.write_table(table, work / self._episodes.name, compression="snappy")
        pq.write_table(task_table(tasks), work / TASKS_FILE, compression="snappy")

        # Move them into the dataset; readers know of them only from info.json, which comes last.
        for name in names:
            self._move(work / name, name)
        shutil.rmtree(work)
        for row in rows:
            self._totals.add(row)
        frames = rows[-1]["dataset_to_index"]
        files = sorted((self._root / "data").glob("*/*.parquet"))
        self._publish_json(STATS_FILE, self._totals.stats(files, frames))
        episodes = rows[-1]["episode_index"] + 1
        self.info |= totals(episodes, frames, len(tasks))
        self.info["splits"] = whole_split(episodes)
        self.publish_info()
        for series in self._all_series():
            series.next_file()

    def publish_info(self) -> None:
        """Write info.json; from then on what it counts is the dataset."""
        self._publish_json(INFO_FILE, self.info)

    def recover(self) -> list[str]:
        """Continue after the episodes that info.json counts; return the tasks.

        Files that a killed `publish` moved beyond these are replaced by the next one, which is of
        the same episodes.
        """
        shutil.rmtree(self._hidden / "publish", ignore_errors=True)
        for path in sorted(self._root.glob(EPISODE_FILES)):
            rows = pq.read_table(path).to_pylist()
            if rows and rows[0]["episode_index"] >= self.info["total_episodes"]:
                continue
            for row in rows:
                self._totals.add(row)
                for series in self._all_series():
                    series.skip(row)
        # All streams roll over together, so that equal numbers hold equal episodes.
        number = max(series.number for series in self._all_series())
        for series in self._all_series():
            series.number = number
        count = self.info["total_tasks"]
        if not count:
            return []
        return (
            pq.read_table(self._root / TASKS_FILE).sort_by("task_index")["task"].to_pylist()[:count]
        )

    def _all_series(self) -> list[FileSeries]:
        return [self._data, self._episodes, *self._videos.values()]

    def _placed(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Return the rows with their places in the files of this `publish`."""
        files: dict[str, int] = {}
        for series in self._all_series():
            files |= series.columns()
        placed_rows: list[dict[str, Any]] = []
        first = 0
        for row in rows:
            placed = {**row, **files}
            for key in self._videos:
                placed |= video_times(key, first, row["length"], self.info["fps"])
            first += row["length"]
            placed_rows.append(placed)
        return placed_rows

    def _publish_json(self, name: str, content: Mapping[str, Any]) -> None:
        part = self._hidden / Path(name).name
        part.write_text(json.dumps(content, indent=4, ensure_ascii=False), encoding="utf-8")
        self._move(part, name)

    def _move(self, source: Path, name: str) -> None:
        """Put a finished file into the dataset in one step."""
        target = self._root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        fsync(source)
        os.replace(source, target)
        fsync(target.parent)
