"""Tasks of the decode pool: decode a GOP, or copy held frames into a batch."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kata.data.arrays import Int64, Pixels
from kata.data.counters import CounterCollector
from kata.data.dataset.dataset import Dataset
from kata.data.frames.camera import Camera, Picture
from kata.data.frames.frame_buffer import Frame, FrameBuffer
from kata.data.frames.frame_cache import FrameCache
from kata.data.frames.frame_delivery import PendingFrames, Target, write_picture
from kata.data.storage.fetch_pool import FetchPool
from kata.data.storage.fetch_requests import NEVER, Lease
from kata.errors import DataError, FrameError


@dataclass(eq=False, slots=True)
class DecodeContext:
    """The state that all tasks of a scheduler share; `buffer.lock` guards its numbers.

    Attributes:
        buffer: of held frames.
        cache: of frames on disk or in shared memory, if there is one.
        dataset: the dataset whose rows are decoded.
        counters: to count the work in.
        frame_bytes: size of a held frame by camera; an estimate until the first one is decoded.
        fetched: the bytes of far files, if there are any.
        gops_queued: tasks that were submitted and are not done.
    """

    buffer: FrameBuffer
    cache: FrameCache | None
    dataset: Dataset
    counters: CounterCollector
    frame_bytes: dict[str, int]
    fetched: FetchPool | None = None
    gops_queued: int = 0


@dataclass(eq=False, slots=True)
class DecodeGopTask:
    """A task that decodes one GOP.

    Attributes:
        context: shared state.
        camera: the camera.
        file: number of the file.
        numbers: (n,) numbers of the frames in the file that batches wait for or later steps want.
        frames: the same frames, in this order.
        again: the next step that wants frames of the GOP that are not held until then.
        lease: of the bytes of a far file.
    """

    context: DecodeContext
    camera: Camera
    file: int
    numbers: Int64
    frames: list[Frame]
    again: int = NEVER
    lease: Lease | None = None

    def run(self) -> None:
        """Decode the GOP in one pass, and deliver each picture as it comes."""
        rows = np.array([frame.key[1] for frame in self.frames], np.int64)
        decoded = set[int]()
        convert_s = 0.0
        try:
            for place, picture in self.camera.decode(self.file, self.numbers, rows):
                began_s = time.perf_counter()
                decoded.add(place)
                frame = self.frames[place]
                self._hand_out(frame, self._to_cache(frame, picture))
                convert_s += time.perf_counter() - began_s
        except DataError:
            # Several batches may wait for this GOP, and only some want the frame that is bad.
            self._retry_per_batch([place for place in range(len(rows)) if place not in decoded])
        finally:
            self.context.counters.add(convert_s=convert_s)

    def done(self, error: BaseException | None) -> None:
        """After an error, forget the frames that were not decoded, and fail the batches that
        wait.
        """
        if self.lease is not None and self.context.fetched is not None:
            self.context.fetched.release(self.lease)
        targets: list[Target] = []
        buffer = self.context.buffer
        with buffer.lock:
            self.context.gops_queued -= 1
            if error is None:
                return
            for frame in self.frames:
                targets += frame.waiting
                frame.waiting = []
                if frame.memory is None:
                    frame.taken = False
                    buffer.forget(frame)
        # Without the lock: a thread that waits for the batch wakes here, and may want it.
        for target in targets:
            target.pending.failed(error)

    def _to_cache(self, frame: Frame, picture: Picture) -> Picture:
        """Store a picture if the cache takes it, before the owner of a batch may change its
        pixels.
        """
        context = self.context
        if context.cache is None:
            return picture
        key, row = frame.key
        opened = int(context.dataset.opened_rows(np.array([row]))[0])
        if not context.cache.takes(key, opened):
            return picture
        pixels: Pixels = np.empty(self.camera.shape, np.uint8)
        self.camera.write_frame(picture, pixels)
        context.cache.store(key, opened, pixels)
        # Later batches read it from the cache, so the buffer does not hold it as well.
        with context.buffer.lock:
            context.buffer.forget(frame)
        return pixels

    def _hand_out(self, frame: Frame, picture: Picture) -> None:
        """Write a picture to every batch that waits for it, and hold it if a later one wants it."""
        buffer, memory = self.context.buffer, None
        # 1. Take the batches that wait, and memory. A batch that comes from here on enters
        #    `frame.waiting`, until step 2 makes the frame readable.
        with buffer.lock:
            targets, frame.waiting = frame.waiting, []
            if frame.kept:
                size = self.camera.held_bytes(picture)
                self.context.frame_bytes[frame.key[0]] = size
                memory = buffer.take(frame, size)
        try:
            # 2. Hold the picture. The copy runs without the lock, since it takes longer than all
            #    else. Batches that came meanwhile are served here as well.
            if memory is not None:
                picture = self.camera.hold(picture, memory)
                with buffer.lock:
                    targets += frame.waiting
                    frame.waiting = []
                    frame.memory = memory
                    frame.picture = picture
                    frame.readers = bool(targets)
                    if not targets:
                        buffer.settle(frame)
            # 3. Write it. `write_picture` returns RGB, so that only the first batch converts, and
            #    the others copy.
            for target in targets:
                picture = write_picture(self.camera, picture, target)
        except BaseException as error:
            for target in targets:
                target.pending.failed(error)
            raise
        # 4. Only now: the owner of a complete batch may change its pixels, which step 3 copies.
        for target in targets:
            target.pending.landed(len(target.slots))
        if memory is not None and targets:
            buffer.release([frame])

    def _retry_per_batch(self, places: list[int]) -> None:
        """Decode the frames that failed again, for each batch that waits alone.

        A frame that is prefetched for later must not fail a batch now.
        """
        # 1. Take the targets, and no longer hold the frames: a later batch decodes them by itself,
        #    so that it gets its own error.
        with self.context.buffer.lock:
            waiting: list[tuple[int, Target]] = []
            for place in places:
                frame = self.frames[place]
                waiting += [(place, target) for target in frame.waiting]
                frame.waiting = []
                self.context.buffer.forget(frame)
        # 2. Decode per batch, so that a bad frame fails those batches alone that want it. This
        #    costs the GOP once more per batch, in the rare case of damage.
        batches = {id(target.out): target.out for _, target in waiting}
        for out in batches.values():
            self._decode_for([(place, target) for place, target in waiting if target.out is out])

    def _decode_for(self, waiting: list[tuple[int, Target]]) -> None:
        """Decode the frames that one batch waits for, as (place in `frames`, target)."""
        places = [place for place, _ in waiting]
        rows = np.array([self.frames[place].key[1] for place in places], np.int64)
        left = dict(enumerate(target for _, target in waiting))
        try:
            for at, picture in self.camera.decode(self.file, self.numbers[places], rows):
                target = left.pop(at)
                write_picture(self.camera, picture, target)
                target.pending.landed(len(target.slots))
        except FrameError as error:
            for target in left.values():
                target.pending.bad(error, len(target.slots))
        except DataError as error:
            for target in left.values():
                target.pending.failed(error)


class HeldFrame(NamedTuple):
    """A held frame, and the slots of a batch that it is copied to."""

    frame: Frame
    target: Target


@dataclass(eq=False, slots=True)
class CopyFramesTask:
    """A task that copies held frames into one batch; until it is done, it counts in their
    `readers`.
    """

    context: DecodeContext
    camera: Camera
    pending: PendingFrames
    held: list[HeldFrame]

    def run(self) -> None:
        """Copy the frames; those that are held as planes are converted."""
        began_s = time.perf_counter()
        for frame, target in self.held:
            write_picture(self.camera, frame.picture, target)
        self.context.counters.add(convert_s=time.perf_counter() - began_s)

    def done(self, error: BaseException | None) -> None:
        """Release the frames, and report them to the batch as written or failed."""
        self.context.buffer.release([frame for frame, _ in self.held])
        if error is None:
            self.pending.landed(sum(len(target.slots) for _, target in self.held))
        else:
            self.pending.failed(error)
