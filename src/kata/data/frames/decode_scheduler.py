"""Frames of all cameras into batches: planned per step, decoded by threads, each frame once while it is held."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from operator import itemgetter

import numpy as np
from numpy.typing import NDArray

from kata.data.arrays import Int64, Pixels
from kata.data.counters import CounterCollector
from kata.data.dataset.dataset import Dataset
from kata.data.dataset.windows import episode_of
from kata.data.frames.camera import Camera, Picture
from kata.data.frames.decode_pool import DecodePool, DecodeTask
from kata.data.frames.frame_buffer import Frame, FrameBuffer, Out, PendingFrames, Target
from kata.data.frames.frame_cache import FrameCache
from kata.data.frames.gop_rows import GroupRows, Members
from kata.data.frames.next_use import NEVER, NextUse
from kata.errors import DataError, FrameError
from kata.log import counting

_COPIES_PER_JOB = 16
"""Held frames that one job copies: the fewer, the more often threads hand the interpreter's lock to one another."""

_AHEAD = 0.93
"""Share of the budget up to which decoding runs ahead: what batches want meanwhile must not be driven out for it."""

_LONG_GROUP = 32
"""Frames of a group that the first batch waits for in any case."""


@dataclass(frozen=True, eq=False)
class _Missing:
    """Frames to decode together: of one file and group."""

    camera: Camera
    file: int
    numbers: Int64
    frames: list[Frame]


class DecodeScheduler:
    """Decodes what batches want. Without a budget nothing is held; with one, `plan_ahead` says what is worth holding.

    Planning (`fill`, `prefetch`, `plan_ahead`) is for one thread at a time and quick; decoding is done by the pool.

    Args:
        cameras: by key. dataset: whose rows are asked for. threads: decoders at work.
        cache: asked before anything is decoded or held, and given what is decoded; what it takes is not held.
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
        self._cameras, self._dataset, self._counters, self._cache = (
            cameras,
            dataset,
            counters,
            cache,
        )
        self._owns_jobs = pool is None
        self._pool = pool or DecodePool(threads)
        self._members = {
            key: GroupRows(camera.span, dataset.episodes) for key, camera in cameras.items()
        }
        # Of a held frame: known once the first was decoded, and seldom another for later ones.
        self._sizes = {key: math.prod(camera.shape) for key, camera in cameras.items()}
        self._uses: dict[str, NextUse] = {}
        self._at_work, self._begun = 0, False
        self._prepared: set[tuple[str, int]] = set()

    def prepare(self, files: Sequence[tuple[str, int]]) -> None:
        """Index files that are not indexed yet, in threads; a bar is shown where that takes longer than a second."""
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
        """What each camera will be asked for from `step` on. Frames that nobody wants any more are let go."""
        self._uses = uses
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
        """Start to write frames rows[key] (N,) of each camera to outs[key]."""
        filling = PendingFrames(sum(len(wanted) for wanted in rows.values()))
        missing: list[_Missing] = []
        for key, wanted in rows.items():
            missing += self._fill_camera(key, wanted, outs[key], filling, step)
        self._begun |= step is not None
        self._start(missing)
        return filling

    def prefetch(self, rows: dict[str, Int64], step: int) -> bool:
        """Decode ahead what a later step wants, as far as there is free room. False when the room is too small."""
        enough = True
        for key, wanted in rows.items():
            unique = np.unique(wanted[~self._cached(key, wanted)])
            if not len(unique):
                continue
            with self.buffer.lock:
                absent = np.array(
                    [self.buffer.get((key, row)) is None for row in unique.tolist()], bool
                )
                groups = self._groups(key, unique[absent], step - 1, {})
                enough &= all(self.buffer.get((key, row)) is not None for row in unique.tolist())
            self._start(groups)
        return enough

    @property
    def has_leisure(self) -> bool:
        """True when the decoders will soon run out of work and there is free room."""
        return self._at_work < 2 * self._pool.threads and self.has_room

    @property
    def has_room(self) -> bool:
        """True while frames for later batches take less of the budget than they will."""
        return self.buffer.held_bytes < _AHEAD * self.buffer.budget_bytes

    def _fill_camera(
        self, key: str, wanted: Int64, out: Out, filling: PendingFrames, step: int | None
    ) -> list[_Missing]:
        ready: list[tuple[Frame, Target]] = []
        absent: dict[int, Frame] = {}
        with self.buffer.lock:
            at = self._from_cache(key, wanted, out)
            held = len(wanted) - len(at)
            if not len(at):
                filling.landed(held)
                self._counters.add(frames_asked=held, frames_held=held)
                return []
            # Lists here and below: a batch has few frames of a camera, and numpy takes longer than such loops.
            places: dict[int, list[int]] = {}
            for row, place in sorted(
                zip(wanted[at].tolist(), out.places[at].tolist(), strict=True)
            ):
                places.setdefault(row, []).append(place)
            dues = self._after(key, np.array(list(places)), step).tolist()
            for (row, place), due in zip(places.items(), dues, strict=True):
                target = Target(out.pixels, place, filling)
                frame = None if step is None else self.buffer.get((key, row))
                if frame is None:
                    absent[row] = Frame((key, row), self._sizes[key], due, waiting=[target])
                    continue
                held += len(place)
                if frame.memory is None:
                    frame.waiting.append(target)
                else:
                    frame.readers += 1
                    ready.append((frame, target))
                self.buffer.postpone(frame, due)
            groups = self._groups(key, np.array(list(absent), np.int64), step, absent)
        filling.landed(len(wanted) - len(at))
        self._counters.add(frames_asked=len(wanted), frames_held=held)
        camera, count = self._cameras[key], _COPIES_PER_JOB
        shares = [ready[begin : begin + count] for begin in range(0, len(ready), count)]
        self._pool.put(
            [
                DecodeTask(partial(self._copy, camera, one), partial(self._copied, filling, one))
                for one in shares
            ]
        )
        return groups

    def _from_cache(self, key: str, wanted: Int64, out: Out) -> Int64:
        """Copy what the cache has, which is then held no longer; the places of the other frames.

        The store is locked until these are planned: none goes to the cache in between.
        """
        if self._cache is None:
            return np.arange(len(wanted))
        began_s = time.perf_counter()
        missing = self._cache.fetch(key, self._dataset.opened_rows(wanted), *out)
        self._counters.add(convert_s=time.perf_counter() - began_s)
        for row in np.unique(wanted[~missing]).tolist() if self.buffer.held_bytes else []:
            frame = self.buffer.get((key, row))
            if frame is not None:
                self.buffer.postpone(frame, NEVER)
        return np.flatnonzero(missing)

    def _cached(self, key: str, rows: Int64) -> NDArray[np.bool_]:
        if self._cache is None:
            return np.zeros(len(rows), bool)
        return self._cache.has(key, self._dataset.opened_rows(rows))

    def _after(self, key: str, rows: Int64, step: int | None) -> Int64:
        uses = self._uses.get(key)
        return np.full(len(rows), NEVER) if step is None or uses is None else uses.after(rows, step)

    def _groups(
        self, key: str, rows: Int64, step: int | None, wanted: dict[int, Frame]
    ) -> list[_Missing]:
        """What to decode for `rows` (ascending), with the frames of the same groups that later steps want.

        `wanted` are the frames that somebody waits for; the others are decoded only if there is room to hold them.
        Without any, groups are decoded ahead, and whole: none is driven out for them.
        """
        if not len(rows):
            return []
        camera, span, episodes = self._cameras[key], self._cameras[key].span, self._dataset.episodes
        episode = episode_of(rows, episodes)
        file = span.file[episode]
        first, end = camera.groups(file, rows - episodes.start[episode] + span.first[episode])
        members = self._members[key].of(file, first, end)
        dues = self._after(key, members.rows, step)
        dues[self._cached(key, members.rows)] = NEVER
        asked = np.array([row in wanted for row in members.rows.tolist()], bool)
        worth = np.flatnonzero((asked | (dues < NEVER)) & ~self._too_late(members, asked))
        each = zip(
            *(of[worth].tolist() for of in (members.group, members.rows, members.numbers, dues)),
            strict=True,
        )
        missing: list[_Missing] = []
        for group, together in groupby(each, itemgetter(0)):
            mine = list(together)
            if not wanted and not self._fits(key, [row for _, row, _, _ in mine]):
                continue
            chosen = [
                (frame, number)
                for _, row, number, due in mine
                if (frame := self._choose(key, row, due, wanted.get(row), evict=bool(wanted)))
                is not None
            ]
            if chosen:
                frames, numbers = zip(*chosen, strict=True)
                missing.append(
                    _Missing(camera, int(members.file[group]), np.array(numbers), list(frames))
                )
        return missing

    def _too_late(self, members: Members, asked: NDArray[np.bool_]) -> NDArray[np.bool_]:
        """Members (n,) of long groups that come after the last one asked for, which the first batch does not wait for.

        They are decoded when they are wanted: once in a run, the beginning of a few groups is decoded twice.
        """
        if self._begun or not asked.any():
            return np.zeros(len(asked), bool)
        last = np.zeros(len(members.file), np.int64)
        np.maximum.at(last, members.group[asked], members.numbers[asked])
        long = np.bincount(members.group, minlength=len(members.file)) > _LONG_GROUP
        return long[members.group] & (members.numbers > last[members.group])

    def _fits(self, key: str, rows: list[int]) -> bool:
        """Whether there is room to hold all of these: a part of a group would mean to decode it once more."""
        absent = sum(self.buffer.get((key, row)) is None for row in rows)
        return self.buffer.held_bytes + absent * self._sizes[key] <= self.buffer.budget_bytes

    def _choose(
        self, key: str, row: int, due: int, wanted: Frame | None, *, evict: bool
    ) -> Frame | None:
        """The frame to decode, if it is worth that now."""
        if wanted is None and self.buffer.get((key, row)) is not None:
            return None
        frame = wanted or Frame((key, row), self._sizes[key])
        kept = due < NEVER and self.buffer.keep(frame, due, evict=evict)
        return frame if kept or frame.waiting else None

    def _decode(self, group: _Missing) -> None:
        rows, came, convert_s = (
            np.array([frame.key[1] for frame in group.frames], np.int64),
            set[int](),
            0.0,
        )
        try:
            for place, picture in group.camera.decode(group.file, group.numbers, rows):
                began_s = time.perf_counter()
                came.add(place)
                kept = (
                    picture
                    if self._cache is None
                    else self._to_cache(self._cache, group, place, picture)
                )
                self._hand_out(group.camera, group.frames[place], kept)
                convert_s += time.perf_counter() - began_s
        except DataError:
            self._one_by_one(group, [place for place in range(len(rows)) if place not in came])
        finally:
            self._counters.add(convert_s=convert_s)

    def _to_cache(
        self, cache: FrameCache, group: _Missing, place: int, picture: Picture
    ) -> Picture:
        """Give a picture to the cache if it takes it, before anybody may change the pixels; then it is not held."""
        frame = group.frames[place]
        key, row = frame.key
        opened = int(self._dataset.opened_rows(np.array([row]))[0])
        if not cache.takes(key, opened):
            return picture
        painted = np.empty(group.camera.shape, np.uint8)
        group.camera.write_frame(picture, painted)
        cache.store(key, opened, painted)
        with self.buffer.lock:
            self.buffer.forget(frame)
        return painted

    def _hand_out(self, camera: Camera, frame: Frame, picture: Picture) -> None:
        """Write a picture to everybody who waits for it, and hold it if it is wanted later."""
        memory = None
        with self.buffer.lock:
            targets, frame.waiting = frame.waiting, []
            if frame.kept:
                self._sizes[frame.key[0]] = size = camera.held_bytes(picture)
                memory = self.buffer.take(frame, size)
        try:
            if memory is not None:
                picture = camera.hold(picture, memory)
                with self.buffer.lock:
                    targets += frame.waiting
                    frame.memory, frame.picture, frame.readers, frame.waiting = (
                        memory,
                        picture,
                        bool(targets),
                        [],
                    )
                    if not targets:
                        self.buffer.settle(frame)
            for target in targets:
                picture = _write(camera, picture, target)
        except BaseException as error:
            for target in targets:
                target.filling.failed(error)
            raise
        for target in targets:  # not before: who has a batch may change its pixels
            target.filling.landed(len(target.places))
        if memory is not None and targets:
            self._released([frame])

    def _copy(self, camera: Camera, ready: list[tuple[Frame, Target]]) -> None:
        began_s = time.perf_counter()
        for frame, target in ready:
            _write(camera, frame.picture, target)
        self._counters.add(convert_s=time.perf_counter() - began_s)

    def _copied(
        self, filling: PendingFrames, ready: list[tuple[Frame, Target]], error: BaseException | None
    ) -> None:
        self._released([frame for frame, _ in ready])
        if error is None:
            filling.landed(sum(len(target.places) for _, target in ready))
        else:
            filling.failed(error)

    def _released(self, frames: list[Frame]) -> None:
        with self.buffer.lock:
            for frame in frames:
                frame.readers -= 1
                self.buffer.settle(frame)

    def _one_by_one(self, group: _Missing, places: list[int]) -> None:
        """Decode again after an error, each batch's frames alone: what was decoded for later must not harm now."""
        with self.buffer.lock:
            targets = [
                (place, target) for place in places for target in group.frames[place].waiting
            ]
            for place in places:
                group.frames[place].waiting = []
                self.buffer.forget(group.frames[place])
        batches = {id(target.out): target.out for _, target in targets}
        for out in batches.values():
            mine = [(place, target) for place, target in targets if target.out is out]
            numbers = group.numbers[[place for place, _ in mine]]
            rows = np.array([group.frames[place].key[1] for place, _ in mine], np.int64)
            left = dict(enumerate(target for _, target in mine))
            try:
                for at, picture in group.camera.decode(group.file, numbers, rows):
                    target = left.pop(at)
                    _write(group.camera, picture, target)
                    target.filling.landed(len(target.places))
            except FrameError as error:
                for target in left.values():
                    target.filling.bad(error, len(target.places))
            except DataError as error:
                for target in left.values():
                    target.filling.failed(error)

    def _start(self, groups: list[_Missing]) -> None:
        with self.buffer.lock:
            self._at_work += len(groups)
        self._pool.put(
            [
                DecodeTask(partial(self._decode, group), partial(self._finished, group))
                for group in groups
            ]
        )

    def _finished(self, group: _Missing, error: BaseException | None) -> None:
        """Nobody waits for ever: frames that did not come are forgotten, and who waits for them is told."""
        targets: list[Target] = []
        with self.buffer.lock:
            self._at_work -= 1
            if error is None:
                return
            for frame in group.frames:
                targets += frame.waiting
                frame.waiting = []
                if frame.memory is None:
                    frame.taken = False
                    self.buffer.forget(frame)
        for target in targets:
            target.filling.failed(error)

    def close(self) -> None:
        """End the decoding threads, unless they are shared, and free what is held."""
        if self._owns_jobs:
            self._pool.close()
        with self.buffer.lock:
            self.buffer.clear()


def _write(camera: Camera, picture: Picture, target: Target) -> Pixels:
    """Write a picture to all places of a batch, and return it as it lies there; it is converted once, then copied."""
    first, *others = target.places
    painted: Pixels = target.out[first]
    camera.write_frame(picture, painted)
    for place in others:
        np.copyto(target.out[place], painted)
    return painted
