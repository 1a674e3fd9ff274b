"""A scaling measurement as tables on the terminal."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kata.tables import table_lines
from kata.units import bytes_text

LEGEND = (
    "step, CPU s: per step, CPU seconds over all ranks. efficiency: samples/s per rank by those of "
    "the fewest ranks.\n"
    "data: share of a step that waits for data. exposed: share of an update (without data) that "
    "more ranks add, and\n"
    "sending: what the gradients take to send alone; hidden: the share of what sending after the "
    "backward pass adds\n"
    "that sending during it saves (negative: it costs more).\n"
    "others: cores that other programs used meanwhile; they move seconds, and CPU seconds less."
)
LAYOUT_LEGEND = (
    "bytes on the fullest rank: weights, gradients, the optimiser's moments, buffers, and the most "
    "weights that are\n"
    "put together at once (FSDP: two units); no activations. sent: by each rank, each step. "
    "pieces: buckets, or units."
)


def measured_text(summary: Mapping[int, Mapping[str, Any]]) -> str:
    """Return a row for each number of ranks, then what binds, and the cost over one rank's step."""
    head = (
        "ranks",
        "batch",
        "step ms",
        "steps/s",
        "samples/s",
        "efficiency",
        "CPU s",
        "data",
        "exposed",
        "sending",
        "hidden",
        "others",
    )
    rows: list[Sequence[str]] = [head]
    for each in summary.values():
        several = "together_s" in each
        row = [
            str(each["ranks"]),
            str(each["batch_size"]),
            f"{1e3 * each['step_s']:.1f}",
            f"{each['steps_s']:.2f}",
            f"{each['samples_s']:.1f}",
            f"{each['efficiency']:.0%}",
            f"{each['cpu_s']:.3f}",
            f"{each['wait_s'] / each['step_s']:.0%}",
            f"{each['exposed_s'] / each['together_s']:.0%}" if several else "",
            f"{1e3 * each['send_s']:.1f} ms" if several else "",
            f"{each['hidden']:.0%}" if several else "",
            f"{each['other_cores']:.1f}",
        ]
        rows.append(row)
    said = [
        f"{each['ranks']} {'rank' if each['ranks'] == 1 else 'ranks'}: bound by {each['bound_by']}"
        for each in summary.values()
    ]
    said += [cost_text(each) for each in summary.values() if "cost" in each]
    return "\n".join([*table_lines(rows, first_number=1), LEGEND, *said]) + "\n"


def cost_text(figures: Mapping[str, Any]) -> str:
    """Return the cost of a step of several ranks over one rank's, by cause."""
    return (
        f"an update of {figures['ranks']} ranks takes {figures['cost']:+.0%} over one rank's with "
        "the same threads: "
        f"{figures['cost_communication']:+.0%} communication, "
        f"{figures['cost_shared_machine']:+.0%} from sharing the "
        f"machine; CPU time per rank {figures['cost_cpu']:+.0%}"
    )


def layouts_text(ranks: int, layouts: Iterable[Mapping[str, Any]]) -> str:
    """Return a row for each policy and layout, and why one has none."""
    parts = ("weights", "gradients", "moments", "buffers", "together", "sum", "sent")
    rows: list[Sequence[str]] = [("policy", "layout", *parts, "pieces")]
    failed: list[str] = []
    for each in layouts:
        if "error" in each:
            failed.append(f"{each['policy']} was not laid out: {each['error']}")
            continue
        sizes = [bytes_text(each[f"{part}_bytes"]) for part in parts]
        rows.append((each["policy"], each["layout"], *sizes, str(each["pieces"])))
    lines = [f"{ranks} ranks, simulated", *table_lines(rows, first_number=2), LAYOUT_LEGEND]
    return "\n".join([*lines, *failed]) + "\n"
