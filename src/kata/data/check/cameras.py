"""Checks of the cameras' files: completeness, size, rate and length; and decoding of every
frame.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kata.data.arrays import Int64, ranges
from kata.data.check.findings import Findings
from kata.data.counters import CounterCollector
from kata.data.format.episode_table import EpisodeTable, Span
from kata.data.format.info import Info
from kata.data.format.source import Source
from kata.data.format.text import REPAIR
from kata.data.frames.camera import Camera
from kata.data.frames.image_camera import ImageCamera
from kata.data.frames.video_camera import VideoCamera
from kata.data.parquet.image_column import EncodedImages
from kata.data.storage.store import StoredFile
from kata.data.video.encoder import first_time_s, probe_video
from kata.data.video.packet_index import FrameIndex, open_index
from kata.errors import FrameError

Piece: TypeAlias = Callable[[], int]
"""Work for a thread. It records the problems it finds, and returns how many units it did."""

FRAME_TOLERANCE_S = 1e-4
"""The largest error of a frame's time that LeRobot accepts."""

_DECLARED = ("video.codec", "video.pix_fmt", "video.fps", "video.height", "video.width")
_AHEAD = 64  # pieces of work that are queued at a time


class CameraCheck:
    """A check of the files of one camera, file by file, from any thread.

    Args:
        source: the dataset's files.
        info: its declarations.
        key: of the camera.
        layout: the episodes that are checked.
        whole: all episodes of the dataset.
        declared: the camera's entry in info.json.
    """

    def __init__(
        self,
        source: Source,
        info: Info,
        key: str,
        layout: EpisodeTable,
        whole: EpisodeTable,
        declared: dict[str, Any],
    ) -> None:
        self.key = key
        self._root, self._store = source.root, source.store
        self._info = info
        self._layout = layout
        self._whole = whole
        self._declared = declared.get("info") or declared.get("video_info") or {}
        self._counters = CounterCollector()
        self._encoded = EncodedImages(self._counters)
        self._is_video = info.columns[key].dtype == "video"
        self.span = layout.videos[key] if self._is_video else layout.data

    def files(self) -> list[int]:
        """Return the numbers of the files that hold the episodes."""
        return np.unique(self.span.file).tolist()

    def check(self, file: int, found: Findings) -> bool:
        """Check one file without decoding; return True if its frames can be read."""
        part = self._part(file)
        cameras: list[VideoCamera | ImageCamera] = []
        if not found.attempt(
            f"camera '{self.key}'", part, lambda layout: cameras.append(self._ready(layout, file))
        ):
            return False
        stored = StoredFile(self._store, self.span.files[file])
        if isinstance(cameras[0], VideoCamera):
            self._check_length(cameras[0].frames(file), file, found)
            self._check_declared(stored, part, found)
            self._check_times(stored, part, found)
        else:
            # The footer is in the folder, also where the images are in a store.
            self._check_cells(self._root / stored.name, part, found)
        return True

    def num_frames(self, file: int) -> int:
        """Return the number of frames that the episodes claim of a file."""
        return int(self._part(file).length.sum())

    def pieces(self, file: int, found: Findings) -> Iterator[Piece]:
        """Yield the work that decodes the frames of a file which `check` found good."""
        part = self._part(file)
        camera = self._ready(part, file)
        frames = np.unique(ranges(self._span_of(part).first, part.length))
        first, _ = camera.groups(np.full_like(frames, file), frames)
        for group in np.split(frames, np.flatnonzero(np.diff(first)) + 1):
            yield self._piece(camera, file, part, group, found)

    def _part(self, file: int) -> EpisodeTable:
        return self._layout.take(np.flatnonzero(self.span.file == file))

    def _span_of(self, layout: EpisodeTable) -> Span:
        """Return the position of episodes in this camera's files."""
        return layout.videos[self.key] if self._is_video else layout.data

    def _ready(self, layout: EpisodeTable, file: int) -> VideoCamera | ImageCamera:
        """Return the camera with one file prepared, as a reader has it."""
        column = self._info.columns[self.key]
        if self._is_video:
            fps = self._info.fps
            camera = VideoCamera(
                self._store,
                self.key,
                column,
                layout,
                fps=fps,
                as_rgb=False,
                counters=self._counters,
            )
        else:
            camera = ImageCamera(
                self._store,
                self.key,
                column,
                layout,
                encoded=self._encoded,
                counters=self._counters,
            )
        camera.prepare(file)
        return camera

    def _check_length(self, frames: int, file: int, found: Findings) -> None:
        span = self._whole.videos[self.key]
        mine = span.file == file
        claimed = int(self._whole.length[mine].sum())
        if frames > claimed:
            found.warning(
                "unused frames",
                f"{self.span.files[file]} has {frames} frames, its episodes claim {claimed}",
                rule="every frame of a video belongs to an episode",
                remedy="none needed: these frames are never read",
            )

    def _check_declared(self, file: StoredFile, part: EpisodeTable, found: Findings) -> None:
        declared = {
            name: said for name in _DECLARED if (said := self._declared.get(name)) is not None
        }
        probe = probe_video(file) if declared else {}
        for name, said in declared.items():
            if said != probe[name]:
                found.warning(
                    "declared video",
                    f"{file.name} has {name.removeprefix('video.')} "
                    f"{probe[name]}, "
                    f"info.json says {said}",
                    rule="the camera's info in meta/info.json describes its files",
                    remedy=f"none for kata, which looks at the files; {REPAIR}",
                    episodes=part.index.tolist(),
                )

    def _check_times(self, file: StoredFile, part: EpisodeTable, found: Findings) -> None:
        off_s, _ = frame_times_off(open_index(file), self._info.fps)
        if off_s > FRAME_TOLERANCE_S:
            found.warning(
                "frame times",
                f"{file.name} shows frames up to {off_s:.4f} s off",
                rule="frame k is shown at k / fps; LeRobot refuses more than "
                f"{FRAME_TOLERANCE_S:g} s",
                remedy=f"none for kata, which counts frames; {REPAIR}",
                episodes=part.index.tolist(),
            )

    def _check_cells(self, path: Path, part: EpisodeTable, found: Findings) -> None:
        """Report images that are absent according to the footer."""
        try:
            empty = _empty_cells(path, f"{self.key}.bytes")
        except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
            found.error(
                f"camera '{self.key}'",
                f"{path.relative_to(self._root)} cannot be read: {error}",
                rule="a complete parquet file",
                remedy="download the file again, or leave its episodes out",
                episodes=part.index.tolist(),
            )
            return
        if empty:
            found.error(
                f"camera '{self.key}'",
                f"{path.relative_to(self._root)} has {empty} empty images",
                rule="one encoded image per row",
                remedy="find the frames with --decode; leave their episodes out",
                episodes=part.index.tolist() if len(part.index) == 1 else (),
            )

    def _piece(
        self, camera: Camera, file: int, part: EpisodeTable, frames: Int64, found: Findings
    ) -> Piece:
        def run() -> int:
            out = np.empty(camera.shape, np.uint8)
            left = frames
            while len(left):
                try:
                    for _, picture in camera.decode(file, left, left):
                        camera.write_frame(picture, out)
                    break
                except FrameError as error:
                    self._note(part, error, found)
                    left = left[left > error.frame]
            return len(frames)

        return run

    def _note(self, part: EpisodeTable, error: FrameError, found: Findings) -> None:
        span, frame = self._span_of(part), error.frame
        owner = int(np.flatnonzero((span.first <= frame) & (frame < span.first + part.length))[0])
        episode = int(part.index[owner])
        found.error(
            f"camera '{self.key}'",
            f"episode {episode}, frame {frame - int(span.first[owner])}: {error.what}",
            rule="every frame decodes to the size that info.json declares",
            remedy=error.remedy,
            episodes=[episode],
        )


def frame_times_off(index: FrameIndex, fps: int) -> tuple[float, float]:
    """Return by how many seconds the worst frame of a video is off k / fps.

    Returns:
        Counted from the start of the file, and counted from its first frame.
    """
    off_s = index.pts[index.packet] * index.tick_s - np.arange(len(index)) / fps
    return float(np.abs(off_s + first_time_s(index.file)).max()), float(np.abs(off_s).max())


def _empty_cells(path: Path, leaf: str) -> int:
    """Return how many cells of a leaf are null according to the footer of a table file."""
    meta = pq.read_metadata(path)
    empty = 0
    for group in range(meta.num_row_groups):
        for number in range(meta.num_columns):
            column = meta.row_group(group).column(number)
            if column.path_in_schema == leaf and column.is_stats_set:
                empty += column.statistics.null_count or 0
    return empty


def run_all(
    pieces: Iterator[Piece], threads: int, progress: Callable[[int, int], None], total: int
) -> None:
    """Run pieces of work on threads, a bounded number ahead.

    An interruption ends after the pieces that are running.
    """
    pool = ThreadPoolExecutor(threads, thread_name_prefix="kata-check")
    waiting: deque[Future[int]] = deque()
    done = 0
    try:
        for piece in pieces:
            waiting.append(pool.submit(piece))
            while len(waiting) >= _AHEAD:
                done += waiting.popleft().result()
                progress(done, total)
        while waiting:
            done += waiting.popleft().result()
            progress(done, total)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)
