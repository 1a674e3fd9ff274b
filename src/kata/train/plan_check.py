"""The plan of a run on its own GPU: said before step 1, compared with what was measured after."""

from __future__ import annotations

import dataclasses
import logging
import statistics
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from kata.errors import ConfigError, PolicyError
from kata.plan.catalogue import Gpu, gpu_of_device
from kata.plan.data_size import DataSize
from kata.plan.forecast import Forecast, Machine, forecast
from kata.plan.picture import forecast_picture
from kata.plan.profiles import kept_profile
from kata.plan.remedies import remedies
from kata.plan.trace_store import step_trace_of
from kata.plan.verdict import compared_text, memory_parts, time_parts, verdict
from kata.train.input.prepare import Prepared
from kata.train.report import PlanView
from kata.units import seconds_text

_log = logging.getLogger(__name__)


def gpu_of(device: torch.device) -> Gpu | None:
    """Return the GPU of the catalogue that a device is, with the memory that it really has.

    Returns:
        None for a CPU, and for a GPU that the catalogue lacks: such runs start without a plan.
    """
    if device.type != "cuda":
        return None
    found = torch.cuda.get_device_properties(device)
    gpu = gpu_of_device(found.name, found.total_memory)
    return None if gpu is None else dataclasses.replace(gpu, memory_bytes=found.total_memory)


def plan_of(prepared: Prepared) -> Forecast | None:
    """Return the forecast of a run on the GPU that it has; None without one.

    The first plan of a policy traces a step, which takes seconds; then the trace is in the cache
    folder. A run on a CPU waits for nothing.
    """
    gpu = gpu_of(prepared.device)
    if gpu is None:
        return None
    run, data = prepared.run, prepared.data
    size = DataSize(
        len(data.rows), data.train.num_episodes, float(data.train.datasets[0].fps), None
    )
    profile = kept_profile(gpu.name, run.precision)
    machine = Machine(gpu=gpu, ranks=run.ranks)
    if profile is not None:
        machine = machine.with_profile(profile)
    plain = dataclasses.replace(run, policy=run.policy.without_downloads())
    try:
        return forecast(plain, step_trace_of(plain), size, machine)
    except PolicyError as error:
        _log.warning("the run has no plan: %s", error.what)
        return None


def refuse_what_cannot_fit(found: Forecast | None, *, force: bool) -> None:
    """Refuse a run whose step does not fit its GPU.

    Args:
        found: the forecast, or None.
        force: True to let it start all the same.

    Raises:
        ConfigError: it does not fit; the message has the changes with which it does.
    """
    if found is None or found.fits or force:
        return
    ways = [f"{each.flags}" for each in remedies(found.run, found.machine.gpu) if each.flags]
    ways = [way for way in ways if not way.startswith("--gpu=")]
    raise ConfigError(
        f"batch_size={found.run.batch_size}: {verdict(found)}",
        rule="a training step fits the GPU's memory",
        remedy="; or ".join([*ways, "--force=true to start all the same"]),
    )


def plan_rows(found: Forecast | None) -> list[tuple[str, str]]:
    """Return the rows of the plan for the table before step 1."""
    if found is None:
        return []
    low, expected, high = map(seconds_text, found.wall_clock_s(found.run.steps))
    return [
        ("plan", verdict(found)),
        (
            "",
            f"{seconds_text(found.time.step_s)} a step, bound by {found.time.binds}; "
            f"{expected} in all ({low} to {high})",
        ),
    ]


def plan_remark(found: Forecast | None, metrics: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return a line that compares the plan with what was measured.

    The first line of metrics holds the start, where kernels are searched and compiled.
    """
    measured = [float(line["step_s"]) for line in metrics if line["kind"] == "train"][1:]
    if found is None or not measured:
        return []
    reserved = torch.cuda.max_memory_reserved() if torch.cuda.is_available() else 0
    return [compared_text(found, statistics.median(measured), reserved)]


def plan_view(found: Forecast | None, metrics: Sequence[Mapping[str, Any]]) -> PlanView | None:
    """Return the plan beside what was measured, for the report; None without a plan."""
    if found is None:
        return None
    capacity = found.machine.gpu.memory_bytes
    picture = forecast_picture(memory_parts(found), capacity, time_parts(found))
    said = [text for _, text in plan_rows(found)]
    return PlanView([*said, *plan_remark(found, metrics)], picture)
