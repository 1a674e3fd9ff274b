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
    "CPU ms, kB read: per sample. of floor: CPU time of the decode floor by this one. decoded: "
    "frames decoded per\nframe asked for. "
    "episodes, clips: distinct ones in a batch. others: cores that other processes used meanwhile."
)


PEER_LEGEND = "x peer: times less CPU than the peer."


def text(result: Mapping[str, Any]) -> list[str]:
    """Return lines: medians per case and way, the legend, and what failed."""
    columns = _known_columns(result["summary"])
    rows = [["case", "way", *(column.title for column in columns)]]
    failed: list[str] = []
    for case, ways in result["summary"].items():
        for way, figures in ways.items():
            if "error" in figures:
                failed.append(f"failed: {case} {way}: {figures['error']}")
                continue
            rows.append([case, way, *(_cell(column, figures) for column in columns)])
    head = f"medians of {result['settings']['rounds']} rounds"
    return [head, *table_lines(rows, first_number=2), LEGEND, *failed]


def _known_columns(summary: Mapping[str, Mapping[str, Mapping[str, Any]]]) -> list[_Column]:
    """Return the columns that have a figure in some row."""
    known: set[str] = set()
    for ways in summary.values():
        for figures in ways.values():
            known |= figures.keys()
    return [column for column in _COLUMNS if column.name in known]


def _cell(column: _Column, figures: Mapping[str, Any]) -> str:
    return column.form.format(figures[column.name] * column.scale) if column.name in figures else ""
