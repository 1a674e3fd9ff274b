"""One measurement of kata's reader in a fresh process: `python -m kata.bench.read_worker '<JSON>'`.

It prints one JSON object. CPU time is that of the whole process.
"""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kata.bench import process_stats
from kata.bench.cases import windows_of
from kata.bench.course import Course
from kata.bench.decode_floor import decode_floors, open_tracks
from kata.bench.mixing import mixing_of
from kata.data import Batches, Dataset, Reader, anchor_rows, open_dataset
from kata.data.dataset.mixture import Mixture
from kata.data.frames.frame_cache import CacheOptions, FrameCache
from kata.data.frames.frame_format import RECORDED, FrameFormat, colours_of_camera
from kata.data.frames.next_use import held_as_rgb
from kata.data.loader.shuffle import Shuffle, ShuffleChoice, held_frame_bytes, make_order
from kata.data.parquet.image_column import ENCODED_BYTES
from kata.spec import Colours

AHEAD = 4
"""Batches read in advance, as many as `kata train` reads by default."""


LONGEST = 3
"""Multiple of `epoch_seconds` after which the first epoch in clips is cut: one of millions of
frames would take hours.
"""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """The measurement of one process.

    Attributes:
        way: One of `cases.WAYS`, or 'floor'.
        frame_memory: Bytes for decoded frames. 0 takes the batches that are being filled, and a
            tenth of all frames; a third where windows of more than two frames reach seconds back.
        cache_episodes: Number of the first episodes, which 'cache' keeps and reads.
        batches: The least number of batches.
        soak: Read `batches` batches and look at the memory alone.
    """

    root: str
    pattern: str
    way: str
    batch_size: int
    threads: int
    seconds: float
    epoch_seconds: float
    seed: int
    frame_memory: int
    pixels: str = "rgb"
    cache_episodes: int = 2
    batches: int = 0
    soak: bool = False


def measure(reading: Reading, course: Course) -> dict[str, Any]:
    """Return the figures of one measurement: CPU milliseconds, samples/s, bytes, frames, memory."""
    began_s = time.perf_counter()
    dataset = open_dataset("bench/" + Path(reading.root).name, root=reading.root)
    opened_s = time.perf_counter()
    if reading.way == "floor":
        return _floors(reading, dataset, course)
    with ExitStack() as live:
        cpu_s = time.process_time()
        reader, batches, cache_bytes = _open(live, reading, dataset)
        batches.at(0)
        figures: dict[str, Any] = {
            "open_s": opened_s - began_s,
            "first_batch_s": time.perf_counter() - opened_s,
            "first_batch_cpu_s": time.process_time() - cpu_s,
            "budget_bytes": reader.frame_memory + _encoded_budget(dataset) + cache_bytes,
        }
        if reading.soak:
            return figures | _soak(batches, reading.batches)
        if reading.way == "cache":
            figures |= _filled(reader, reading.batch_size)
        return (
            figures
            | _steady(reader, batches, reading, course)
            | {"peak_bytes": process_stats.peak_resident_bytes()}
        )


def _open(live: ExitStack, reading: Reading, dataset: Dataset) -> tuple[Reader, Batches, int]:
    """Return the reader, its batches, and the bytes that a frame cache may take."""
    windows, keys = windows_of(reading.pattern, dataset)
    cameras = tuple(key for key in keys if key in dataset.cameras)
    cache, cache_bytes = None, 0
    frame_format = _frame_format(reading, dataset, cameras)
    if reading.way == "cache":
        dataset = dataset.subset(range(min(reading.cache_episodes, len(dataset.episodes.index))))
        cache_bytes = dataset.num_frames * sum(
            math.prod(frame_format.shape(key, dataset.columns[key])) for key in cameras
        )
        cache = live.enter_context(
            FrameCache(
                dataset,
                cameras,
                CacheOptions("frames", num_bytes=cache_bytes, frame_format=frame_format),
            )
        )
    rows, memory = anchor_rows(dataset), reading.frame_memory
    if not memory:
        sizes = {
            key: held_frame_bytes(dataset, key, windows.get(key, (0,)), frame_format)
            for key in cameras
        }
        share = 3 if any(held_as_rgb(windows.get(key, (0,))) for key in cameras) else 10
        memory = sum(sizes.values()) * dataset.num_frames // share
        batch = sum(
            len(windows.get(key, (0,))) * math.prod(frame_format.shape(key, dataset.columns[key]))
            for key in cameras
        )
        memory += (AHEAD + 1) * reading.batch_size * batch
    mixture = Mixture.of(dataset)
    choice = ShuffleChoice(
        Shuffle("clips" if reading.way == "clips" else "full"),
        memory,
        reading.batch_size,
        AHEAD + 1,
        frame_format,
    )
    shuffles, _ = choice.choose(mixture, windows, cameras, rows)
    order = make_order(shuffles, mixture, windows, cameras, rows, reading.seed)
    reader = live.enter_context(
        Reader(
            mixture,
            windows,
            threads=reading.threads,
            keys=keys,
            frame_memory=memory,
            caches={} if cache is None else {dataset.repo_id: cache},
            frame_format=frame_format,
        )
    )
    return (
        reader,
        live.enter_context(Batches(reader, rows, order, reading.batch_size, ahead=AHEAD)),
        cache_bytes,
    )


def _frame_format(reading: Reading, dataset: Dataset, cameras: Sequence[str]) -> FrameFormat:
    if reading.pixels == "rgb":
        return RECORDED
    found = {key: colours_of_camera(Mixture.of(dataset), key) for key in cameras}
    return FrameFormat(
        colours={key: colours for key, colours in found.items() if isinstance(colours, Colours)}
    )


def _filled(reader: Reader, batch_size: int) -> dict[str, Any]:
    """Read every frame once, as the first epoch of a run does, so that the cache has them all."""
    rows = anchor_rows(reader.mixture)
    began_s = time.perf_counter()
    cpu_s = time.process_time()
    for begin in range(0, len(rows), batch_size):
        reader.read(rows[begin : begin + batch_size])
    return {"fill_s": time.perf_counter() - began_s, "fill_cpu_s": time.process_time() - cpu_s}


def _encoded_budget(dataset: Dataset) -> int:
    """Return the bytes that encoded images may take in addition to decoded frames."""
    return (
        ENCODED_BYTES if any(column.dtype == "image" for column in dataset.cameras.values()) else 0
    )


def _steady(reader: Reader, batches: Batches, reading: Reading, course: Course) -> dict[str, Any]:
    """Measure once as many frames and batches are held as will be at the end.

    In clip order a fifth of an epoch is read first, which fills the pool, and then whole epochs are
    measured: frames that are decoded for later cancel only over a whole one. In a full order
    reading continues until the budget for held frames is used, up to a quarter of an epoch.
    """
    epoch = max(1, len(batches.rows) // batches.batch_size)
    first = 1 + (epoch // 5 if reading.way == "clips" else AHEAD)
    for step in range(1, first):
        batches.at(step)
    if reading.way == "full":
        first = _filled_up(reader, batches, first, epoch // 4, reading.epoch_seconds)
    course.begin()
    before = reader.work()
    busy_s = process_stats.busy_s()
    cpu_s = time.process_time()
    began_s = time.perf_counter()
    count = 0
    while _measures_on(reading, epoch, count, course.own_share * (time.perf_counter() - began_s)):
        batches.at(first + count)
        count += 1
    ended_s = time.perf_counter()
    cpu_s = time.process_time() - cpu_s
    busy_s = process_stats.busy_s() - busy_s
    work = reader.work().since(before)
    samples = count * batches.batch_size
    pauses = course.end(is_first=True)
    return {
        "cpu_ms": 1e3 * cpu_s / samples,
        "samples_s": samples / pauses.running_s(began_s, ended_s),
        "samples": samples,
        "epochs": samples / len(batches.rows),
        "bytes_per_sample": work.bytes_read / samples,
        "decoded_per_asked": work.frames_decoded / max(1, work.frames_asked),
        "held_share": work.frames_held / max(1, work.frames_asked),
        "other_cores": max(0.0, busy_s - cpu_s - pauses.partner_cpu_s) / (ended_s - began_s),
        "episodes_per_batch": _episodes_per_batch(reader, batches, first, count),
        "work": asdict(work),
        **mixing_of(batches.order, batches.batch_size),
    }


def _filled_up(reader: Reader, batches: Batches, step: int, end: int, limit_s: float) -> int:
    """Read on from `step` while there is room for more frames, until `end` or the limit.

    Returns the step after.
    """
    began_s = time.perf_counter()
    while reader.has_room and step < end and time.perf_counter() - began_s < limit_s:
        batches.at(step)
        step += 1
    return step


def _measures_on(reading: Reading, epoch: int, count: int, own_s: float) -> bool:
    """Return True if another batch is measured after `count` batches and `own_s`.

    In clip order these are whole epochs of `epoch` batches, unless the first takes too long.
    """
    if reading.way != "clips":
        return count < reading.batches or own_s < reading.seconds
    if count < epoch:
        return own_s < LONGEST * reading.epoch_seconds or count == 0
    return count % epoch != 0 or own_s < reading.epoch_seconds


def _episodes_per_batch(reader: Reader, batches: Batches, first: int, count: int) -> float:
    """Return the mean number of distinct episodes in a measured batch."""
    size = batches.batch_size
    rows = batches.rows[batches.order.at(np.arange(first * size, (first + count) * size))].reshape(
        -1, size
    )
    episode = np.sort(np.searchsorted(reader.mixture.episodes.start, rows, side="right"), axis=1)
    return float(1 + (np.diff(episode, axis=1) != 0).sum(axis=1).mean())


def _soak(batches: Batches, count: int) -> dict[str, Any]:
    """Return the memory after each hundredth of the batches.

    `before_bytes` is the first of them, `after_bytes` the last.
    """
    began_s = time.perf_counter()
    cpu_s = time.process_time()
    part = max(1, count // 100)
    resident: list[int] = []
    for step in range(1, count + 1):
        batches.at(step)
        if step % part == 0 or step == count:
            resident.append(process_stats.resident_bytes())
    return {
        "batches": count,
        "epochs": count * batches.batch_size / len(batches.rows),
        "before_bytes": resident[0],
        "after_bytes": resident[-1],
        "resident_bytes": resident,
        "wall_s": time.perf_counter() - began_s,
        "cpu_s": time.process_time() - cpu_s,
    }


def _floors(reading: Reading, dataset: Dataset, course: Course) -> dict[str, Any]:
    """Return the floor of each camera of the pattern, and of a sample with a new frame of each."""
    _, keys = windows_of(reading.pattern, dataset)
    cameras = [key for key in keys if key in dataset.cameras]
    planes = _frame_format(reading, dataset, cameras).colours
    tracks = open_tracks(dataset, cameras, reading.threads)
    course.begin()
    floors = decode_floors(tracks, reading.seconds, partial(course.end, is_first=False))
    return {
        "decode_ms": sum(floor.decode_ms for floor in floors.values()),
        "cpu_ms": sum(
            floor.decode_ms if key in planes else floor.rgb_ms for key, floor in floors.items()
        ),
        "samples_s": 1 / sum(1 / floor.frames_s for floor in floors.values()),
        "cameras": {key: asdict(floor) for key, floor in floors.items()},
    }


if __name__ == "__main__":
    print(json.dumps(measure(Reading(**json.loads(sys.argv[1])), Course())))
