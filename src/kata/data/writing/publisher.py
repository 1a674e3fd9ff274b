"""What readers see of a dataset that is being written: whole files, and info.json as the last
word.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from kata.data.video.encoder import join_videos, probe_video
from kata.data.writing.arrow_tables import episode_table, frame_schema, task_table
from kata.data.writing.episode_buffer import copy_frames
from kata.data.writing.running_stats import Totals
from kata.files import fsync
from kata.spec import Column

DATA_PATH = "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
VIDEO_PATH = "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4"
EPISODES_PATH = "meta/episodes/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet"
_INFO, _STATS, _TASKS = Path("meta/info.json"), Path("meta/stats.json"), Path("meta/tasks.parquet")


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
        self._cameras = [key for key, column in self.columns.items() if column.dtype == "video"]
        self._root, self._hidden = root, hidden
        self._totals = Totals(self.columns)
        self._file = 0  # number of the next file, over all chunks

    def publish(
        self, rows: Sequence[Mapping[str, Any]], folders: Sequence[Path], tasks: Sequence[str]
    ) -> None:
        """Copy saved episodes into one new file per stream, then say so in info.json."""
        work = self._hidden / "publish"
        shutil.rmtree(work, ignore_errors=True)
        data, episodes = self._place(DATA_PATH), self._place(EPISODES_PATH)
        videos = [self._place(VIDEO_PATH, key) for key in self._cameras]
        for path in (data, episodes, _TASKS, *videos):
            (work / path).parent.mkdir(parents=True, exist_ok=True)
        for key, path in zip(self._cameras, videos, strict=True):
            join_videos(
                [folder / f"{key}.mp4" for folder in folders], work / path, self.info["fps"]
            )
            entry = self.info["features"][key]
            entry["info"] = probe_video(work / path) | (entry.get("info") or {})
        copy_frames(folders, frame_schema(self.columns), work / data)
        pq.write_table(
            episode_table(self.columns, self._placed(rows)), work / episodes, compression="snappy"
        )
        pq.write_table(task_table(tasks), work / _TASKS, compression="snappy")
        for path in (*videos, data, _TASKS, episodes):
            self._move(work / path, path)
        shutil.rmtree(work)
        for row in rows:
            self._totals.add(row)
        total = rows[-1]["dataset_to_index"]
        files = sorted((self._root / "data").glob("*/*.parquet"))
        self._publish_json(_STATS, self._totals.stats(files, total))
        count = rows[-1]["episode_index"] + 1
        self.info |= {"total_episodes": count, "total_frames": total, "total_tasks": len(tasks)}
        self.info["splits"] = {"train": f"0:{count}"}
        self.publish_info()
        self._file += 1

    def publish_info(self) -> None:
        """Write info.json; from then on what it counts is the dataset."""
        self._publish_json(_INFO, self.info)

    def recover(self) -> list[str]:
        """Take up what info.json counts; returns the tasks.

        What a killed `publish` moved beyond that lies where the next one, of the same episodes,
        puts its own.
        """
        shutil.rmtree(self._hidden / "publish", ignore_errors=True)
        places: list[int] = []
        for path in sorted((self._root / "meta" / "episodes").glob("*/*.parquet")):
            rows = pq.read_table(path).to_pylist()
            if rows and rows[0]["episode_index"] >= self.info["total_episodes"]:
                continue
            for row in rows:
                self._totals.add(row)
                places += self._files_of(row)
        self._file = max(places, default=-1) + 1
        count = self.info["total_tasks"]
        if not count:
            return []
        return pq.read_table(self._root / _TASKS).sort_by("task_index")["task"].to_pylist()[:count]

    def _files_of(self, row: Mapping[str, Any]) -> list[int]:
        """The file numbers, over all chunks, that an episode's streams lie in."""
        streams = [
            name.removesuffix("/chunk_index") for name in row if name.endswith("/chunk_index")
        ]
        size = self.info["chunks_size"]
        return [
            row[f"{stream}/chunk_index"] * size + row[f"{stream}/file_index"] for stream in streams
        ]

    def _place(self, template: str, key: str = "") -> Path:
        chunk, file = divmod(self._file, self.info["chunks_size"])
        return Path(template.format(video_key=key, chunk_index=chunk, file_index=file))

    def _placed(self, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """The rows with their places in the files to be."""
        chunk, file = divmod(self._file, self.info["chunks_size"])
        streams = ("data", "meta/episodes", *(f"videos/{key}" for key in self._cameras))
        placed_rows: list[dict[str, Any]] = []
        before, fps = 0, self.info["fps"]
        for row in rows:
            placed = dict(row)
            for stream in streams:
                placed |= {f"{stream}/chunk_index": chunk, f"{stream}/file_index": file}
            for key in self._cameras:
                placed[f"videos/{key}/from_timestamp"] = before / fps
                placed[f"videos/{key}/to_timestamp"] = (before + row["length"]) / fps
            before += row["length"]
            placed_rows.append(placed)
        return placed_rows

    def _publish_json(self, place: Path, content: Mapping[str, Any]) -> None:
        part = self._hidden / place.name
        part.write_text(json.dumps(content, indent=4, ensure_ascii=False), encoding="utf-8")
        self._move(part, place)

    def _move(self, source: Path, place: Path) -> None:
        """Put a finished file into the dataset in one step."""
        target = self._root / place
        target.parent.mkdir(parents=True, exist_ok=True)
        fsync(source)
        os.replace(source, target)
        fsync(target.parent)
