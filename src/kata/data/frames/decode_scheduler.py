"""The scheduler of frames: it claims what a batch wants and submits what must be decoded or copied.

Each frame is decoded once while it is held, whatever number of batches want it. `decode_tasks` runs
on the pool.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack

import numpy as np
from numpy.typing import NDArray

from kata.data.arrays import Int64
from kata.data.counters import CounterCollector
from kata.data.dataset.dataset import Dataset
from kata.data.dataset.windows import episode_of
from kata.data.frames.camera import Camera
from kata.data.frames.decode_pool import DecodePool
from kata.data.frames.decode_tasks import CopyFramesTask, DecodeContext, DecodeGopTask, HeldFrame
from kata.data.frames.frame_buffer import Frame, FrameBuffer
from kata.data.frames.frame_cache import FrameCache
from kata.data.frames.frame_delivery import Out, PendingFrames, Target
from kata.data.frames.gop_rows import GroupRows, Members, beyond_last_asked
from kata.data.frames.next_use import NEVER, NextUse, UsePlan
from kata.log import counting

_COPIES_PER_TASK = 16
"""Held frames that one task copies: with fewer, threads hand the interpreter's lock to one another
more often.
"""

_AHEAD = 0.93
"""Share of the budget up to which decoding runs ahead: frames that batches want meanwhile need the
rest.
"""


class DecodeScheduler:
    """A scheduler of decoding: without a budget no frame is held, with one the plan says which are.

    `fill`, `prefetch` and `plan_ahead` are quick, and for one thread at a time; the pool decodes.

    Args:
        cameras: by key. dataset: whose rows are asked for. threads: decoders at work.
        cache: asked before anything is decoded or held, and given what is decoded; what it takes is
            not held.
        jobs: shared threads to use instead, which whoever made them ends.
        store: shared with other Frames, whose cameras have other keys.
    """

    def __init__(
        self,
        cameras: dict[str, Camera],
        dataset: Dataset,
        *,
        threads: int,
        counters: CounterCollector,
        pool: DecodePool | None = None,
        cache: FrameCache | None = None,
        buffer: FrameBuffer | None = None,
    ) -> None:
        self.buffer = buffer or FrameBuffer(budget_bytes=0)
        # An estimate at first: exact once a camera's first frame was decoded.
        sizes = {key: math.prod(camera.shape) for key, camera in cameras.items()}
        self._context = DecodeContext(self.buffer, cache, dataset, counters, sizes)
        self._cameras = cameras
        self._owns_pool = pool is None
        self._pool = pool or DecodePool(threads)
        self._members = {
            key: GroupRows(camera.span, dataset.episodes) for key, camera in cameras.items()
        }
        self._plan = UsePlan({})
        self._is_begun = False
        self._prepared: set[tuple[str, int]] = set()

    def prepare(self, files: Sequence[tuple[str, int]]) -> None:
        """Index files that are not indexed yet, in threads; show a bar after one second."""
        new = [place for place in files if place not in self._prepared]
        began_s = time.monotonic()
        with ExitStack() as live:
            show: Callable[[int, int], None] | None = None
            for done, _ in enumerate(
                self._pool.map(lambda at: self._cameras[at[0]].prepare(at[1]), new), start=1
            ):
                if show is None and time.monotonic() - began_s > 1:
                    show = live.enter_context(counting("indexing files"))
                if show is not None:
                    show(done, len(new))
        self._prepared.update(new)

    def plan_ahead(self, uses: dict[str, NextUse], step: int) -> None:
        """Set the uses of each camera's frames from `step` on; let frames go that no step wants any
        more.
        """
        self._plan = UsePlan(uses)
        with self.buffer.lock:
            keys = self.buffer.keys()
            for camera in uses:
                rows = np.array([row for key, row in keys if key == camera], np.int64)
                for row, due in zip(
                    rows.tolist(), uses[camera].after(rows, step - 1).tolist(), strict=True
                ):
                    frame = self.buffer.get((camera, row))
                    assert frame is not None
                    self.buffer.postpone(frame, due)

    def fill(self, rows: dict[str, Int64], outs: dict[str, Out], step: int | None) -> PendingFrames:
        """Start to write frames rows[key] (N,) of each camera to outs[key].

        Args:
            rows: rows of the dataset by camera.
            outs: destinations by camera.
            step: of the batch within the plan; None holds nothing and uses no held frame.

        Returns: the frames to wait for.
        """
        pending = PendingFrames(sum(len(wanted) for wanted in rows.values()))
        missing: list[DecodeGopTask] = []
        for key, wanted in rows.items():
            missing += self._fill_camera(key, wanted, outs[key], pending, step)
        self._is_begun |= step is not None
        self._submit(missing)
        return pending

    def prefetch(self, rows: dict[str, Int64], step: int) -> bool:
        """Decode ahead what a later step wants, while there is free room; return False when it is
        too small.
        """
        enough = True
        for key, wanted in rows.items():
            unique = np.unique(wanted[~self._cached(key, wanted)])
            if not len(unique):
                continue
            with self.buffer.lock:
                held = [self.buffer.get((key, row)) is not None for row in unique.tolist()]
                tasks = self._decode_tasks(key, unique[~np.array(held, bool)], step - 1, {})
                enough &= all(self.buffer.get((key, row)) is not None for row in unique.tolist())
            self._submit(tasks)
        return enough

    @property
    def has_leisure(self) -> bool:
        """True when the decoders will soon run out of work and there is free room."""
        return self._context.gops_queued < 2 * self._pool.threads and self.has_room

    @property
    def has_room(self) -> bool:
        """True while frames for later batches take less of the budget than they will."""
        return self.buffer.held_bytes < _AHEAD * self.buffer.budget_bytes

    def _fill_camera(
        self, key: str, wanted: Int64, out: Out, pending: PendingFrames, step: int | None
    ) -> list[DecodeGopTask]:
        """Copy what the cache and the buffer have; return the tasks that decode the rest."""
        ready: list[HeldFrame] = []
        absent: dict[int, Frame] = {}
        with self.buffer.lock:
            # 1. The cache: frames that it has are written at once.
            at = self._from_cache(key, wanted, out)
            held = len(wanted) - len(at)
            if not len(at):
                pending.landed(held)
                self._context.counters.add(frames_asked=held, frames_held=held)
                return []
            # 2. The slots of each row: a batch may want a frame several times.
            # Lists, as below: a batch has few frames of a camera, and numpy takes longer than such
            # loops.
            slots: dict[int, list[int]] = {}
            for row, slot in sorted(zip(wanted[at].tolist(), out.slots[at].tolist(), strict=True)):
                slots.setdefault(row, []).append(slot)
            dues = self._plan.after(key, np.array(list(slots)), step).tolist()
            # 3. The buffer: a frame there is copied, or joined if another batch has it decoded
            #    already.
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
            # 4. The rest is decoded, GOP by GOP. Under the lock: no other batch claims the same
            #    frames.
            tasks = self._decode_tasks(key, np.array(list(absent), np.int64), step, absent)
        pending.landed(len(wanted) - len(at))
        self._context.counters.add(frames_asked=len(wanted), frames_held=held)
        self._submit_copies(key, ready, pending)
        return tasks

    def _submit_copies(self, key: str, ready: list[HeldFrame], pending: PendingFrames) -> None:
        copies: list[CopyFramesTask] = []
        for begin in range(0, len(ready), _COPIES_PER_TASK):
            held = ready[begin : begin + _COPIES_PER_TASK]
            copies.append(CopyFramesTask(self._context, self._cameras[key], pending, held))
        self._pool.put(copies)

    def _from_cache(self, key: str, wanted: Int64, out: Out) -> Int64:
        """Copy what the cache has, let the buffer's copies go, and return the places of the other
        frames.

        The caller keeps the buffer locked until those are planned, so that none enters the cache in
        between.
        """
        if self._context.cache is None:
            return np.arange(len(wanted))
        began_s = time.perf_counter()
        missing = self._context.cache.fetch(key, self._context.dataset.opened_rows(wanted), *out)
        self._context.counters.add(convert_s=time.perf_counter() - began_s)
        for row in np.unique(wanted[~missing]).tolist() if self.buffer.held_bytes else []:
            frame = self.buffer.get((key, row))
            if frame is not None:
                self.buffer.postpone(frame, NEVER)
        return np.flatnonzero(missing)

    def _cached(self, key: str, rows: Int64) -> NDArray[np.bool_]:
        if self._context.cache is None:
            return np.zeros(len(rows), bool)
        return self._context.cache.has(key, self._context.dataset.opened_rows(rows))

    def _decode_tasks(
        self, key: str, rows: Int64, step: int | None, wanted: dict[int, Frame]
    ) -> list[DecodeGopTask]:
        """Return the tasks that decode `rows` (ascending), with frames of the same GOPs for later
        steps.

        `wanted` are the frames that a batch waits for; others are decoded only if there is room to
        hold them. Without any, GOPs are decoded ahead, and whole; no held frame is evicted for
        them.
        """
        if not len(rows):
            return []
        # 1. The GOPs of the rows, and all rows of the dataset that these GOPs show.
        camera, episodes = self._cameras[key], self._context.dataset.episodes
        span, episode = camera.span, episode_of(rows, episodes)
        file = span.file[episode]
        first, end = camera.groups(file, rows - episodes.start[episode] + span.first[episode])
        members = self._members[key].of(file, first, end)
        # 2. Those worth decoding: asked for, or wanted by a later step and not cached.
        dues = self._plan.after(key, members.rows, step)
        dues[self._cached(key, members.rows)] = NEVER
        asked = np.array([row in wanted for row in members.rows.tolist()], bool)
        is_worth = asked | (dues < NEVER)
        if not self._is_begun and asked.any():
            # The first batch does not wait for the rest of long GOPs, which is decoded when it is
            # wanted: training begins sooner, and a few GOPs are decoded twice once in a run.
            is_worth &= ~beyond_last_asked(members, asked)
        # 3. A task for each GOP, of the frames that find room.
        tasks: list[DecodeGopTask] = []
        for chosen in _by_group(members, np.flatnonzero(is_worth)):
            row_list = members.rows[chosen].tolist()
            if not wanted and not self._fits(key, row_list):
                continue
            places: list[int] = []
            frames: list[Frame] = []
            for place, row, due in zip(
                chosen.tolist(), row_list, dues[chosen].tolist(), strict=True
            ):
                frame = self._choose(key, row, due, wanted.get(row), evict=bool(wanted))
                if frame is not None:
                    places.append(place)
                    frames.append(frame)
            if frames:
                number = int(members.file[members.group[chosen[0]]])
                numbers = members.numbers[places]
                tasks.append(DecodeGopTask(self._context, camera, number, numbers, frames))
        return tasks

    def _fits(self, key: str, rows: list[int]) -> bool:
        """Return True if the buffer can hold all of these: a GOP held in part would be decoded
        again.
        """
        absent = sum(self.buffer.get((key, row)) is None for row in rows)
        return (
            self.buffer.held_bytes + absent * self._context.frame_bytes[key]
            <= self.buffer.budget_bytes
        )

    def _choose(
        self, key: str, row: int, due: int, wanted: Frame | None, *, evict: bool
    ) -> Frame | None:
        """Return the frame to decode, or None if it is held already or finds no room."""
        if wanted is None and self.buffer.get((key, row)) is not None:
            return None
        frame = wanted or Frame((key, row), self._context.frame_bytes[key])
        kept = due < NEVER and self.buffer.keep(frame, due, evict=evict)
        return frame if kept or frame.waiting else None

    def _submit(self, tasks: list[DecodeGopTask]) -> None:
        with self.buffer.lock:
            self._context.gops_queued += len(tasks)
        self._pool.put(tasks)

    def close(self) -> None:
        """End the decoding threads, unless they are shared, and free what is held."""
        if self._owns_pool:
            self._pool.close()
        with self.buffer.lock:
            self.buffer.clear()


def _by_group(members: Members, places: Int64) -> list[Int64]:
    """Divide places of members, which are ordered by group, into those of each group."""
    if not len(places):
        return []
    return np.split(places, np.flatnonzero(np.diff(members.group[places])) + 1)
