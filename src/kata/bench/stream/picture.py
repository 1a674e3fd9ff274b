"""A picture of readings: throughput against the latency of the store, and memory over time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from io import BytesIO
from typing import Any

_MIB = 2**20


def stream_picture(records: Sequence[Mapping[str, Any]]) -> bytes:
    """Draw the first node of each record, in one color in both halves.

    Args:
        records: records of `kata bench stream`.

    Returns:
        The picture as PNG.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 5), layout="constrained")
    rates, memory = figure.subplots(1, 2)
    for number, record in enumerate(records):
        color = f"C{number % 10}"
        name = f"{record['source']}, {record['dataset']['name']}, {record['mode']}"
        node = record["nodes"][0]
        rates.plot(
            [node["request_ms"]],
            [node["frames_per_s_node"]],
            linestyle="none",
            marker="o" if record["mode"] == "single" else "s",
            color=color,
            label=name,
        )
        resident = record["ranks"][0]["resident"]
        memory.plot(
            [second for second, _ in resident],
            [size / _MIB for _, size in resident],
            color=color,
        )
        budget = record["ranks"][0]["budget_bytes"] / _MIB
        memory.axhline(budget, color=color, linestyle="--", linewidth=0.7)
    rates.set_xlabel("latency of a request, ms (0: no requests)")
    rates.set_ylabel("frames per second of a node")
    slowest_ms = max((each["nodes"][0]["request_ms"] for each in records), default=0.0)
    rates.set_xlim(-0.02 * max(slowest_ms, 1.0), 1.1 * max(slowest_ms, 1.0))
    rates.set_ylim(bottom=0)
    rates.legend(fontsize="x-small")
    memory.set_xlabel("seconds")
    memory.set_ylabel("resident memory of rank 0, MiB (dashed: budget)")
    memory.set_ylim(bottom=0)
    buffer = BytesIO()
    figure.savefig(buffer, format="png", dpi=120)
    return buffer.getvalue()
