"""One episode while it is recorded: frames go to encoders and lists, and end as files in one
folder.
"""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from kata.data.format.feature_stats import ImageCounts, Summary, summarise
from kata.data.format.v3 import episode_row, stats_columns
from kata.data.video.encoder import VideoEncoder, VideoOptions
from kata.data.writing.arrow_tables import frame_table, measured
from kata.files import fsync
from kata.spec import Column

DATA, ROW = "data.parquet", "row.json"


class OpenEpisode:
    """The episode that is being recorded, in a folder that nothing reads before it is complete."""

    def __init__(
        self,
        folder: Path,
        columns: Mapping[str, Column],
        video: Mapping[str, VideoOptions],
        fps: int,
    ) -> None:
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        self.folder = folder
        self._columns, self._fps = columns, fps
        self._values: dict[str, list[Any]] = {key: [] for key in columns}
        self._frame_tasks: list[str] = []
        self._counts = {
            key: ImageCounts(column.shape[2]) for key, column in columns.items() if column.is_camera
        }
        self._encoders: dict[str, VideoEncoder] = {}
        for key, options in video.items():
            height, width, _ = columns[key].shape
            self._encoders[key] = VideoEncoder(
                folder / f"{key}.mp4", fps=fps, height=height, width=width, options=options
            )

    def __len__(self) -> int:
        return len(self._frame_tasks)

    @property
    def tasks(self) -> list[str]:
        """The distinct tasks of its frames."""
        return list(dict.fromkeys(self._frame_tasks))

    def add(self, frame: Mapping[str, Any], task: str) -> None:
        """Take one accepted frame."""
        for key, value in frame.items():
            if key in self._counts:
                self._counts[key].add(value)
            if key in self._encoders:
                self._encoders[key].add(value)
            elif self._columns[key].dtype == "image":
                self._values[key].append(_png(value))
            else:
                self._values[key].append(value)
        self._frame_tasks.append(task)

    def drop(self) -> None:
        """Forget everything."""
        self._close_encoders()
        shutil.rmtree(self.folder)

    def finish(
        self, target: Path, episode: int, first: int, tasks: Sequence[str]
    ) -> dict[str, Any]:
        """Write the files and move them to `target` in one step; returns the row of the episode.

        Args:
            target: the folder to be; it appears whole or not at all.
            episode: the episode's index.
            first: index of its first frame in the dataset.
            tasks: the tasks of the dataset; the place of a task is its index.
        """
        self._close_encoders()
        values = self._all_values(episode, first, tasks)
        pq.write_table(frame_table(self._columns, values), self.folder / DATA, compression="snappy")
        row = episode_row(episode, self.tasks, first, len(self))
        row |= stats_columns(self._summaries(values))
        (self.folder / ROW).write_text(json.dumps(row), encoding="utf-8")
        for path in self.folder.iterdir():
            fsync(path)
        self.folder.rename(target)
        fsync(target.parent)
        return row

    def _all_values(self, episode: int, first: int, tasks: Sequence[str]) -> dict[str, Any]:
        count = len(self)
        values: dict[str, Any] = {}
        for key, column in self._columns.items():
            kept = self._values[key]
            values[key] = (
                kept
                if column.dtype in ("image", "string", "video")
                else np.array(kept, column.dtype)
            )
        frames = np.arange(count, dtype=np.int64)
        return values | {
            "timestamp": (frames / self._fps).astype(np.float32),
            "frame_index": frames,
            "episode_index": np.full(count, episode, dtype=np.int64),
            "index": frames + first,
            "task_index": np.array(
                [tasks.index(task) for task in self._frame_tasks], dtype=np.int64
            ),
        }

    def _summaries(self, values: Mapping[str, Any]) -> dict[str, Summary]:
        return {
            key: self._counts[key].summary() if column.is_camera else summarise(values[key])
            for key, column in measured(self._columns).items()
        }

    def _close_encoders(self) -> None:
        for encoder in self._encoders.values():
            encoder.close()
        self._encoders = {}


def read_row(folder: Path) -> dict[str, Any]:
    """The row of a finished episode."""
    return json.loads((folder / ROW).read_text(encoding="utf-8"))


def copy_frames(folders: Sequence[Path], schema: pa.Schema, target: Path) -> None:
    """The frames of finished episodes as one file, a row group for each."""
    with pq.ParquetWriter(target, schema, compression="snappy") as writer:
        for folder in folders:
            table = pq.read_table(folder / DATA, schema=schema)
            writer.write_table(table, row_group_size=len(table))


def _png(frame: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(frame).save(buffer, "PNG", compress_level=6)
    return buffer.getvalue()
