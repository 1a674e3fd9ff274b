"""A scheduler of decoding: it claims the frames of a batch, and submits what is to be decoded.

    fill: cache -> buffer (copy, or join a frame that is being decoded) -> GOPs to decode -> pool

A frame is decoded once while it is held, whatever number of batches want it. `decode_tasks` runs on
the pool; `frame_delivery` says when a batch is complete.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import numpy as np
from numpy.typing import NDArray

from kata.data.arrays import Int64
from kata.data.counters import CounterCollector
from kata.data.dataset.dataset import Dataset
from kata.data.dataset.windows import episode_of
from kata.data.frames.camera import Camera
from kata.data.frames.decode_pool import DecodePool
from kata.data.frames.decode_tasks import CopyFramesTask, DecodeContext, DecodeGopTask, HeldFrame
from kata.data.frames.fetch_horizon import FetchHorizon
from kata.data.frames.frame_buffer import Frame, FrameBuffer
from kata.data.frames.frame_cache import FrameCache
from kata.data.frames.frame_delivery import Out, PendingFrames, Target
from kata.data.frames.gop_rows import GroupRows, Members, beyond_last_asked
from kata.data.frames.next_use import NextUse, UsePlan
from kata.data.parquet.pages import SideBySide
from kata.data.storage.far_files import ByteRange
from kata.data.storage.fetch_pool import FetchPool
from kata.data.storage.fetch_requests import NEVER, Lease, beside
from kata.log import counting

_COPIES_PER_TASK = 16
"""Held frames that one task copies. With fewer, threads switch more often, and each switch waits
for the interpreter's lock.
"""

_NOW = -1
"""The step of a batch outside of the plan: its bytes come before all others."""

_SEARCHES = 16
"""Row groups in which images are looked for at a time. Each keeps some requests under way."""

_AHEAD = 0.93
"""Fraction of the budget up to which frames are prefetched. Frames that batches ask for meanwhile
need the rest.
"""


class DecodeScheduler:
    """A scheduler of decoding, for one thread at a time. Its methods return quickly; the pool
    decodes.

    Without a budget in `buffer` no frame is held for a later batch. With one, the plan that
    `plan_ahead` was given decides which frames are.

    Args:
        cameras: by key.
        dataset: the dataset whose rows are asked for.
        counters: to count the work in.
        pool: threads that decode; whoever made them closes them.
        cache: it is asked before anything is decoded or held, and is given decoded frames. Frames
            that it takes are not held.
        buffer: held frames; schedulers of other datasets share it, with other camera keys.
        fetched: bytes of far files; None if all files are on this machine.
    """

    def __init__(
        self,
        cameras: dict[str, Camera],
        dataset: Dataset,
        *,
        counters: CounterCollector,
        pool: DecodePool,
        cache: FrameCache | None,
        buffer: FrameBuffer,
        fetched: FetchPool | None = None,
    ) -> None:
        self.buffer = buffer
        # RGB, an estimate: frames held as planes take half. It becomes exact with the first frame.
        sizes = {key: math.prod(camera.shape) for key, camera in cameras.items()}
        self._context = DecodeContext(self.buffer, cache, dataset, counters, sizes, fetched)
        self._cameras = cameras
        self._pool = pool
        self._members = {
            key: GroupRows(camera.span, dataset.episodes) for key, camera in cameras.items()
        }
        self._plan = UsePlan({})
        self._is_begun = False
        self._prepared: set[tuple[str, int]] = set()
        self._horizon = FetchHorizon()

    def prepare(self, files: Sequence[tuple[str, int]]) -> None:
        """Index files that are not indexed yet, on the pool; show a progress bar after one second.

        Args:
            files: (camera, number of the file).
        """
        new = [place for place in files if place not in self._prepared]
        began_s = time.monotonic()
        # Far files are indexed on the threads that wait for stores: there are more of them.
        threads = self._context.fetched or self._pool
        with ExitStack() as live:
            show: Callable[[int, int], None] | None = None
            for done, _ in enumerate(
                threads.map(lambda at: self._cameras[at[0]].prepare(at[1]), new), start=1
            ):
                if show is None and time.monotonic() - began_s > 1:
                    show = live.enter_context(counting("indexing files"))
                if show is not None:
                    show(done, len(new))
        self._prepared.update(new)

    def locate(self, rows: dict[str, Int64]) -> None:
        """Find the bytes of frames in far files, where their cameras do not know them yet.

        Args:
            rows: (N,) rows of the dataset by camera.
        """
        fetched = self._context.fetched
        if fetched is None:
            return
        found: list[Callable[[SideBySide], None]] = []
        for key, wanted in rows.items():
            for file, numbers in self._by_file(key, wanted):
                found += self._cameras[key].searches(file, numbers)
        if found:
            # They wait for answers, so they may not take the threads that ask.
            with ThreadPoolExecutor(min(len(found), _SEARCHES)) as searchers:
                list(searchers.map(lambda search: search(fetched.map), found))

    def _by_file(self, key: str, rows: Int64) -> Iterator[tuple[int, Int64]]:
        """Return the files of a camera that show some rows, and the ascending frames (n,) in
        each.
        """
        span, episodes = self._cameras[key].span, self._context.dataset.episodes
        episode = episode_of(rows, episodes)
        file = span.file[episode]
        number = rows - episodes.start[episode] + span.first[episode]
        for one in np.unique(file).tolist():
            yield one, np.unique(number[file == one])

    def plan_ahead(self, uses: dict[str, NextUse], step: int) -> None:
        """Set the next uses of each camera's frames from `step` on, and release frames without
        any.
        """
        self._plan = UsePlan(uses)
        with self.buffer.lock:
            keys = self.buffer.keys()
            for camera in uses:
                rows = np.array([row for key, row in keys if key == camera], np.int64)
                # One lookup for all rows: one per frame would hold the lock much longer.
                dues = uses[camera].after(rows, step - 1)
                for row, due in zip(rows.tolist(), dues.tolist(), strict=True):
                    frame = self.buffer.get((camera, row))
                    assert frame is not None
                    self.buffer.postpone(frame, due)

    def fill(self, rows: dict[str, Int64], outs: dict[str, Out], step: int | None) -> PendingFrames:
        """Start to write the frames of a batch into its arrays.

        Args:
            rows: (N,) rows of the dataset by camera.
            outs: destination by camera.
            step: the step of the batch in the plan. None means a batch outside of it, which neither
                uses nor holds frames.

        Returns:
            The frames to wait for.
        """
        pending = PendingFrames(sum(len(wanted) for wanted in rows.values()))
        missing: list[DecodeGopTask] = []
        for key, wanted in rows.items():
            missing += self._fill_camera(key, wanted, outs[key], pending, step)
        self._is_begun |= step is not None
        self._submit(missing, _NOW if step is None else step)
        return pending

    def prefetch(self, rows: dict[str, Int64], step: int) -> bool:
        """Decode what a later step wants, if there is free room.

        Args:
            rows: (N,) rows of the dataset by camera.
            step: the step that wants them.

        Returns:
            False if the free room is too small for all of them.
        """
        enough = True
        for key, wanted in rows.items():
            unique = np.unique(wanted[~self._cached(key, wanted)])
            if not len(unique):
                continue
            with self.buffer.lock:
                # step - 1: the plan returns uses after a step, and `step` itself is one here.
                held = [self.buffer.get((key, row)) is not None for row in unique.tolist()]
                tasks = self._decode_tasks(key, unique[~np.array(held, bool)], step - 1, {})
                enough &= all(self.buffer.get((key, row)) is not None for row in unique.tolist())
            self._submit(tasks, step)
        return enough

    def fetch_ahead(self, rows: dict[str, Int64], steps: range) -> None:
        """Fetch the bytes of frames that are neither held nor being decoded, if they are far.

        Args:
            rows: (N,) rows of the dataset by camera.
            steps: the steps that want them.
        """
        fetched = self._context.fetched
        if fetched is None:
            return
        ranges: list[ByteRange] = []
        along: list[tuple[ByteRange, int]] = []
        horizon = self._horizon.steps(fetched.horizon_bytes)
        for key, wanted in rows.items():
            camera = self._cameras[key]
            for file, numbers in self._by_file(key, self._absent(key, np.unique(wanted))):
                mine = camera.byte_ranges(file, numbers)
                ranges += mine
                # Only what is fetched now can bring others along.
                new = fetched.absent(mine)
                near = camera.neighbours(file, new)
                due = range(steps.stop, steps.stop + horizon)
                along += self._due_soon(key, file, near, new, due)
        self._horizon.count(len(steps), fetched.fetch_ahead(ranges, steps, along))

    def _due_soon(
        self, key: str, file: int, gops: Int64, fetched: Sequence[ByteRange], steps: range
    ) -> list[tuple[ByteRange, int]]:
        """Return the bytes of GOPs (n, 2) that some of these steps need, each with the first such
        step, as far as they are next to others or to what is fetched.
        """
        if not len(gops):
            return []
        members = self._members[key].of(np.full(len(gops), file), gops[:, 0], gops[:, 1])
        dues = self._plan.after(key, members.rows, steps.start - 1)
        # Few are due so soon: only these are looked for in the cache and the buffer.
        soon = np.flatnonzero(dues < steps.stop)
        soon = soon[np.isin(members.rows[soon], self._absent(key, members.rows[soon]))]
        group, first = np.unique(members.group[soon], return_index=True)
        if not len(group):
            return []
        earliest = np.minimum.reduceat(dues[soon], first)
        ranges = self._cameras[key].byte_ranges(file, members.numbers[soon[first]])
        return beside(fetched, zip(ranges, earliest.tolist(), strict=True))

    def _absent(self, key: str, rows: Int64) -> Int64:
        """Return the rows whose frames are neither cached nor held, nor being decoded."""
        rows = rows[~self._cached(key, rows)]
        with self.buffer.lock:
            held = [self.buffer.get((key, row)) is not None for row in rows.tolist()]
        return rows[~np.array(held, bool)]

    @property
    def has_leisure(self) -> bool:
        """Return True if the decoders will soon run out of work and there is free room."""
        return self._context.gops_queued < 2 * self._pool.threads and self.has_room

    @property
    def has_room(self) -> bool:
        """Return True while held frames take less of the budget than prefetching may fill."""
        return self.buffer.held_bytes < _AHEAD * self.buffer.budget_bytes

    def _fill_camera(
        self, key: str, wanted: Int64, out: Out, pending: PendingFrames, step: int | None
    ) -> list[DecodeGopTask]:
        """Copy what the cache and the buffer have; return the tasks that decode the rest."""
        ready: list[HeldFrame] = []
        absent: dict[int, Frame] = {}
        with self.buffer.lock:
            # 1. The cache: its frames are copied at once, by this thread, since a copy is quick.
            at = self._from_cache(key, wanted, out)
            held = len(wanted) - len(at)
            if not len(at):
                pending.landed(held)
                self._context.counters.add(frames_asked=held, frames_held=held)
                return []
            # 2. The slots of each row: a batch may want a frame several times. Lists, here and
            #    below: a batch has few frames of a camera, and numpy costs more per call than such
            #    loops.
            slots: dict[int, list[int]] = {}
            for row, slot in sorted(zip(wanted[at].tolist(), out.slots[at].tolist(), strict=True)):
                slots.setdefault(row, []).append(slot)
            dues = self._plan.after(key, np.array(list(slots)), step).tolist()
            # 3. The buffer: a frame there is copied later by a task, or, if it is still being
            #    decoded for another batch, this batch joins those that wait for it.
            for (row, mine), due in zip(slots.items(), dues, strict=True):
                target = Target(out.pixels, mine, pending)
                frame = None if step is None else self.buffer.get((key, row))
                if frame is None:
                    size = self._context.frame_bytes[key]
                    absent[row] = Frame((key, row), size, due, waiting=[target])
                    continue
                held += len(mine)
                if frame.memory is None:
                    frame.waiting.append(target)
                else:
                    frame.readers += 1
                    ready.append(HeldFrame(frame, target))
                self.buffer.postpone(frame, due)
            # 4. The rest is decoded, GOP by GOP. Still under the lock, so that no other batch
            #    claims the same frames in between.
            tasks = self._decode_tasks(key, np.array(list(absent), np.int64), step, absent)
        pending.landed(len(wanted) - len(at))
        self._context.counters.add(frames_asked=len(wanted), frames_held=held)
        self._submit_copies(key, ready, pending)
        return tasks

    def _submit_copies(self, key: str, ready: list[HeldFrame], pending: PendingFrames) -> None:
        """Submit tasks that copy held frames into a batch."""
        copies: list[CopyFramesTask] = []
        for begin in range(0, len(ready), _COPIES_PER_TASK):
            held = ready[begin : begin + _COPIES_PER_TASK]
            copies.append(CopyFramesTask(self._context, self._cameras[key], pending, held))
        self._pool.put(copies)

    def _from_cache(self, key: str, wanted: Int64, out: Out) -> Int64:
        """Copy what the cache has, and return the places of the other frames, (n,) in `wanted`.

        The caller keeps the buffer locked until it has planned those, so that none of them enters
        the cache in between.
        """
        if self._context.cache is None:
            return np.arange(len(wanted))
        began_s = time.perf_counter()
        missing = self._context.cache.fetch(key, self._context.dataset.opened_rows(wanted), *out)
        self._context.counters.add(convert_s=time.perf_counter() - began_s)
        # Frames that were held before the cache took them are now held twice.
        if self.buffer.held_bytes:
            for row in np.unique(wanted[~missing]).tolist():
                frame = self.buffer.get((key, row))
                if frame is not None:
                    self.buffer.postpone(frame, NEVER)
        return np.flatnonzero(missing)

    def _cached(self, key: str, rows: Int64) -> NDArray[np.bool_]:
        """Return the mask (n,) of rows that the cache has."""
        if self._context.cache is None:
            return np.zeros(len(rows), bool)
        return self._context.cache.has(key, self._context.dataset.opened_rows(rows))

    def _decode_tasks(
        self, key: str, rows: Int64, step: int | None, wanted: dict[int, Frame]
    ) -> list[DecodeGopTask]:
        """Return the tasks that decode `rows` and frames of the same GOPs that later steps want.

        Args:
            key: the camera.
            rows: (n,) rows of the dataset, ascending.
            step: the step of the batch; uses after it count.
            wanted: the frames that a batch waits for, by row. Other frames are decoded only if
                there is room to hold them. If it is empty, GOPs are prefetched: whole, and without
                evicting a held frame.
        """
        if not len(rows):
            return []
        # 1. The GOPs of the rows, and all rows of the dataset that these GOPs show. The decoder
        #    passes them anyway on its way to the wanted ones.
        camera, episodes = self._cameras[key], self._context.dataset.episodes
        span, episode = camera.span, episode_of(rows, episodes)
        file = span.file[episode]
        first, end = camera.groups(file, rows - episodes.start[episode] + span.first[episode])
        members = self._members[key].of(file, first, end)
        # 2. The rows worth converting: asked for, or wanted by a later step and not cached.
        dues = self._plan.after(key, members.rows, step)
        dues[self._cached(key, members.rows)] = NEVER
        asked = np.array([row in wanted for row in members.rows.tolist()], bool)
        is_worth = asked | (dues < NEVER)
        if not self._is_begun and asked.any():
            # The first batches do not decode long GOPs beyond their last wanted frame: training
            # begins sooner, for the price of a few GOPs that are decoded twice, once in a run.
            is_worth &= ~beyond_last_asked(members, asked)
        # 3. One task per GOP, with the frames that find room.
        tasks: list[DecodeGopTask] = []
        for chosen in _by_group(members, np.flatnonzero(is_worth)):
            row_list = members.rows[chosen].tolist()
            if not wanted and not self._fits(key, row_list):
                continue
            places: list[int] = []
            frames: list[Frame] = []
            again = NEVER
            for place, row, due in zip(
                chosen.tolist(), row_list, dues[chosen].tolist(), strict=True
            ):
                frame = self._choose(key, row, due, wanted.get(row), evict=bool(wanted))
                if frame is not None:
                    places.append(place)
                    frames.append(frame)
                if self.buffer.get((key, row)) is None:
                    again = min(again, due)
            if frames:
                number = int(members.file[members.group[chosen[0]]])
                numbers = members.numbers[places]
                tasks.append(DecodeGopTask(self._context, camera, number, numbers, frames, again))
        return tasks

    def _fits(self, key: str, rows: list[int]) -> bool:
        """Return True if the buffer has room for all of these rows.

        A GOP of which only a part is held would be decoded again.
        """
        absent = sum(self.buffer.get((key, row)) is None for row in rows)
        needed = absent * self._context.frame_bytes[key]
        return self.buffer.held_bytes + needed <= self.buffer.budget_bytes

    def _choose(
        self, key: str, row: int, due: int, wanted: Frame | None, *, evict: bool
    ) -> Frame | None:
        """Return the frame to decode, or None if it is held already or finds no room."""
        if wanted is None and self.buffer.get((key, row)) is not None:
            return None
        frame = wanted or Frame((key, row), self._context.frame_bytes[key])
        kept = due < NEVER and self.buffer.keep(frame, due, evict=evict)
        # A batch that waits gets its frame even where there is no room to hold it.
        return frame if kept or frame.waiting else None

    def _submit(self, tasks: list[DecodeGopTask], step: int) -> None:
        """Submit decoding tasks, each when its bytes are on this machine."""
        with self.buffer.lock:
            self._context.gops_queued += len(tasks)
        near: list[DecodeGopTask] = []
        for task in tasks:
            ranges = task.camera.byte_ranges(task.file, task.numbers)
            if ranges and self._context.fetched is not None:
                task.lease = Lease(ranges, task.again)
                self._context.fetched.bring(task.lease, step, partial(self._begin, task))
            else:
                near.append(task)
        self._pool.put(near)

    def _begin(self, task: DecodeGopTask, error: BaseException | None) -> None:
        """Submit a task whose bytes are here, or end it if they cannot be had."""
        try:
            if error is None:
                self._pool.put([task])
        except RuntimeError:
            # The reader was closed meanwhile; the pool of bytes may serve others and lives on.
            error = CancelledError()
        if error is not None:
            task.done(error)


def _by_group(members: Members, places: Int64) -> list[Int64]:
    """Split places of members, which are ordered by GOP, into those of each GOP."""
    if not len(places):
        return []
    return np.split(places, np.flatnonzero(np.diff(members.group[places])) + 1)
