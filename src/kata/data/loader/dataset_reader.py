"""A reader of one dataset: vectors are gathered, and frames are decoded once each, into a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from kata.data.arrays import Int64, Pixels
from kata.data.counters import CounterCollector, ReadCounters
from kata.data.dataset.dataset import Dataset
from kata.data.dataset.windows import episode_of, window_rows
from kata.data.format.tasks import check_task_range
from kata.data.frames.camera import Camera
from kata.data.frames.decode_pool import DecodePool
from kata.data.frames.decode_scheduler import DecodeScheduler
from kata.data.frames.frame_buffer import FrameBuffer
from kata.data.frames.frame_cache import FrameCache
from kata.data.frames.frame_delivery import Out, PendingFrames
from kata.data.frames.frame_format import FrameFormat
from kata.data.frames.image_camera import ImageCamera
from kata.data.frames.next_use import NextUse, held_as_rgb
from kata.data.frames.video_camera import VideoCamera
from kata.data.parquet.image_column import EncodedImages
from kata.data.storage.buffers import Empty
from kata.data.storage.far_files import FarFiles
from kata.data.video.decoder import Gop
from kata.spec import BOOKKEEPING, TASK, Batch, Column, Windows, features_of, pad_key

T = TypeVar("T")

_AT_ONCE = 5000
"""Most files that are indexed when a reader opens. A larger dataset indexes the first file of each
camera then, and others when a batch needs them.
"""


@dataclass(frozen=True)
class BatchSlots:
    """The slots of a reader's samples in a batch.

    Args:
        frames: the frames of the whole batch by the dataset's keys, (B, H, W, C) or (B, T, H, W,
            C).
        samples: (n,) places of the reader's samples among the B, ascending.
    """

    frames: Mapping[str, Pixels]
    samples: Int64

    def of(self, key: str, shape: tuple[int, ...]) -> Out:
        """Return the slots of a camera's frames of this shape (H, W, C), one after the other."""
        assert self.frames[key].shape[-3:] == shape, key
        pixels = self.frames[key].reshape(-1, *shape)
        steps = len(pixels) // len(self.frames[key])
        return Out(pixels, (self.samples[:, None] * steps + np.arange(steps)).reshape(-1))


@dataclass(frozen=True)
class FrameResources:
    """Resources shared by the readers of a mixture: its `Reader` makes and closes them.

    Args:
        pool: threads that decode.
        buffer: frames held for later batches.
        frame_format: form of frames in batches, under the dataset's keys.
        cache: the dataset's frame cache, or None.
        prefix: begins the keys of the dataset's cameras in buffer and cache.
    """

    pool: DecodePool
    buffer: FrameBuffer
    frame_format: FrameFormat
    cache: FrameCache | None
    prefix: str


class DatasetReader:
    """The reader of one dataset of a mixture; a `Reader` divides batches among several of these.

    Args:
        dataset: the selected episodes.
        windows: frame offsets by the dataset's key.
        keys: the columns to read, each with the name that decides its role.
        resources: shared with the other readers of the mixture.

    Raises:
        DataError: files are damaged, as far as their ends show it.
    """

    def __init__(
        self,
        dataset: Dataset,
        windows: Windows,
        keys: Mapping[str, str],
        resources: FrameResources,
    ) -> None:
        self.dataset, self.windows = dataset, windows
        self._frame_format, self._prefix = resources.frame_format, resources.prefix
        self._episodes = dataset.episodes
        chosen = {key: column for key, column in dataset.columns.items() if key in keys}
        self._vectors = {key for key, column in chosen.items() if not column.is_camera}
        # Columns drop the axis of a single number; a state or an action stays a vector.
        roles = features_of(chosen, keys)
        self._single = {key for key in self._vectors & {*roles} if roles[key].shape == (1,)}
        self._tasks = np.array(dataset.tasks, dtype=object)
        self._counters = CounterCollector()
        self._encoded = EncodedImages(self._counters)
        self._far = dataset.store if isinstance(dataset.store, FarFiles) else None
        self._cameras = {
            key: self._camera(key, column) for key, column in chosen.items() if column.is_camera
        }
        check_task_range(dataset.repo_id, *dataset.task_range(), dataset.tasks)
        cameras = self._prefixed(self._cameras)
        self._frames = DecodeScheduler(
            cameras,
            dataset,
            counters=self._counters,
            pool=resources.pool,
            cache=resources.cache,
            buffer=resources.buffer,
            fetched=None if self._far is None else self._far.pool,
        )
        # Index files now, at least one per camera, so that faults are found before the first step.
        files: list[tuple[str, int]] = []
        for key, camera in cameras.items():
            files += [(key, int(file)) for file in camera.files()]
        firsts = [(key, int(camera.files()[0])) for key, camera in cameras.items()]
        self._all_at_once = len(files) <= _AT_ONCE
        self._frames.prepare(files if self._all_at_once else firsts)
        if self._far is not None:
            for camera in self._cameras.values():
                self._far.pool.expect(self._far, camera.far_bytes())

    def _prefixed(self, by_key: Mapping[str, T]) -> dict[str, T]:
        """Prefix each camera key, so that keys are unique in the shared buffer."""
        return {self._prefix + key: value for key, value in by_key.items()}

    def _camera(self, key: str, column: Column) -> Camera:
        store, layout = self.dataset.store, self.dataset.layout
        if column.dtype == "video":
            as_rgb = held_as_rgb(self.windows.get(key, (0,)))
            return VideoCamera(
                store,
                key,
                column,
                layout,
                fps=self.dataset.fps,
                as_rgb=as_rgb,
                counters=self._counters,
                frame_format=self._frame_format,
            )
        return ImageCamera(
            store,
            key,
            column,
            layout,
            encoded=self._encoded,
            counters=self._counters,
            frame_format=self._frame_format,
        )

    def decode_with(self, decode: Callable[[Gop], Pixels]) -> None:
        """Decode video with this function from now on; see `Reader.decode_with`."""
        for camera in self._cameras.values():
            if isinstance(camera, VideoCamera):
                camera.elsewhere = decode

    def work(self) -> ReadCounters:
        """Return the cost of reading so far."""
        done = self._counters.snapshot()
        return done if self._far is None else done + self._far.counters.snapshot()

    def start(
        self, rows: Int64, step: int | None, slots: BatchSlots, empty: Callable[[str], Empty]
    ) -> tuple[Batch, PendingFrames]:
        """Begin to read samples, whose frames go to `slots`; see `Reader.start`.

        Args:
            rows: anchors, rows of the dataset (n,).
            step: the step of the batch within the plan, or None.
            slots: destinations of the frames; a camera without one is not read.
            empty: gives the function that makes a key's arrays.

        Returns:
            The samples without frames, under the dataset's keys, and the frames to wait for.
        """
        # 1. Check the rows once; numpy would take a negative row from the end.
        episode_of(rows, self._episodes)
        # 2. Index arithmetic, once for all keys with the same window.
        batch: Batch = {}
        frames: dict[str, Int64] = {}
        opened = self.dataset.opened_rows(rows)
        windows = {
            offsets: window_rows(rows, offsets, self._episodes)
            for offsets in set(self.windows.values())
        }
        opened_windows = {
            offsets: self.dataset.opened_rows(at) for offsets, (at, _) in windows.items()
        }
        # 3. Gather the vectors now: that takes microseconds, where frames take milliseconds.
        for key in self.dataset.columns:
            at, opened_at = rows, opened
            if key in self.windows:
                at, mask = windows[self.windows[key]]
                opened_at = opened_windows[self.windows[key]]
                batch[pad_key(key)] = mask.copy()  # the caller may change each mask by itself
            if key in self._cameras:
                if key in slots.frames:
                    frames[key] = at.reshape(-1)
            elif key in self._vectors:
                values = self.dataset.gather(key, opened_at, empty(key))
                if key in self._single:
                    values = values[..., None]
                batch[key] = values.tolist() if values.dtype == object else values
        for key in BOOKKEEPING:
            if key not in batch:
                batch[key] = self.dataset.gather(key, opened)
        batch[TASK] = self._tasks[self.dataset.gather("task_index", opened)].tolist()
        # 4. Submit the frames.
        self._prepare(frames)
        self._frames.locate(self._prefixed(frames))
        outs = {key: slots.of(key, self._cameras[key].shape) for key in frames}
        return batch, self._frames.fill(self._prefixed(frames), self._prefixed(outs), step)

    def masks(self, rows: Int64) -> Batch:
        """Return the masks alone, `<key>_is_pad` bool (B, T) per window; reads nothing."""
        return {
            pad_key(key): window_rows(rows, offsets, self._episodes)[1]
            for key, offsets in self.windows.items()
        }

    @property
    def has_room(self) -> bool:
        """Return True while held frames take less of the budget than prefetching may fill."""
        return self._frames.has_room

    def plan_ahead(self, rows: Int64, steps: Int64) -> None:
        """Take the anchors `rows` (N,) of the coming `steps` (N,); see `Reader.plan_ahead`."""
        used: dict[tuple[int, ...], NextUse] = {}
        for key in self._cameras:
            offsets = self.windows.get(key, (0,))
            if offsets not in used:
                used[offsets] = NextUse(window_rows(rows, offsets, self._episodes)[0], steps)
        uses = {key: used[self.windows.get(key, (0,))] for key in self._cameras}
        self._frames.plan_ahead(self._prefixed(uses), int(steps.min()) if len(steps) else 0)

    def prefetch(self, rows: Int64, step: int) -> bool:
        """Decode ahead for a step, while a decoder is idle; see `Reader.prefetch`."""
        if not self._frames.has_leisure:
            return False
        wanted = self._wanted(rows)
        self._prepare(wanted)
        return self._frames.prefetch(self._prefixed(wanted), step)

    @property
    def is_far(self) -> bool:
        """Return True if the files are far, and fetched ahead."""
        return self._far is not None

    @property
    def may_fetch(self) -> bool:
        """Return True if the files are far, and the pool of their bytes has room."""
        return self._far is not None and self._far.pool.has_room

    @property
    def store_wait_s(self) -> float:
        """Return the seconds during which some task waited for bytes of a store."""
        return 0.0 if self._far is None else self._far.pool.waited_s

    def forget_fetches(self) -> None:
        """Let go of bytes that were fetched ahead; see `Reader.forget_fetches`."""
        if self._far is not None:
            self._far.pool.forget_plan()

    def pass_steps(self, step: int) -> None:
        """Let go of bytes that only steps before this one needed."""
        if self._far is not None:
            self._far.pool.pass_steps(step)

    def fetch_ahead(self, rows: Int64, steps: range) -> None:
        """Fetch the bytes that the anchors `rows` (n,) of coming steps need; see `Reader`."""
        if self._far is not None:
            wanted = self._wanted(rows)
            self._prepare(wanted)
            self._frames.locate(self._prefixed(wanted))
            self._frames.fetch_ahead(self._prefixed(wanted), steps)

    def _wanted(self, rows: Int64) -> dict[str, Int64]:
        """Return the rows of the frames that anchors want, (n * T,) by camera."""
        return {
            key: window_rows(rows, self.windows.get(key, (0,)), self._episodes)[0].reshape(-1)
            for key in self._cameras
        }

    def _prepare(self, wanted: dict[str, Int64]) -> None:
        if self._all_at_once:
            return
        files: list[tuple[str, int]] = []
        for key, rows in wanted.items():
            used = np.unique(self._cameras[key].span.file[episode_of(rows, self._episodes)])
            files += [(self._prefix + key, int(file)) for file in used]
        self._frames.prepare(files)
