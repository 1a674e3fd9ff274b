"""Forecasts of one run on several machines and with other options. Torch-free."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import Any

from kata.errors import ConfigError, KataError
from kata.launch.flavors import known_flavors
from kata.launch.planning.show import forecast_json
from kata.plan.catalogue import gpu_named, known_gpus
from kata.plan.data_size import DataSize
from kata.plan.forecast import Forecast, Machine, forecast
from kata.plan.trace_store import step_trace_of
from kata.run import Run
from kata.tables import table_lines
from kata.units import bytes_text, rate_text, seconds_text

_ORDINARY = ("rtx3090", "rtx4090", "l4", "a10g", "l40s", "a100-80gb", "h100", "h200")
"""GPUs that a comparison shows."""

_BATCHES = (0.5, 1, 2, 4)
"""Batches that it shows, as multiples of the run's."""


def compared(run: Run, data: DataSize, machine: Machine, *, is_gpu_given: bool) -> list[Forecast]:
    """Return forecasts over GPUs, batch sizes, precisions and shardings."""
    found: list[Forecast] = []
    names = dict.fromkeys([machine.gpu.name, *(() if is_gpu_given else _ORDINARY)])
    for name in names:
        other = machine
        if name != machine.gpu.name:
            other = Machine(gpu=gpu_named(name), ranks=machine.ranks, nodes=machine.nodes)
        for changed in _variants(run, several=len(names) > 1):
            if changed.precision == "bf16" and not other.gpu.has_bf16:
                continue
            found.append(forecast(changed, step_trace_of(changed, device_of(other)), data, other))
    return found


def device_of(machine: Machine) -> str:
    """Return the device whose rules a trace for this machine follows."""
    return "cpu" if machine.gpu.name == "cpu" else "cuda"


def _variants(run: Run, *, several: bool) -> Iterator[Run]:
    """Yield the run with other precisions, batch sizes and shardings."""
    precisions = dict.fromkeys([run.precision, "bf16"])
    for precision in precisions:
        options = dataclasses.replace(run.accelerator, mixed_precision=precision)
        precise = dataclasses.replace(run, accelerator=options)
        yield precise
        if several:
            continue
        for factor in _BATCHES:
            size = int(run.batch_size * factor)
            if size not in (0, run.batch_size):
                whole = size * run.ranks * run.accumulation
                yield dataclasses.replace(precise, batch_size=size, global_batch_size=whole)
        if run.ranks > 1 and run.mesh[1] == 1:
            sharded = dataclasses.replace(run.parallelism, dp_shard=-1)
            yield dataclasses.replace(precise, parallelism=sharded)


def comparison_text(found: Sequence[Forecast]) -> str:
    """Return the forecasts as a table, a row each."""
    head = (
        "GPU",
        "batch",
        "precision",
        "shards",
        "memory",
        "fits",
        "step",
        "samples/s",
        "5 epochs",
    )
    rows: list[Sequence[str]] = [(*head, "price")]
    for each in found:
        run = each.run
        steps = 5 * each.steps_per_epoch
        price = each.price_usd(steps)
        answer = "no"
        if each.fits:
            answer = "tight" if each.is_tight else "yes"
        rows.append(
            (
                f"{each.machine.ranks} x {each.machine.gpu.name}",
                str(run.batch_size),
                run.precision,
                str(run.mesh[1]),
                bytes_text(each.memory.total_bytes),
                answer,
                seconds_text(each.time.step_s),
                rate_text(run.effective_batch / each.time.step_s),
                seconds_text(each.wall_clock_s(steps)[1]),
                "" if price is None else f"${price:.2f}",
            )
        )
    return "\n".join(table_lines(rows, first_number=4)) + "\n"


def comparison_json(found: Sequence[Forecast]) -> dict[str, Any]:
    """Return the forecasts as values of JSON."""
    listed: list[dict[str, Any]] = []
    for each in found:
        plain = forecast_json(each, [], [])
        options = {"precision": each.run.precision, "shards": each.run.mesh[1]}
        listed.append(plain | options)
    return {"comparison": listed}


def cheapest(run: Run, data: DataSize, ranks: int) -> Forecast:
    """Return the forecast for the machine of Hugging Face Jobs on which the run costs least.

    Raises:
        ConfigError: the run fits on none of them.
    """
    best: Forecast | None = None
    most: Forecast | None = None
    for flavor in known_flavors().values():
        if flavor.gpus != ranks:
            continue
        machine = Machine(
            gpu=gpu_named(flavor.gpu),
            ranks=ranks,
            cores=max(1, flavor.cores // flavor.gpus),
            usd_per_hour=flavor.usd_per_hour,
        )
        try:
            found = forecast(run, step_trace_of(run), data, machine)
        except KataError:
            continue  # the GPU does not compute in this precision
        most = found if most is None or found.margin_bytes > most.margin_bytes else most
        if found.fits and (best is None or _price(found) < _price(best)):
            best = found
    if best is not None:
        return best
    needs = "" if most is None else f" ({bytes_text(most.memory.total_bytes)})"
    sizes = sorted({flavor.gpus for flavor in known_flavors().values() if flavor.gpus})
    raise ConfigError(
        f"gpu=auto with gpus={ranks}: the run{needs} fits on no machine of Hugging Face Jobs",
        rule=f"they have {', '.join(map(str, sizes))} GPUs",
        remedy=f"name a GPU: {', '.join(known_gpus())}; --accelerator.mixed_precision=bf16, or a "
        "smaller --batch_size",
    )


def _price(found: Forecast) -> float:
    return found.price_usd(found.steps_per_epoch) or 0.0
