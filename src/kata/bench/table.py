"""A benchmark's result as a table on the terminal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from kata.tables import table_lines


class _Column(NamedTuple):
    title: str
    name: str
    form: str
    scale: float = 1.0


_COLUMNS = (
    _Column("CPU ms", "cpu_ms", "{:.2f}"),
    _Column("x peer", "peer_ratio", "{:.2f}"),
    _Column("of floor", "floor_share", "{:.0%}"),
    _Column("samples/s", "samples_s", "{:.1f}"),
    _Column("kB read", "bytes_per_sample", "{:.1f}", 1e-3),
    _Column("decoded", "decoded_per_asked", "{:.2f}"),
    _Column("first s", "first_batch_s", "{:.2f}"),
    _Column("peak MB", "peak_bytes", "{:.0f}", 1e-6),
    _Column("episodes", "episodes_per_batch", "{:.1f}"),
    _Column("clips", "clips_per_batch", "{:.1f}"),
    _Column("others", "other_cores", "{:.1f}"),
)
LEGEND = (
    "CPU ms, kB read: per sample. x peer: times less CPU than the peer. decoded: frames decoded "
    "per frame asked for.\n"
    "episodes, clips: distinct ones in a batch. others: cores that other processes used meanwhile."
)


def text(result: Mapping[str, Any]) -> str:
    """Return medians per case and way, the legend, then what failed and missed its target."""
    rows = [["case", "way", *(column.title for column in _COLUMNS)]]
    failed: list[str] = []
    for case, ways in result["summary"].items():
        for way, figures in ways.items():
            if "error" in figures:
                failed.append(f"failed: {case} {way}: {figures['error']}")
                continue
            rows.append([case, way, *(_cell(column, figures) for column in _COLUMNS)])
    head = f"medians of {result['settings']['rounds']} rounds"
    lines = [head, *table_lines(rows, first_number=2), LEGEND, *failed, *missed(result)]
    return "\n".join(lines) + "\n"


def missed(result: Mapping[str, Any]) -> list[str]:
    """One line per target that was not reached, and how many were."""
    count, lines = 0, list[str]()
    for case, ways in result["summary"].items():
        for way, figures in ways.items():
            for what, target in figures.get("targets", {}).items():
                count += 1
                if not target["reached"]:
                    lines.append(
                        f"not reached: {case} {way}: {what} {target['measured']:.4g}, wanted "
                        f"{target['wanted']:.4g}"
                    )
    return [*lines, f"{count - len(lines)} of {count} targets reached"]


def _cell(column: _Column, figures: Mapping[str, Any]) -> str:
    return column.form.format(figures[column.name] * column.scale) if column.name in figures else ""
