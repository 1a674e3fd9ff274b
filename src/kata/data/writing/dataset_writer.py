"""Writes LeRobot v3.0 datasets, episode by episode, so that an interruption costs at most the open
episode.

How it keeps that promise. While an episode is recorded it lies in `<root>/.recording/open`.
`save_episode` finishes its files there, waits for the disk, and renames the folder to
`.recording/episode-<n>`: from that moment the episode exists. `flush` (called by `close`, and when
a file would outgrow its limit) copies all such episodes into one new file per stream: frames, each
camera, episode rows. Files that were published before are never touched. New files are made in
`.recording/publish` and renamed into place; `meta/info.json` comes last and is what counts. After a
crash `resume` drops the open episode and publishes every saved one, over whatever a killed `flush`
left.

All streams roll over together: `file-007` of each camera holds the same episodes as `file-007` of
the frames.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from kata.data.format.info import BOOKKEEPING_COLUMNS, INFO_FILE
from kata.data.format.v3 import (
    CHUNKS_SIZE,
    DATA_FILES_MB,
    VERSION,
    VIDEO_FILES_MB,
    feature_entry,
    info_json,
)
from kata.data.video.encoder import VideoOptions, require_encoder
from kata.data.writing.episode_buffer import OpenEpisode, read_row
from kata.data.writing.publisher import Publisher
from kata.data.writing.validation import accept_features, accept_frame
from kata.errors import DataError
from kata.spec import Column

__all__ = ["DatasetWriter", "VideoOptions"]


class DatasetWriter:
    """Appends episodes to a dataset on disk; use `create` or `resume`, then as a context manager.

    Leaving the block after an error drops the open episode and publishes the saved ones.
    """

    def __init__(self, root: Path, info: dict[str, Any]) -> None:
        self.root = root
        self._hidden = root / ".recording"
        self._hidden.mkdir(exist_ok=True)
        self._published = Publisher(root, self._hidden, info)
        columns = self._published.columns
        self._given = {
            key: column for key, column in columns.items() if key not in BOOKKEEPING_COLUMNS
        }
        self._video = {
            key: VideoOptions.from_info(info["features"][key].get("info") or {})
            for key, column in columns.items()
            if column.dtype == "video"
        }
        self._open: OpenEpisode | None = None
        # Rows of the saved episodes that no published file holds yet.
        self._saved: list[dict[str, Any]] = []
        self._tasks: list[str] = []
        self.num_episodes = int(info["total_episodes"])
        self.num_frames = int(info["total_frames"])

    @classmethod
    def create(
        cls,
        root: str | Path,
        *,
        fps: int,
        features: Mapping[str, Column],
        robot_type: str | None = None,
        video: VideoOptions = VideoOptions(),  # noqa: B008 - frozen
        chunks_size: int = CHUNKS_SIZE,
        data_files_size_in_mb: int = DATA_FILES_MB,
        video_files_size_in_mb: int = VIDEO_FILES_MB,
    ) -> DatasetWriter:
        """Start a new dataset in a folder that is absent or empty.

        Args:
            root: the folder.
            fps: frames per second, a whole number.
            features: the caller's columns; timestamp, indices and the like are added.
            robot_type: free text, e.g. 'so101_follower'.
            video: how cameras of dtype 'video' are encoded.
            chunks_size: files per folder.
            data_files_size_in_mb: a table file is closed before it outgrows this.
            video_files_size_in_mb: the same for videos. A single longer episode makes a larger
                file.

        Raises:
            DataError: when the folder is not empty, or an argument breaks a rule of the format.
        """
        root = Path(root)
        _require_empty(root)
        sizes = {
            "chunks_size": chunks_size,
            "data_files_size_in_mb": data_files_size_in_mb,
            "video_files_size_in_mb": video_files_size_in_mb,
        }
        _require_whole({"fps": fps, **sizes})
        accept_features(features, video)
        for column in features.values():
            if column.dtype == "video":
                require_encoder(video, fps=int(fps), height=column.shape[0], width=column.shape[1])
        entries = _entries({**features, **BOOKKEEPING_COLUMNS}, video)
        info = info_json(fps=int(fps), features=entries, robot_type=robot_type, **sizes)
        root.mkdir(parents=True, exist_ok=True)
        writer = cls(root, info)
        writer._published.publish_info()
        return writer

    @classmethod
    def resume(cls, root: str | Path) -> DatasetWriter:
        """Continue a dataset: one that was closed, or one whose recording was killed at any moment.

        Saved episodes are published at once; the episode that was open is gone.

        Raises:
            DataError: when the folder holds no v3.0 dataset, or one with features that cannot be
            written.
        """
        root = Path(root)
        path = root / INFO_FILE
        if not path.is_file():
            raise DataError(
                f"{root} has no meta/info.json",
                rule="a dataset",
                remedy="start with DatasetWriter.create",
            )
        info = json.loads(path.read_text(encoding="utf-8"))
        if info.get("codebase_version") != VERSION:
            raise DataError(
                f"{root} is version {info.get('codebase_version')}",
                rule=f"the writer appends to {VERSION} only",
                remedy="convert it first",
            )
        writer = cls(root, info)
        accept_features(writer._given, VideoOptions())
        writer._recover()
        return writer

    def add_frame(self, frame: Mapping[str, Any], task: str) -> None:
        """Add one frame to the open episode, opening one if need be.

        Args:
            frame: every feature once: cameras uint8 (H, W, 3), vectors (n,), shape [1] a number,
                text str.
            task: the sentence that says what is done.

        Raises:
            DataError: names, shapes, dtypes or values that do not fit; the frame is then not added.
        """
        values = accept_frame(self._given, frame, task)
        if self._open is None:
            fps = self._published.info["fps"]
            self._open = OpenEpisode(
                self._hidden / "open", self._published.columns, self._video, fps
            )
        self._open.add(values, task)

    def save_episode(self) -> None:
        """Finish the open episode. When this returns, a crash does not lose it."""
        if self._open is None:
            raise DataError(
                "the episode has no frames", rule="at least one", remedy="call add_frame first"
            )
        episode, self._open = self._open, None
        tasks = self._tasks + [task for task in episode.tasks if task not in self._tasks]
        folder = self._folder(self.num_episodes)
        row = episode.finish(folder, self.num_episodes, self.num_frames, tasks)
        if not self._published.has_room(folder):
            self.flush()
        self._tasks = tasks
        self._count_in(row, folder)

    def discard_episode(self) -> None:
        """Forget the open episode; nothing happens when there is none."""
        if self._open is not None:
            self._open.drop()
            self._open = None

    def flush(self) -> None:
        """Publish the saved episodes now, so that readers see them; the next ones go to new
        files.
        """
        if not self._saved:
            return
        folders = [self._folder(row["episode_index"]) for row in self._saved]
        self._published.publish(self._saved, folders, self._tasks)
        self._saved = []
        for folder in folders:
            shutil.rmtree(folder)

    def close(self) -> None:
        """Publish the saved episodes and clear up.

        Raises:
            DataError: when an episode was open: it is dropped, the saved ones are published.
        """
        count = 0 if self._open is None else len(self._open)
        self.discard_episode()
        self.flush()
        shutil.rmtree(self._hidden, ignore_errors=True)
        if count:
            raise DataError(
                f"{count} frames of an episode that was not saved were dropped",
                rule="every episode ends with save_episode or discard_episode",
                remedy="call save_episode before the writer is closed",
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self.discard_episode()
        self.close()

    def _folder(self, episode: int) -> Path:
        return self._hidden / f"episode-{episode:06d}"

    def _count_in(self, row: dict[str, Any], folder: Path) -> None:
        self._saved.append(row)
        self._published.count_in(folder)
        self.num_episodes += 1
        self.num_frames += row["length"]

    def _recover(self) -> None:
        shutil.rmtree(self._hidden / "open", ignore_errors=True)
        self._tasks = self._published.recover()
        for folder in sorted(self._hidden.glob("episode-*")):
            row = read_row(folder)
            if (
                row["episode_index"] < self.num_episodes
            ):  # published; only the clearing up was cut short
                shutil.rmtree(folder)
                continue
            assert row["episode_index"] == self.num_episodes
            self._tasks += [task for task in row["tasks"] if task not in self._tasks]
            self._count_in(row, folder)
        self.flush()


def _require_empty(root: Path) -> None:
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise DataError(
            f"{root} exists and is not empty",
            rule="a new dataset needs its own folder",
            remedy="name another folder, or append with DatasetWriter.resume",
        )


def _require_whole(numbers: Mapping[str, float]) -> None:
    for name, value in numbers.items():
        if value < 1 or int(value) != value:
            raise DataError(f"{name} is {value}", rule="a whole number above 0", remedy="give one")


def _entries(columns: Mapping[str, Column], video: VideoOptions) -> dict[str, Any]:
    """Return the entries of the columns in info.json."""
    entries: dict[str, Any] = {}
    for key, column in columns.items():
        entries[key] = feature_entry(column)
        if column.dtype == "video":
            entries[key]["info"] = video.info()
    return entries
