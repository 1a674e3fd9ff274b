"""A picture of a forecast: memory by part and time by part. Torch-free."""

from __future__ import annotations

from collections.abc import Mapping
from io import BytesIO
from typing import Any

GIB = 2**30


def forecast_picture(
    memory_bytes: Mapping[str, int], capacity_bytes: int, time_s: Mapping[str, float]
) -> bytes:
    """Draw memory by part against the GPU's, and the time of a step by part.

    Args:
        memory_bytes: bytes by part.
        capacity_bytes: memory of the GPU.
        time_s: seconds by part.

    Returns:
        The picture as PNG.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    sizes = {name: size / GIB for name, size in memory_bytes.items() if size}
    _stack(left, sizes, "GiB")
    left.axvline(capacity_bytes / GIB, color="black", linestyle="--", label="the GPU's memory")
    left.set_title("memory of one GPU")
    parts = {name: seconds * 1000 for name, seconds in time_s.items() if seconds}
    right.barh(list(parts), list(parts.values()))
    right.set_title("time of a step")
    right.set_xlabel("ms")
    left.legend(fontsize="x-small", ncols=2)
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()


def _stack(axes: Any, parts: Mapping[str, float], unit: str) -> None:
    """Draw the parts as one bar of pieces."""
    begin = 0.0
    for name, size in parts.items():
        axes.barh([""], [size], left=[begin], label=name.replace("_", " "))
        begin += size
    axes.set_xlabel(unit)
