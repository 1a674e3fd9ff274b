"""The rounds of a benchmark: every case is measured once per round in every way."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kata.bench import process_stats
from kata.bench.cases import Case
from kata.bench.options import BenchRun
from kata.bench.read_worker import Reading
from kata.bench.worker_result import last_line, worker_error
from kata.units import num_bytes

LEAST_BATCHES = 16
"""Of a measurement, however long they take: fewer would be mostly those that were read ahead."""

FLOOR = "floor"
"""The way that decodes and reads nothing."""

Rounds = dict[str, dict[str, list[dict[str, Any]]]]
"""Figures per case and way (the floor among them), one entry per round."""


def measure_rounds(
    run: BenchRun, cases: Sequence[Case], progress: Callable[[int, int], None]
) -> Rounds:
    """Measure the decode floor and every way, one after the other.

    Args:
        run: The options of the measurement.
        cases: The cases.
        progress: Called with (measurements done, of how many).

    Raises:
        ConfigError: A measurement fails.
    """
    ways = [FLOOR, *run.ways]
    found: Rounds = {}
    for case in cases:
        found[str(case)] = {way: [] for way in ways}
    todo = list(itertools.product(range(run.rounds), cases, ways))
    for done, (number, case, way) in enumerate(todo):
        progress(done, len(todo))
        found[str(case)][way].append(measure_alone(run, case, way, number))
    progress(len(todo), len(todo))
    return found


def threads_of(run: BenchRun) -> int:
    """Return the decoding threads of kata, which are the peer's worker processes too."""
    return run.num_workers or process_stats.cores()


def reading_of(run: BenchRun, case: Case, way: str, number: int) -> Reading:
    """Return the measurement of a case in one way, in round `number`."""
    is_floor = way == FLOOR
    return Reading(
        root=str((Path(run.root).expanduser() / case.folder).resolve()),
        pattern=case.pattern,
        way=way,
        batch_size=run.batch_size,
        threads=process_stats.cores() if is_floor else threads_of(run),
        seconds=run.floor_seconds if is_floor else run.seconds,
        epoch_seconds=run.epoch_seconds,
        seed=run.seed + number,
        frame_memory=int(num_bytes(run.frame_memory)),
        pixels=run.pixels,
        cache_episodes=run.cache_episodes,
        batches=run.soak or LEAST_BATCHES,
        soak=run.soak > 0,
    )


def worker_command(module: str, reading: Reading) -> list[str]:
    """Return the command of a process that measures."""
    return [sys.executable, "-m", module, json.dumps(asdict(reading))]


def worker_environment() -> dict[str, str]:
    """Return its environment: NumPy gets one thread, for kata's own threads are measured."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}


def measure_alone(run: BenchRun, case: Case, way: str, number: int) -> dict[str, Any]:
    """Measure one way in a fresh process; a soak where the run asks for one.

    Raises:
        ConfigError: It fails; its last words are in the message.
    """
    command = worker_command("kata.bench.read_worker", reading_of(run, case, way, number))
    done = subprocess.run(command, env=worker_environment(), capture_output=True, check=False)
    if done.returncode:
        raise worker_error(f"{case} {way}", done.returncode, done.stderr)
    return last_line(done.stdout)
