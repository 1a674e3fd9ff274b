"""A forecast in words and by parts, and its comparison with what was measured. Torch-free."""

from __future__ import annotations

from kata.plan.forecast import Forecast
from kata.units import bytes_text, seconds_text

SLOWER_SHARE = 0.25
"""A run whose steps take this much longer than planned says what to look at."""


def memory_parts(found: Forecast) -> dict[str, int]:
    """Return the bytes of each part of the memory, in the order in which they are shown."""
    memory, parts = found.memory, found.memory.parts
    inputs = parts["raw_inputs"] + parts["inputs"]
    return {
        "weights": parts["weights"] + parts["frozen_weights"],
        "gradients": parts["gradients"],
        "optimizer": parts["optimizer_state"],
        "ema": parts["ema"],
        "activations": parts["activations"] + parts["cast_weights"] + parts["temporaries"],
        "inputs": inputs,
        "communication": parts["communication"] + memory.nccl_bytes,
        "allocator": memory.allocator_bytes + memory.workspace_bytes,
        "cuda_context": memory.context_bytes,
    }


def time_parts(found: Forecast) -> dict[str, float]:
    """Return the seconds of a step by part; they run beside each other."""
    return {
        "compute": found.time.compute_s,
        "launch": found.time.launch_s,
        "communication": found.time.communication_s,
        "data": found.time.data_s,
    }


def verdict(found: Forecast) -> str:
    """Return in a sentence whether the step fits."""
    capacity = bytes_text(found.machine.gpu.memory_bytes)
    needs = f"{bytes_text(found.memory.total_bytes)} of {capacity} on {found.machine.gpu.name}"
    if not found.fits:
        return f"does not fit: {needs}, {bytes_text(-found.margin_bytes)} too much"
    margin = f"{bytes_text(found.margin_bytes)} stay free"
    if found.is_tight:
        return f"fits, but is tight: {needs}, {margin}"
    return f"fits: {needs}, {margin}"


def compared_text(found: Forecast, measured_s: float, reserved_bytes: int = 0) -> str:
    """Return the planned and the measured step, and what to look at if it is slow.

    Args:
        found: the forecast.
        measured_s: time of a step as measured.
        reserved_bytes: most memory that torch reserved; 0 if it is unknown.
    """
    planned_s = found.time.step_s
    change = measured_s / planned_s - 1
    word = "slower" if change > 0 else "faster"
    text = (
        f"a step was planned at {seconds_text(planned_s)} and took {seconds_text(measured_s)}: "
        f"{abs(change):.0%} {word}"
    )
    if reserved_bytes:
        text += (
            f"; memory was planned at {bytes_text(found.memory.reserved_bytes)}, and "
            f"{bytes_text(reserved_bytes)} were reserved"
        )
    if change <= SLOWER_SHARE:
        return text
    looks = {
        "compute": "other programs on the device, its clock and temperature (`nvidia-smi`)",
        "launch": "a busy or slow host core, and --compile=true",
        "communication": "the links between the GPUs (`kata doctor`)",
        "data": "--num_workers, --dataset.shuffle=clips and --dataset.cache",
    }
    return f"{text}. Look at {looks[found.time.binds]}; `kata plan --calibrate` measures the device"
