"""One measurement of kata's reader, in a process of its own: `python -m kata.bench.reading '<JSON>'`.

Prints one JSON object. CPU time is that of the whole process.
"""

from __future__ import annotations

import json
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from kata.bench import gauges
from kata.bench.floor import decode_floor
from kata.bench.patterns import windows_of
from kata.data import Batches, Dataset, Order, Reader, anchor_rows, open_dataset

AHEAD = 4
"""Batches read in advance, as many as `kata train` reads by default."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What one process measures: at least `batches` batches. way: one of patterns.WAYS, 'floor', or 'soak'."""

    root: str
    pattern: str
    way: str
    batch_size: int
    threads: int
    seconds: float
    epoch_seconds: float
    seed: int
    batches: int = 0


def measure(reading: Reading) -> dict[str, Any]:
    """The figures of one measurement: milliseconds of CPU, samples/s, bytes, frames, memory."""
    began_s = time.perf_counter()
    dataset = open_dataset("bench/" + Path(reading.root).name, root=reading.root)
    opened_s = time.perf_counter()
    if reading.way == "floor":
        return _floors(reading, dataset)
    with ExitStack() as live:
        batches = _open(live, reading, dataset)
        batches.at(0)
        figures = {"open_s": opened_s - began_s, "first_batch_s": time.perf_counter() - opened_s}
        if reading.way == "soak":
            return figures | _soak(batches, reading.batches)
        return figures | _steady(batches, reading) | {"peak_bytes": gauges.peak_resident_bytes()}


def _open(live: ExitStack, reading: Reading, dataset: Dataset) -> Batches:
    windows, keys = windows_of(reading.pattern, dataset)
    reader = live.enter_context(Reader(dataset, windows, threads=reading.threads, keys=keys))
    rows = anchor_rows(dataset)
    order = Order(len(rows), reading.seed)
    return live.enter_context(Batches(reader, rows, order, reading.batch_size, ahead=AHEAD))


def _steady(batches: Batches, reading: Reading) -> dict[str, Any]:
    """Read on for so many seconds and at least so many batches, once as many are on their way as will be at the end."""
    for step in range(1, AHEAD + 1):
        batches.at(step)
    busy_s, cpu_s, began_s = gauges.busy_s(), time.process_time(), time.perf_counter()
    count = 0
    while count < reading.batches or time.perf_counter() - began_s < reading.seconds:
        count += 1
        batches.at(AHEAD + count)
    wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - cpu_s
    samples = count * batches.batch_size
    return {
        "cpu_ms": 1e3 * cpu_s / samples,
        "samples_s": samples / wall_s,
        "samples": samples,
        "epochs": samples / len(batches.rows),
        "other_cores": max(0.0, gauges.busy_s() - busy_s - cpu_s) / wall_s,
        "episodes_per_batch": _episodes_per_batch(batches, AHEAD + count),
    }


def _episodes_per_batch(batches: Batches, steps: int) -> float:
    """Distinct episodes of a batch, on average over the steps read."""
    assert isinstance(batches.reader, Reader), "one dataset is measured at a time"
    size = batches.batch_size
    rows = batches.rows[batches.order.at(np.arange(size, (steps + 1) * size))].reshape(-1, size)
    episode = np.sort(np.searchsorted(batches.reader.episodes.start, rows, side="right"), axis=1)
    return float(1 + (np.diff(episode, axis=1) != 0).sum(axis=1).mean())


def _soak(batches: Batches, count: int) -> dict[str, Any]:
    """Memory after a hundredth of the batches, and after all."""
    before = 0
    for step in range(1, count + 1):
        batches.at(step)
        if step == max(1, count // 100):
            before = gauges.resident_bytes()
    return {"batches": count, "before_bytes": before, "after_bytes": gauges.resident_bytes()}


def _floors(reading: Reading, dataset: Dataset) -> dict[str, Any]:
    """The floor of each camera that the pattern reads, and of a sample that needs one new frame of each."""
    _, keys = windows_of(reading.pattern, dataset)
    cameras = [key for key in keys if key in dataset.cameras]
    floors = {key: decode_floor(dataset, key, threads=reading.threads, seconds=reading.seconds) for key in cameras}
    return {
        "decode_ms": sum(floor.decode_ms for floor in floors.values()),
        "cpu_ms": sum(floor.rgb_ms for floor in floors.values()),
        "samples_s": 1 / sum(1 / floor.frames_s for floor in floors.values()),
        "cameras": {key: asdict(floor) for key, floor in floors.items()},
    }


if __name__ == "__main__":
    print(json.dumps(measure(Reading(**json.loads(sys.argv[1])))))
