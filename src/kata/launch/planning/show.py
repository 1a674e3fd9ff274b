"""A forecast as a table for people, and as JSON whose keys carry units. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kata.plan.forecast import EPOCHS, Forecast, schedule_facts
from kata.plan.remedies import Remedy
from kata.plan.verdict import memory_parts, time_parts, verdict
from kata.run.dataset import DISK_CACHES
from kata.tables import table_lines
from kata.units import bytes_text, count_text, counted, rate_text, seconds_text


def forecast_json(
    found: Forecast, changes: Sequence[Remedy], notes: Sequence[str]
) -> dict[str, Any]:
    """Return a forecast as values of JSON."""
    run, machine = found.run, found.machine
    memory, time = found.memory, found.time
    epochs: dict[str, Any] = {}
    for number in EPOCHS:
        epochs[f"{number}_epochs"] = _span(found, number * found.steps_per_epoch)
    return {
        "policy": {
            "type": run.policy.type,
            "trainable_parameters": found.trace.trainable,
            "frozen_parameters": found.trace.frozen,
        },
        "machine": {
            "gpu": machine.gpu.name,
            "gpus": machine.ranks,
            "nodes": machine.nodes,
            "memory_bytes": machine.gpu.memory_bytes,
            "is_calibrated": found.rates.is_measured,
        },
        "batch": {
            "micro_batch_samples": run.batch_size,
            "accumulation_steps": run.accumulation,
            "global_batch_samples": run.effective_batch,
            "largest_micro_batch_samples": found.largest_batch,
        },
        "memory": {
            **{f"{name}_bytes": size for name, size in memory_parts(found).items()},
            "peak_bytes": memory.total_bytes,
            "margin_bytes": found.margin_bytes,
            "fits": found.fits,
        },
        "step": {
            "compute_s": time.compute_s,
            "launch_s": time.launch_s,
            "communication_s": time.communication_s,
            "data_s": time.data_s,
            "step_s": time.step_s,
            "binds": time.binds,
            "by_kind_s": time.kinds,
        },
        "steps_per_epoch": found.steps_per_epoch,
        "run": {"steps": run.steps, "epochs": run.steps / found.steps_per_epoch}
        | _span(found, run.steps),
        "training": epochs,
        "data": _data_facts(found),
        "checkpoint_bytes": found.checkpoint_bytes,
        "schedule": schedule_facts(run),
        "remedies": [{"flags": each.flags, "peak_bytes": each.total_bytes} for each in changes],
        "notes": list(notes),
    }


def _data_facts(found: Forecast) -> dict[str, Any]:
    """Return the amount of data, how fast they are read, and what they take on the disk."""
    return {
        "samples": found.data.samples,
        "episodes": found.data.episodes,
        "needed_frames_per_s": found.frames_per_s,
        "readable_frames_per_s": found.readable_frames_per_s,
        "dataset_bytes": found.data.disk_bytes,
        "cache": found.run.dataset.cache,
        "cache_bytes": found.cache_bytes,
    }


def _span(found: Forecast, steps: int) -> dict[str, Any]:
    """Return the steps with their time and price."""
    low, expected, high = found.wall_clock_s(steps)
    return {
        "steps": steps,
        "wall_clock_s": expected,
        "wall_clock_low_s": low,
        "wall_clock_high_s": high,
        "price_usd": found.price_usd(steps),
    }


def forecast_text(found: Forecast, changes: Sequence[Remedy], notes: Sequence[str]) -> str:
    """Return a forecast as a table, with remarks below it."""
    rows = [*_subject_rows(found), *_memory_rows(found), *_time_rows(found), *_data_rows(found)]
    lines = table_lines(rows)
    for change in changes:
        lines.append(f"fits with {change.flags}: {bytes_text(change.total_bytes)}")
    if not found.fits and not changes:
        lines.append("no change that kata knows makes it fit: a smaller policy, or fewer cameras")
    lines += [f"note: {note}" for note in notes]
    return "\n".join(lines) + "\n"


def _subject_rows(found: Forecast) -> list[tuple[str, str]]:
    run, machine = found.run, found.machine
    nodes = f" on {machine.nodes} nodes" if machine.nodes > 1 else ""
    source = "measured" if found.rates.is_measured else "catalogue"
    return [
        (
            "policy",
            f"{run.policy.type}: {count_text(found.trace.trainable)} parameters trained, "
            f"{count_text(found.trace.frozen)} frozen",
        ),
        ("machine", f"{machine.ranks} x {machine.gpu.name}{nodes} ({source})"),
        (
            "batch",
            f"{run.batch_size} per GPU x {run.ranks} x {run.accumulation} accumulated = "
            f"{run.effective_batch} samples",
        ),
    ]


def _memory_rows(found: Forecast) -> list[tuple[str, str]]:
    rows = [("memory", verdict(found))]
    for name, size in memory_parts(found).items():
        if size:
            rows.append((f"  {name.replace('_', ' ')}", bytes_text(size)))
    largest = count_text(found.largest_batch) if found.largest_batch else "none"
    rows.append(("largest batch", f"{largest} per GPU"))
    return rows


def _time_rows(found: Forecast) -> list[tuple[str, str]]:
    time = found.time
    rows = [("step", f"{seconds_text(time.step_s)}, bound by {time.binds}")]
    parts = time_parts(found)
    rows += [(f"  {name}", seconds_text(each)) for name, each in parts.items() if each]
    rows.append(("steps per epoch", count_text(found.steps_per_epoch)))
    for number in EPOCHS:
        steps = number * found.steps_per_epoch
        rows.append((f"{number} epochs", f"{counted(steps, 'step')}, {_duration(found, steps)}"))
    steps = found.run.steps
    epochs = steps / found.steps_per_epoch
    rows.append(
        ("this run", f"{counted(steps, 'step')} = {epochs:.3g} epochs, {_duration(found, steps)}")
    )
    return rows


def _duration(found: Forecast, steps: int) -> str:
    low, expected, high = map(seconds_text, found.wall_clock_s(steps))
    price = found.price_usd(steps)
    costs = "" if price is None else f", ${price:.2f}"
    return f"{expected} ({low} to {high}){costs}"


def _data_rows(found: Forecast) -> list[tuple[str, str]]:
    data, facts = found.data, schedule_facts(found.run)
    rows: list[tuple[str, str]] = []
    readable = found.readable_frames_per_s
    if readable is not None:
        source = "measured" if found.machine.s_per_pixel else "typical cores"
        rows.append(
            (
                "frames",
                f"{rate_text(found.frames_per_s)} per second to deliver; the readers manage "
                f"{rate_text(readable)} ({source})",
            )
        )
    size = "unknown" if data.disk_bytes is None else bytes_text(data.disk_bytes)
    disk = f"{bytes_text(found.checkpoint_bytes)} a checkpoint, dataset {size}"
    kept = found.run.dataset.cache
    if kept in DISK_CACHES:
        what = "frames" if kept == "disk" else f"features ({kept})"
        disk += f", cache of {what} {bytes_text(found.cache_bytes)}"
    rows.append(("disk", disk))
    if found.cache_bytes and kept not in DISK_CACHES:
        rows.append(("shared memory", f"{bytes_text(found.cache_bytes)} for the cache of frames"))
    end = f"{facts['last_lr']:.3g} at step {count_text(found.run.steps)} ({facts['type']})"
    if not facts["ends_low"]:
        end += "; it has not decayed by then: shorten the schedule or lengthen the run"
    rows.append(("learning rate", end))
    return rows
