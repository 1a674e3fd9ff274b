"""Reads whole batches: vectors are gathers, frames are decoded once each, straight into the batch."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kata.data.cameras import Camera, ImageCamera, Job, VideoCamera
from kata.data.dataset import Dataset
from kata.data.order import Int64
from kata.data.window import episode_of, window_rows
from kata.errors import DataError, did_you_mean
from kata.log import counting
from kata.spec import BOOKKEEPING, TASK, Batch, Column, Windows, pad_key

_AT_ONCE = 5000
"""Files that are indexed when a reader opens; of a larger dataset the others are indexed when they are met."""


class Reader:
    """Reads samples of a dataset by the row of their anchor. Safe to call from several threads.

    Args:
        dataset: what to read.
        windows: frame offsets per key; a key that is absent is read at the anchor alone, without a time axis.
        threads: how many decode at a time.
        keys: the columns to read, beside the bookkeeping; None for all.

    Raises: DataError for a window over an unknown key, and for damaged files as far as their ends show it.
    """

    def __init__(
        self, dataset: Dataset, windows: Windows, *, threads: int = 4, keys: Collection[str] | None = None
    ) -> None:
        self.dataset, self.windows = dataset, windows
        self.episodes = dataset.episodes
        wanted = [*(dataset.columns if keys is None else keys), *windows]
        for key in wanted:
            if key not in dataset.columns:
                raise DataError(
                    f"'{key}' is no column of {dataset.repo_id}",
                    rule="a column of the dataset",
                    remedy=did_you_mean(key, dataset.columns),
                )
        chosen = {key: column for key, column in dataset.columns.items() if key in wanted}
        self._vectors = {key for key, column in chosen.items() if not column.is_camera}
        self._cameras = {key: self._camera(key, column) for key, column in chosen.items() if column.is_camera}
        self._check_tasks()
        self._pool = ThreadPoolExecutor(max(1, threads), thread_name_prefix="kata-decode")
        # Files are indexed now, at least one per camera: what does not fit is found before anything is trained.
        files = [(camera, int(file)) for camera in self._cameras.values() for file in camera.files()]
        firsts = [(camera, int(camera.files()[0])) for camera in self._cameras.values()]
        self._prepare(files if len(files) <= _AT_ONCE else firsts)

    def _camera(self, key: str, column: Column) -> Camera:
        root, layout = self.dataset.root, self.dataset.layout
        if column.dtype == "video":
            return VideoCamera(root, key, column, layout, self.dataset.fps)
        return ImageCamera(root, key, column, layout)

    def read(self, rows: Int64) -> Batch:
        """The samples anchored at `rows` (B,).

        Returns: cameras uint8 (B, H, W, C), or (B, T, H, W, C) under a window; vectors float32 (B, D) or
        (B, T, D), scalars (B,) or (B, T); `<key>_is_pad` bool (B, T) per window; `task` a list of sentences;
        `index`, `episode_index`, `frame_index`, `task_index` int64 (B,); `timestamp` float32 (B,), seconds.
        Offsets beyond an episode repeat its edge frame and are marked.

        Raises: DataError for a file that turns out to be damaged.
        """
        rows = np.asarray(rows, dtype=np.int64)
        episode_of(rows, self.episodes)  # numpy would take a negative row from the end
        batch: Batch = {}
        frames: dict[str, Int64] = {}
        for key in self.dataset.columns:
            at = rows
            if key in self.windows:
                at, batch[pad_key(key)] = window_rows(rows, self.windows[key], self.episodes)
            if key in self._cameras:
                frames[key] = at
            elif key in self._vectors:
                values = self.dataset.take(key, at)
                batch[key] = values.tolist() if values.dtype == object else values
        batch |= self._read_frames(frames)
        for key in BOOKKEEPING:
            if key not in batch:
                batch[key] = self.dataset.take(key, rows)
        batch[TASK] = [self.dataset.tasks[number] for number in self.dataset.take("task_index", rows)]
        return batch

    def pads(self, rows: Int64) -> dict[str, NDArray[np.bool_]]:
        """The masks alone, `<key>_is_pad` bool (B, T) per window; reads nothing."""
        rows = np.asarray(rows, dtype=np.int64)
        return {pad_key(key): window_rows(rows, offsets, self.episodes)[1] for key, offsets in self.windows.items()}

    def _read_frames(self, frames: dict[str, Int64]) -> dict[str, Any]:
        """Decode all cameras of a batch in one go, so that threads never wait for one camera to finish."""
        places = {key: self._locate(self._cameras[key], at.reshape(-1)) for key, at in frames.items()}
        self._prepare([(self._cameras[key], int(f)) for key, (file, _) in places.items() for f in np.unique(file)])
        result: dict[str, Any] = {}
        work: list[tuple[Job, NDArray[np.uint8]]] = []
        for key, (file, number) in places.items():
            out = np.empty((len(file), *self.dataset.columns[key].shape), dtype=np.uint8)
            result[key] = out.reshape(*frames[key].shape, *out.shape[1:])
            work += [(job, out) for job in _jobs(self._cameras[key], file, number)]
        futures = [self._pool.submit(job, out) for job, out in work]
        try:
            for future in futures:
                future.result()
        finally:
            for future in futures:
                future.cancel()
        return result

    def _locate(self, camera: Camera, rows: Int64) -> tuple[Int64, Int64]:
        """File and number in that file of each row's frame."""
        position = episode_of(rows, self.episodes)
        return camera.span.file[position], camera.span.first[position] + rows - self.episodes.start[position]

    def _prepare(self, files: list[tuple[Camera, int]]) -> None:
        """Index files in threads; a bar is shown where that takes longer than a second."""
        began_s = time.monotonic()
        with ExitStack() as live:
            show: Callable[[int, int], None] | None = None
            for done, _ in enumerate(self._pool.map(lambda pair: pair[0].prepare(pair[1]), files), start=1):
                if show is None and time.monotonic() - began_s > 1:
                    show = live.enter_context(counting("indexing files"))
                if show is not None:
                    show(done, len(files))

    def _check_tasks(self) -> None:
        low, high = self.dataset.task_range()
        count = len(self.dataset.tasks)
        if low < 0 or high >= count:
            bad = low if low < 0 else high
            raise DataError(
                f"a frame of {self.dataset.repo_id} has task_index {bad}, but the dataset has {count} tasks",
                rule=f"task_index lies between 0 and {count - 1}",
                remedy="repair the task file of the dataset, or download it again",
            )

    def close(self) -> None:
        """End the decoding threads."""
        self._pool.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _jobs(camera: Camera, file: Int64, number: Int64) -> list[Job]:
    """Decoding work of one camera; a frame wanted several times is decoded once."""
    order = np.lexsort((number, file))
    file, number = file[order], number[order]
    fresh = np.flatnonzero(np.append(True, (np.diff(file) != 0) | (np.diff(number) != 0))) if len(file) else order
    places = np.split(order, fresh[1:])
    work: list[Job] = []
    for one in np.unique(file):
        mine = np.flatnonzero(file[fresh] == one)
        work += camera.jobs(int(one), number[fresh[mine]], [places[n] for n in mine])
    return work
