"""`kata plan`: from its arguments to a table, or to JSON."""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from kata.config import parse_flags
from kata.launch.planning.auto_batch import with_largest_batch
from kata.launch.planning.comparison import (
    cheapest,
    compared,
    comparison_json,
    comparison_text,
    device_of,
)
from kata.launch.planning.fit import with_fit
from kata.launch.planning.measure import calibrated_steps_text, calibrated_text, verified_text
from kata.launch.planning.options import PlanOptions, split_args
from kata.launch.planning.show import forecast_json, forecast_text
from kata.launch.planning.subject import described, flavor_machine, machine_of, with_dataset
from kata.plan.data_size import DataSize
from kata.plan.forecast import Forecast, forecast
from kata.plan.picture import forecast_picture
from kata.plan.remedies import Remedy, remedies
from kata.plan.trace_store import step_trace_of
from kata.plan.verdict import memory_parts, time_parts
from kata.rl.options import TYPES
from kata.run import Run, memory_to_fit, resolve_run
from kata.run.dataset import FEATURE_CACHES


def main(args: Sequence[str]) -> int:
    """Plan what these arguments ask for, print it, and return the exit status.

    Raises:
        KataError: options or data are wrong, or the step cannot be traced.
    """
    options, train = split_args(args)
    if parse_flags(train).get("policy.type") in TYPES:
        from kata.rl.assembly import memory_text

        print(memory_text(train, as_json=options.json), end="")
        return 0
    if options.calibrate:
        _tell(options, calibrated_text(train))
        if not any("policy." in arg for arg in train):
            return 0
    if options.gpu == "auto":
        run, data, notes = subject(options, train, options.gpus * options.nodes)
        found = cheapest(run, data, options.gpus * options.nodes)
        _print(options, found, [], notes)
        return 0
    ranks = _ranks(options)
    if memory_to_fit(train) is not None:
        train = with_fit(train, lambda flags: subject(options, flags, ranks)[0])
    train = with_largest_batch(
        train,
        ranks,
        lambda flags: subject(options, flags, ranks)[:2],
        lambda run: machine_of(options, run)[0],
    )
    run, data, notes = subject(options, train, ranks)
    machine, remarks = machine_of(options, run)
    notes += remarks
    if options.calibrate:
        _tell(options, calibrated_steps_text(run, device_of(machine)))
        machine, _ = machine_of(options, run)
    if options.compare:
        given = options.gpu is not None or options.flavor is not None
        forecasts = compared(run, data, machine, is_gpu_given=given)
        plain = comparison_json(forecasts)
        print(json.dumps(plain, indent=1) if options.json else comparison_text(forecasts), end="")
        return 0
    found = forecast(run, step_trace_of(run, device_of(machine)), data, machine)
    if options.verify:
        notes.append(verified_text(found))
    changes = [] if found.fits else remedies(run, machine.gpu, device_of(machine))
    _print(options, found, changes, notes)
    return 0


def _tell(options: PlanOptions, text: str) -> None:
    """Print what was measured; JSON stays alone on the standard output."""
    print(text, end="", file=sys.stderr if options.json else sys.stdout)


def subject(
    options: PlanOptions, train: Sequence[str], ranks: int
) -> tuple[Run, DataSize, list[str]]:
    """Return the run with its policy's features, the size of its data, and notes.

    Nothing of the run is downloaded but the dataset's metadata.
    """
    run, notes = resolve_run(train, ranks)
    run = dataclasses.replace(run, policy=run.policy.planned())
    run, data = described(run, options.dataset) if options.dataset.is_stated else with_dataset(run)
    if run.compile:
        notes.append("--compile is not part of the plan")
    if run.dataset.cache in FEATURE_CACHES:
        notes.append(
            "the step is that of the first epoch: later ones read the features from the cache "
            "instead of computing them"
        )
    return run, data, notes


def _ranks(options: PlanOptions) -> int:
    """Return the number of ranks: GPUs of all nodes, or those of the flavor."""
    if options.flavor is None:
        return options.gpus * options.nodes
    return flavor_machine(options.flavor).ranks


def _print(
    options: PlanOptions, found: Forecast, changes: Sequence[Remedy], notes: Sequence[str]
) -> None:
    if options.picture is not None:
        picture = forecast_picture(
            memory_parts(found), found.machine.gpu.memory_bytes, time_parts(found)
        )
        Path(options.picture).expanduser().write_bytes(picture)
    if options.json:
        plain: dict[str, Any] = forecast_json(found, changes, notes)
        print(json.dumps(plain, indent=1))
    else:
        print(forecast_text(found, changes, notes), end="")
