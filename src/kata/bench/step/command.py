"""`kata bench step`: traces a step of each policy, of LeRobot's too, and keeps the counts."""

from __future__ import annotations

import datetime
import json
import logging
import os
import shlex
import subprocess
from pathlib import Path
from typing import Any

import kata
from kata.bench import process_stats
from kata.bench.step.cases import step_run
from kata.bench.step.options import StepBench
from kata.config import encode, flags_of
from kata.errors import ConfigError, PolicyError
from kata.plan.step_trace import StepTrace
from kata.policies import types_from_recordings
from kata.tables import table_lines

_log = logging.getLogger(__name__)

HEAD = ("policy", "launches", "LeRobot", "saved MB", "LeRobot", "GFLOP", "LeRobot", "host waits")
_PEER_LIMIT_S = 600.0


def step(options: StepBench) -> int:
    """Trace the steps, print a table, keep the JSON, and return the exit status."""
    began = datetime.datetime.now(datetime.UTC)
    found: dict[str, dict[str, Any]] = {}
    for policy in options.policies or types_from_recordings():
        try:
            found[policy] = {"kata": own_counts(policy, options)}
        except PolicyError as error:
            if options.policies:
                raise
            # Some models' sizes lie on the Hub alone.
            _log.warning("%s is left out: %s", policy, error.what)
            continue
        if options.peer is None:
            continue
        try:
            found[policy]["lerobot"] = peer_counts(policy, options)
        except ConfigError as error:
            if options.policies:
                raise
            # LeRobot's π0-FAST, for one, is not built without a tokenizer from the Hub.
            _log.warning("LeRobot's columns stay empty: %s", error.what)
    print("\n".join(table_lines(rows(found), first_number=1)))
    if options.out is not None:
        _keep(options, began, found, Path(options.out).expanduser())
    return 0


def own_counts(policy: str, options: StepBench) -> dict[str, Any]:
    """Return the counts of kata's step."""
    from kata.plan.tracing.trace import trace_step

    return counts_of_trace(trace_step(step_run(policy, options.precision)), options.batch_size)


def counts_of_trace(trace: StepTrace, batch: int) -> dict[str, Any]:
    """Return launches by phase and operation, floating-point operations, and saved bytes."""
    kinds: dict[str, int] = {}
    for operation in trace.operations:
        if operation.phase != "input":
            launched = operation.launches * operation.runs
            kinds[operation.name] = kinds.get(operation.name, 0) + launched
    return {
        "launches": {phase: trace.launches(phase) for phase in trace.begins},
        "flops": trace.flops(batch),
        "saved_bytes": trace.saved_bytes(batch),
        "by_name": kinds,
        "host_waits": 0,
    }


def peer_counts(policy: str, options: StepBench) -> dict[str, Any]:
    """Return the counts of LeRobot's step, which its own environment traces.

    Raises:
        ConfigError: it cannot be traced there.
    """
    assert options.peer is not None
    words = [policy, str(options.batch_size), options.precision]
    done = subprocess.run(
        [str(Path(options.peer).expanduser()), "-m", "kata.bench.step.peer_step", *words],
        env={**os.environ, "PYTHONPATH": str(Path(kata.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=_PEER_LIMIT_S,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise ConfigError(
            f"peer={options.peer}: {policy}: {last}",
            rule="that environment has LeRobot 0.6.1 and the packages that kata needs",
            remedy="build it with `make peer`, or leave the policy out: --policies=[...]",
        )
    return json.loads(done.stdout.strip().splitlines()[-1])


def rows(found: dict[str, dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return the table: launches without those that prepare the batch, bytes and operations."""
    table: list[tuple[str, ...]] = [HEAD]
    for policy, sides in found.items():
        own, peer = sides["kata"], sides.get("lerobot")
        cells = [policy]
        for text in (launches_text, saved_text, flops_text):
            cells += [text(own), "" if peer is None else text(peer)]
        waits = "" if peer is None else f"{own['host_waits']} / {peer['host_waits']}"
        table.append((*cells, waits))
    return table


def launches_text(counts: dict[str, Any]) -> str:
    """Return the kernels of forward, backward and optimizer."""
    return str(sum(n for phase, n in counts["launches"].items() if phase != "input"))


def saved_text(counts: dict[str, Any]) -> str:
    """Return the megabytes that the forward pass leaves for the backward pass."""
    return f"{counts['saved_bytes'] / 1e6:.1f}"


def flops_text(counts: dict[str, Any]) -> str:
    """Return the floating-point operations in billions."""
    return f"{counts['flops'] / 1e9:.1f}"


def _keep(
    options: StepBench, began: datetime.datetime, found: dict[str, dict[str, Any]], folder: Path
) -> None:
    """Write all counts as JSON."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step_{began:%Y%m%d_%H%M%S}.json"
    result = {
        "command": shlex.join(["kata", "bench", "step", *flags_of(options)]),
        "began": began.isoformat(timespec="seconds"),
        "versions": process_stats.versions(),
        "settings": encode(options),
        "policies": found,
    }
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    print(f"all figures: {path}")
