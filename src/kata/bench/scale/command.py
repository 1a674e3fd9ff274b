"""The verb `kata bench scale`: runs 1, 2, … ranks, lays out many more, and keeps the figures."""

from __future__ import annotations

import datetime
import json
import os
import shlex
import tempfile
import time
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kata.bench import process_stats
from kata.bench.scale.options import BUILT_IN, ScaleRun
from kata.bench.scale.scale_spawn import run_ranks
from kata.bench.scale.show import layouts_text, measured_text
from kata.bench.scale.verdict import summarise_ranks
from kata.config import encode, flags_of
from kata.log import counting
from kata.policies import types_from_recordings

ROBOT = (
    "--dataset.repo_id=simulated/robot",
    "--policy.device=cpu",
    '--policy.input_features={"observation.images.front": '
    '{"type": "VISUAL", "shape": [3, 480, 640]}, '
    '"observation.state": {"type": "STATE", "shape": [14]}}',
    '--policy.output_features={"action": {"type": "ACTION", "shape": [14]}}',
)
"""Inputs and outputs of a simulated policy."""
EPISODES = 8
"""Of the built-in task: more batches than are measured."""


def scale(run: ScaleRun, train: Sequence[str]) -> int:
    """Measure, print, keep; the exit status.

    Args:
        run: what is measured.
        train: options of `kata train`; none takes a small ACT on the built-in task.
    """
    process_stats.require_linux()
    began = datetime.datetime.now(datetime.UTC)
    threads = run.threads or max(1, process_stats.cores() // max(run.ranks, default=1))
    result: dict[str, Any] = {
        "command": shlex.join(
            ["kata", "bench", "scale", *flags_of(run), *(["--", *train] if train else [])]
        ),
        "began": began.isoformat(timespec="seconds"),
        "machine": process_stats.machine(),
        "settings": {**encode(run), "threads": threads, "train": train or list(BUILT_IN)},
    }
    if run.ranks:
        rounds = _measured(run, train, threads)
        result |= {"summary": summarise_ranks(rounds), "rounds": rounds}
        print(measured_text(result["summary"]), end="")
    if run.simulate:
        asked = {"ranks": run.simulate, "policies": [[*ROBOT, *each] for each in _policies(train)]}
        result["layouts"] = run_ranks("kata.bench.scale.layouts", asked, 1, 1, run.timeout)
        print(layouts_text(run.simulate, result["layouts"]), end="")
    if run.out is not None:
        folder = Path(run.out).expanduser()
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"scale_{began:%Y%m%d_%H%M%S}.json"
        path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
        print(f"every round's figures: {path}")
    return 0


def _measured(run: ScaleRun, train: Sequence[str], threads: int) -> dict[int, list[dict[str, Any]]]:
    """Return the figures of rank 0 in each round, by number of ranks, measured in turn."""
    rounds: dict[int, list[dict[str, Any]]] = {ranks: [] for ranks in run.ranks}
    todo = [*run.ranks] * run.rounds
    with _data(train) as args, counting("measurements") as told:
        asked = {"args": args, "steps": run.steps, "warmup": run.warmup}
        for done, ranks in enumerate(todo):
            told(done, len(todo))
            own_s = _own_s()
            busy_s = process_stats.busy_s()
            began_s = time.perf_counter()
            measured = run_ranks(
                "kata.bench.scale.scale_worker", asked, ranks, threads, run.timeout
            )
            others_s = process_stats.busy_s() - busy_s - (_own_s() - own_s)
            rounds[ranks].append(
                {**measured, "other_cores": max(0.0, others_s / (time.perf_counter() - began_s))}
            )
        told(len(todo), len(todo))
    return rounds


def _own_s() -> float:
    """Return the CPU seconds of this process and of its children that have ended."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


@contextmanager
def _data(train: Sequence[str]) -> Generator[list[str]]:
    """Yield the options of training as given, or the built-in ones with demonstrations."""
    if train:
        yield list(train)
        return
    from kata.eval.record.demonstrations import record

    with tempfile.TemporaryDirectory(prefix="kata_scale_") as folder:
        root = record(Path(folder) / "reach", num_episodes=EPISODES, codec="h264")
        yield [*BUILT_IN, f"--dataset.root={root}"]


def _policies(train: Sequence[str]) -> list[list[str]]:
    """The policy that is trained, with its options, or every policy as it is by default."""
    chosen = [
        arg for arg in train if arg.removeprefix("--").startswith(("policy.", "optimizer.", "ddp."))
    ]
    return [chosen] if chosen else [[f"--policy.type={name}"] for name in types_from_recordings()]
