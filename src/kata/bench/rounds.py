"""The rounds of a benchmark: everything is measured once per round, kata and the peer in turn."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kata.bench import gauges
from kata.bench.options import BenchRun
from kata.bench.patterns import Case
from kata.bench.peer import Peer, peer_python
from kata.bench.reading import Reading
from kata.errors import ConfigError
from kata.units import num_bytes

ITEM_MODE = ("d",)
"""Datasets on which the peer is measured sample by sample: one takes it seconds."""

LEAST_BATCHES = 16
"""Of a measurement, however long they take: fewer would be mostly those that were read ahead."""

Rounds = dict[str, dict[str, list[dict[str, Any]]]]
"""Figures per case and way ('peer' and 'floor' among them), one entry per round."""


def measure_rounds(run: BenchRun, cases: list[Case], told: Callable[[int, int], None]) -> tuple[Rounds, dict[str, str]]:
    """All figures, and the peer's versions (empty without it). `told` hears (measurements done, of how many)."""
    found: Rounds = {str(case): {} for case in cases}
    ways = ["floor", *run.ways, *(["peer"] if run.peer else [])]
    todo = [(number, case, way) for number in range(run.rounds) for case in cases for way in ways]
    with ExitStack() as live:
        peer = live.enter_context(Peer(peer_python(run.peer_python))) if run.peer else None
        for done, (number, case, way) in enumerate(todo):
            told(done, len(todo))
            figures = _by_peer(peer, run, case, number) if way == "peer" and peer else by_kata(run, case, way, number)
            found[str(case)].setdefault(way, []).append(figures)
        told(len(todo), len(todo))
        return found, peer.versions if peer else {}


def threads_of(run: BenchRun) -> int:
    """Decoding threads of kata, and the peer's worker processes."""
    return run.num_workers or gauges.cores()


def by_kata(run: BenchRun, case: Case, way: str, number: int) -> dict[str, Any]:
    """One measurement in a fresh process; a soak where the run asks for one.

    Raises: ConfigError when it fails; its last words are in the message.
    """
    floor = way == "floor"
    reading = Reading(
        root=str((Path(run.root).expanduser() / case.folder).resolve()),
        pattern=case.pattern,
        way=way,
        batch_size=run.batch_size,
        threads=gauges.cores() if floor else threads_of(run),
        seconds=run.floor_seconds if floor else run.seconds,
        epoch_seconds=run.epoch_seconds,
        seed=run.seed + number,
        frame_memory=int(num_bytes(run.frame_memory)),
        pixels=run.pixels,
        cache_episodes=run.cache_episodes,
        batches=run.soak or LEAST_BATCHES,
        soak=run.soak > 0,
    )
    command = [sys.executable, "-m", "kata.bench.reading", json.dumps(asdict(reading))]
    # One thread each for what numpy calls: kata's own threads are what is measured.
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ConfigError(
            f"{case} {way}: {''.join(done.stderr.strip().splitlines()[-1:])}",
            rule="a measurement ends well",
            remedy="`kata data` and docs/data.md say what a dataset must hold",
        )
    return json.loads(done.stdout.strip().splitlines()[-1])


def _by_peer(peer: Peer, run: BenchRun, case: Case, number: int) -> dict[str, Any]:
    return peer.measure(
        {
            "root": str((Path(run.root).expanduser() / case.folder).resolve()),
            "pattern": case.pattern,
            "mode": "item" if case.folder in ITEM_MODE else "map",
            "batch_size": run.batch_size,
            "workers": threads_of(run),
            "seconds": run.seconds,
            "batches": LEAST_BATCHES,
            "seed": run.seed + number,
        }
    )
