"""The rounds of a comparison: kata and the peer in turn, the floor and clip order interleaved."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from benchmarks.lab.interleave import Child, take_turns
from benchmarks.lab.lerobot_env import Peer, peer_python
from benchmarks.lab.options import LabRun
from kata.bench.cases import Case
from kata.bench.rounds import (
    FLOOR,
    LEAST_BATCHES,
    Rounds,
    measure_alone,
    reading_of,
    threads_of,
    worker_command,
    worker_environment,
)

ROOT = Path(__file__).parents[2]
"""The repository, below which the children find this package."""

ITEM_MODE = ("d",)
"""Datasets on which the peer is measured sample by sample: one takes it seconds."""

TOGETHER = (FLOOR, "clips")
"""Ways measured by turns: their ratio is asked for more exactly than the noise of a round."""


def compare_rounds(
    run: LabRun, cases: Sequence[Case], progress: Callable[[int, int], None]
) -> tuple[Rounds, dict[str, str]]:
    """Return all figures, and the peer's versions, which are empty without it.

    Args:
        run: The options of the comparison.
        cases: The cases.
        progress: Called with (measurements done, of how many).

    Raises:
        ConfigError: A measurement fails.
    """
    ways = [FLOOR, *run.ways, *(["peer"] if run.peer else [])]
    together = TOGETHER if "clips" in ways else (FLOOR,)
    todo = [together, *((way,) for way in ways if way not in together)]
    found: Rounds = {}
    for case in cases:
        found[str(case)] = {way: [] for way in ways}
    done = 0
    count = run.rounds * len(cases) * len(ways)
    with ExitStack() as live:
        peer = live.enter_context(Peer(peer_python(run.peer_python))) if run.peer else None
        for number, case, now in itertools.product(range(run.rounds), cases, todo):
            progress(done, count)
            for way, figures in zip(now, _measured(run, case, now, number, peer), strict=True):
                found[str(case)][way].append(figures)
                done += 1
        progress(done, count)
        return found, peer.versions if peer else {}


def _measured(
    run: LabRun, case: Case, ways: tuple[str, ...], number: int, peer: Peer | None
) -> Sequence[dict[str, Any]]:
    """Return the figures of one way, or of two ways that are measured together."""
    if ways == TOGETHER:
        with ExitStack() as live:
            children: list[Child] = []
            for way in ways:
                children.append(live.enter_context(_child(run, case, way, number)))
                children[-1].set_up()
            floor, clips = children
            return take_turns(clips, floor)[::-1]
    (way,) = ways
    if way == "peer" and peer is not None:
        return [_by_peer(peer, run, case, number)]
    return [measure_alone(run, case, way, number)]


def _child(run: LabRun, case: Case, way: str, number: int) -> Child:
    command = worker_command("benchmarks.lab.read_worker", reading_of(run, case, way, number))
    return Child(f"{case} {way}", command, worker_environment(), ROOT)


def _by_peer(peer: Peer, run: LabRun, case: Case, number: int) -> dict[str, Any]:
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
