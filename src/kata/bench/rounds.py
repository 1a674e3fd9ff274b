"""The rounds of a benchmark: everything is measured once per round, kata and the peer in turn."""

from __future__ import annotations

import itertools
import json
import os
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kata.bench import process_stats
from kata.bench.cases import Case
from kata.bench.interleave import Child, take_turns
from kata.bench.lerobot_env import Peer, peer_python
from kata.bench.options import BenchRun
from kata.bench.read_worker import Reading
from kata.units import num_bytes

ITEM_MODE = ("d",)
"""Datasets on which the peer is measured sample by sample: one takes it seconds."""

LEAST_BATCHES = 16
"""Of a measurement, however long they take: fewer would be mostly those that were read ahead."""

TOGETHER = ("floor", "clips")
"""Ways measured by turns: what is asked of their ratio is finer than what a neighbour's load
does to a round.
"""

Rounds = dict[str, dict[str, list[dict[str, Any]]]]
"""Figures per case and way ('peer' and 'floor' among them), one entry per round."""


def measure_rounds(
    run: BenchRun, cases: list[Case], told: Callable[[int, int], None]
) -> tuple[Rounds, dict[str, str]]:
    """All figures, and the peer's versions (empty without it).

    `told` hears (measurements done, of how many).
    """
    ways = ["floor", *run.ways, *(["peer"] if run.peer else [])]
    together = TOGETHER if "clips" in ways else ("floor",)
    todo = [together, *((way,) for way in ways if way not in together)]
    found: Rounds = {str(case): {way: [] for way in ways} for case in cases}
    done, count = 0, run.rounds * len(cases) * len(ways)
    with ExitStack() as live:
        peer = live.enter_context(Peer(peer_python(run.peer_python))) if run.peer else None
        for number, case, now in itertools.product(range(run.rounds), cases, todo):
            told(done, count)
            for way, figures in zip(now, _measured(run, case, now, number, peer), strict=True):
                found[str(case)][way].append(figures)
                done += 1
        told(done, count)
        return found, peer.versions if peer else {}


def threads_of(run: BenchRun) -> int:
    """Decoding threads of kata, and the peer's worker processes."""
    return run.num_workers or process_stats.cores()


def by_kata(run: BenchRun, case: Case, way: str, number: int) -> dict[str, Any]:
    """One measurement in a fresh process; a soak where the run asks for one.

    Raises: ConfigError when it fails; its last words are in the message.
    """
    with _started(run, case, way, number) as child:
        return child.figures()


def _measured(
    run: BenchRun, case: Case, ways: tuple[str, ...], number: int, peer: Peer | None
) -> Sequence[dict[str, Any]]:
    """The figures of one way, or of those that are measured together."""
    if ways == TOGETHER:
        with ExitStack() as live:
            children: list[Child] = []
            for way in ways:
                children.append(live.enter_context(_started(run, case, way, number, by_turns=True)))
                children[-1].set_up()
            floor, clips = children
            return take_turns(clips, floor)[::-1]
    (way,) = ways
    return [
        _by_peer(peer, run, case, number)
        if way == "peer" and peer
        else by_kata(run, case, way, number)
    ]


def _started(run: BenchRun, case: Case, way: str, number: int, *, by_turns: bool = False) -> Child:
    floor = way == "floor"
    reading = Reading(
        root=str((Path(run.root).expanduser() / case.folder).resolve()),
        pattern=case.pattern,
        way=way,
        batch_size=run.batch_size,
        threads=process_stats.cores() if floor else threads_of(run),
        seconds=run.floor_seconds if floor else run.seconds,
        epoch_seconds=run.epoch_seconds,
        seed=run.seed + number,
        frame_memory=int(num_bytes(run.frame_memory)),
        pixels=run.pixels,
        cache_episodes=run.cache_episodes,
        batches=run.soak or LEAST_BATCHES,
        soak=run.soak > 0,
        by_turns=by_turns,
    )
    command = [sys.executable, "-m", "kata.bench.read_worker", json.dumps(asdict(reading))]
    # One thread each for what numpy calls: kata's own threads are what is measured.
    return Child(
        f"{case} {way}",
        command,
        {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
    )


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
