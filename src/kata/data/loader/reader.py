"""Reads whole batches: vectors are gathers, frames are decoded once each, straight into the
batch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from types import TracebackType
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
from kata.data.frames.frame_format import RECORDED, FrameFormat
from kata.data.frames.image_camera import ImageCamera
from kata.data.frames.next_use import NextUse, held_as_rgb
from kata.data.frames.video_camera import VideoCamera
from kata.data.parquet.image_column import EncodedImages
from kata.data.storage.buffers import Allocate, Recycled
from kata.data.video.decoder import Gop
from kata.errors import ConfigError, DataError, did_you_mean
from kata.spec import BOOKKEEPING, TASK, Batch, Column, Windows, features_of, pad_key
from kata.units import bytes_text

T = TypeVar("T")

_AT_ONCE = 5000
"""Files that are indexed when a reader opens; of a larger dataset the others are indexed when
they are met.
"""


class PendingRead:
    """A batch on its way: everything but the frames is there, and these are coming."""

    def __init__(self, batch: Batch, pending: PendingFrames) -> None:
        self.batch, self._pending = batch, pending

    def result(self) -> Batch:
        """The batch, once its frames are there.

        Raises: FrameError for a frame that cannot be decoded, DataError for other damage.
        """
        self._pending.wait()
        return self.batch


@dataclass(frozen=True)
class BatchSlots:
    """Where a reader's samples stand in a batch: `samples` (n,), ascending, of the B that it has.

    frames: those of the whole batch by the reader's keys, (B, H, W, C) or (B, T, H, W, C).
    """

    frames: Mapping[str, Pixels]
    samples: Int64

    def of(self, key: str, shape: tuple[int, ...]) -> Out:
        """The places of a camera's frames of this shape (H, W, C), one after the other."""
        assert self.frames[key].shape[-3:] == shape, key
        pixels = self.frames[key].reshape(-1, *shape)
        steps = len(pixels) // len(self.frames[key])
        return Out(pixels, (self.samples[:, None] * steps + np.arange(steps)).reshape(-1))


@dataclass(frozen=True)
class Shared:
    """What the readers of a mixture share: decoding threads, which whoever made them ends, and the
    frames held.

    name: begins the keys of this reader's cameras there, and in the frame cache.
    """

    name: str
    pool: DecodePool
    buffer: FrameBuffer


class Reader:
    """Reads samples of a dataset by the row of their anchor. Safe to call from several threads.

    Args:
        dataset: what to read.
        windows: frame offsets per key; a key that is absent is read at the anchor alone, without a
            time axis.
        threads: how many decode at a time.
        keys: the columns to read, beside the bookkeeping; None for all.
        shared: with other readers.
        frame_memory: bytes for decoded frames, those of batches read ahead included; 0 holds no
            frame for later
            batches and sets no limit to batches. See `reserve_batches` and `plan_ahead`.
        cache: asked first for frames, and given those that were decoded; made for this dataset or
            what it is a part of.
        frame_format: how frames lie in batches.

    Raises: DataError for a window over an unknown key, and for damaged files as far as their ends
        show it.
    """

    def __init__(
        self,
        dataset: Dataset,
        windows: Windows,
        *,
        threads: int = 4,
        keys: Collection[str] | None = None,
        shared: Shared | None = None,
        frame_memory: int = 0,
        cache: FrameCache | None = None,
        frame_format: FrameFormat = RECORDED,
    ) -> None:
        self._frame_format = frame_format
        self.dataset, self.windows, self.frame_memory = dataset, windows, frame_memory
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
        self._chosen = chosen
        self.rename({})
        self._tasks = np.array(dataset.tasks, dtype=object)
        self._counters = CounterCollector()
        self._encoded = EncodedImages(self._counters)
        self._cameras = {
            key: self._camera(key, column) for key, column in chosen.items() if column.is_camera
        }
        self._memory = defaultdict[str, Recycled](Recycled)
        check_task_range(dataset.repo_id, *dataset.task_range(), dataset.tasks)
        self._name = "" if shared is None else shared.name
        self._frames = DecodeScheduler(
            self._named(self._cameras),
            dataset,
            threads=threads,
            cache=cache,
            counters=self._counters,
            pool=shared and shared.pool,
            buffer=shared and shared.buffer,
        )
        # Files are indexed now, at least one per camera: what does not fit is found before anything
        # is trained.
        cameras = self._named(self._cameras)
        files = [(key, int(file)) for key, camera in cameras.items() for file in camera.files()]
        firsts = [(key, int(camera.files()[0])) for key, camera in cameras.items()]
        self._all_at_once = len(files) <= _AT_ONCE
        self._frames.prepare(files if self._all_at_once else firsts)

    def _named(self, by_key: Mapping[str, T]) -> dict[str, T]:
        """By the cameras' keys among all readers that share."""
        return {self._name + key: value for key, value in by_key.items()}

    def _camera(self, key: str, column: Column) -> Camera:
        root, layout = self.dataset.root, self.dataset.layout
        if column.dtype == "video":
            as_rgb = held_as_rgb(self.windows.get(key, (0,)))
            return VideoCamera(
                root,
                key,
                column,
                layout,
                fps=self.dataset.fps,
                as_rgb=as_rgb,
                counters=self._counters,
                frame_format=self._frame_format,
            )
        return ImageCamera(
            root,
            key,
            column,
            layout,
            encoded=self._encoded,
            counters=self._counters,
            frame_format=self._frame_format,
        )

    def rename(self, names: Mapping[str, str]) -> None:
        """Take the roles of columns from the names that they get after reading.

        Columns drop the axis of a single number; a state or an action is a vector all the same.

        Args:
            names: own name -> the name that decides the role.
        """
        roles = features_of(self._chosen, names)
        self._single = {key for key in self._vectors & {*roles} if roles[key].shape == (1,)}

    def decode_with(self, decode: Callable[[Gop], Pixels]) -> None:
        """Have video decoded by this from now on: the frames of a group as RGB (n, H, W, 3)."""
        for camera in self._cameras.values():
            if isinstance(camera, VideoCamera):
                camera.elsewhere = decode

    def allocate_with(self, allocate: Allocate) -> None:
        """Have frames and vectors of batches lie in memory from this from now on.

        Such memory serves for another batch once the batch and all arrays and tensors taken from it
        are gone.
        """
        self._memory = defaultdict(lambda: Recycled(allocate))

    def work(self) -> ReadCounters:
        """What reading has cost so far; the difference of two of these is what happened in
        between.
        """
        return self._counters.snapshot()

    def read(self, rows: Int64) -> Batch:
        """The samples anchored at `rows` (B,).

        Returns: cameras uint8 (B, H, W, C), or (B, T, H, W, C) under a window; vectors float32 (B,
            D) or (B, T, D); columns of one number (B,) or (B, T), but a state or an action of one
            number (B, 1) or (B, T, 1); `<key>_is_pad` bool (B, T) per window; `task` a list of
            sentences; `index`, `episode_index`, `frame_index`, `task_index` int64 (B,); `timestamp`
            float32 (B,), seconds. Offsets beyond an episode repeat its edge frame and are marked.

        Raises: DataError for a file that turns out to be damaged.
        """
        return self.start(rows).result()

    def start(
        self, rows: Int64, step: int | None = None, slots: BatchSlots | None = None
    ) -> PendingRead:
        """Begin to read samples; `step` is the place of this batch among those that `plan_ahead`
        was told of.

        Frames held from earlier steps are used, and those that later steps want are held, within
        the budget. Without `step` nothing is held. The pixels are the same in any case. Steps are
        for one thread at a time.

        places: where frames go, which are then no part of this batch; None for arrays of its own.
        """
        rows = np.asarray(rows, dtype=np.int64)
        episode_of(rows, self.episodes)  # numpy would take a negative row from the end
        batch: Batch = {}
        frames: dict[str, Int64] = {}
        opened = self.dataset.opened_rows(rows)
        windows = {
            offsets: window_rows(rows, offsets, self.episodes)
            for offsets in set(self.windows.values())
        }
        opened_windows = {
            offsets: self.dataset.opened_rows(at) for offsets, (at, _) in windows.items()
        }
        for key in self.dataset.columns:
            at, opened_at = rows, opened
            if key in self.windows:
                at, mask = windows[self.windows[key]]
                opened_at = opened_windows[self.windows[key]]
                batch[pad_key(key)] = mask.copy()  # each its own: they are the caller's
            if key in self._cameras:
                frames[key] = at
            elif key in self._vectors:
                values = self.dataset.gather(key, opened_at, self._memory[key].empty)
                if key in self._single:
                    values = values[..., None]
                batch[key] = values.tolist() if values.dtype == object else values
        for key in BOOKKEEPING:
            if key not in batch:
                batch[key] = self.dataset.gather(key, opened)
        batch[TASK] = self._tasks[self.dataset.gather("task_index", opened)].tolist()
        wanted = {key: at.reshape(-1) for key, at in frames.items()}
        self._prepare(wanted)
        if slots is None:
            shapes = {key: (*at.shape, *self._cameras[key].shape) for key, at in frames.items()}
            slots = BatchSlots(
                {key: self._memory[key].empty(shape) for key, shape in shapes.items()},
                np.arange(len(rows)),
            )
            batch |= slots.frames
        outs = {key: slots.of(key, self._cameras[key].shape) for key in wanted}
        return PendingRead(batch, self._frames.fill(self._named(wanted), self._named(outs), step))

    def masks(self, rows: Int64) -> Batch:
        """The masks alone, `<key>_is_pad` bool (B, T) per window; reads nothing."""
        rows = np.asarray(rows, dtype=np.int64)
        return {
            pad_key(key): window_rows(rows, offsets, self.episodes)[1]
            for key, offsets in self.windows.items()
        }

    def batch_bytes(self, size: int) -> int:
        """Bytes of the frames of a batch of `size` samples."""
        return sum(
            size * len(self.windows.get(key, (0,))) * int(np.prod(camera.shape))
            for key, camera in self._cameras.items()
        )

    def reserve_batches(self, batch_size: int, batches: int) -> int:
        """Divide `frame_memory` between batches read ahead and frames held.

        Returns: how many batches may be in the making at a time, at most `batches`. The frames of
            that many are set aside, what is left is for frames held for later. A batch that was
            handed over is the caller's.

        Raises: ConfigError when the budget is smaller than one batch.
        """
        size = self.batch_bytes(batch_size)
        if not self.frame_memory or not size:
            return batches
        count = batches_within(self.frame_memory, size, batch_size, batches)
        self._frames.buffer.budget_bytes = self.frame_memory - count * size
        return count

    @property
    def looks_ahead(self) -> bool:
        """True when there is room to hold frames, so that `plan_ahead` and `prefetch` are of
        use.
        """
        return self._frames.buffer.budget_bytes > 0

    @property
    def has_room(self) -> bool:
        """True while frames held for later batches take less of the budget than they will."""
        return self._frames.has_room

    def plan_ahead(self, rows: Int64, steps: Int64) -> None:
        """Say which anchors come: `rows` (N,) at `steps` (N,), the first of which is the next to
        be started.
        """
        used: dict[tuple[int, ...], NextUse] = {}
        for key in self._cameras:
            offsets = self.windows.get(key, (0,))
            if offsets not in used:
                used[offsets] = NextUse(window_rows(rows, offsets, self.episodes)[0], steps)
        uses = {key: used[self.windows.get(key, (0,))] for key in self._cameras}
        self._frames.plan_ahead(self._named(uses), int(steps.min()) if len(steps) else 0)

    def prefetch(self, rows: Int64, step: int) -> bool:
        """Decode ahead for a step that `plan_ahead` was told of, as far as there is free room and a
        decoder is idle.

        Returns: False when there is nothing to be gained by asking for the step after it.
        """
        if not self._frames.has_leisure:
            return False
        wanted = {
            key: window_rows(rows, self.windows.get(key, (0,)), self.episodes)[0].reshape(-1)
            for key in self._cameras
        }
        self._prepare(wanted)
        return self._frames.prefetch(self._named(wanted), step)

    def _prepare(self, wanted: dict[str, Int64]) -> None:
        if self._all_at_once:
            return
        files: list[tuple[str, int]] = []
        for key, rows in wanted.items():
            files += [
                (self._name + key, int(file))
                for file in np.unique(self._cameras[key].span.file[episode_of(rows, self.episodes)])
            ]
        self._frames.prepare(files)

    def close(self) -> None:
        """End the decoding threads, unless they are shared, and free what is held."""
        self._frames.close()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def batches_within(frame_memory: int, size: int, batch_size: int, batches: int) -> int:
    """How many batches of `size` bytes fit into the budget, at most `batches`.

    Raises: ConfigError when there is not room for one.
    """
    if frame_memory < size:
        raise ConfigError(
            f"dataset.frame_memory={bytes_text(frame_memory)}, but the frames of one batch of "
            f"{batch_size} "
            f"samples take {bytes_text(size)}",
            rule="decoded frames of at least one batch fit into the budget",
            remedy=f"--dataset.frame_memory={-(-size // 10**6)}MB or more, or a smaller "
            "--batch_size",
        )
    return min(batches, frame_memory // size)
