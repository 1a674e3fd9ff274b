"""Medians over the rounds of a benchmark, and shares of the decode floor."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from kata.bench.rounds import FLOOR, Rounds

Figures = Mapping[str, Any]


def summarise_rounds(found: Rounds) -> dict[str, dict[str, dict[str, Any]]]:
    """Return the medians of every case and way, with the shares of the decode floor."""
    return {case: summarise_ways(ways) for case, ways in found.items()}


def summarise_ways(ways: Mapping[str, Sequence[Figures]]) -> dict[str, dict[str, Any]]:
    """Return per way the median of every figure, or its error, and the share of the floor.

    A ratio is the median of the ratios within a round: a disturbance of a round falls on both of
    its sides.
    """
    summary: dict[str, dict[str, Any]] = {}
    for way, rounds in ways.items():
        errors = [figures["error"] for figures in rounds if "error" in figures]
        if errors:
            summary[way] = {"error": errors[0]}
            continue
        summary[way] = medians(rounds)
        if is_read_by_kata(way):
            summary[way]["floor_share"] = paired_ratio(ways[FLOOR], rounds)
    return summary


def is_read_by_kata(way: str) -> bool:
    """Return True for a way in which kata reads: neither the floor nor a peer."""
    return way not in (FLOOR, "peer")


def medians(rounds: Sequence[Figures]) -> dict[str, float]:
    """Return the median of each number over the rounds."""
    names = [name for name, value in rounds[0].items() if isinstance(value, int | float)]
    found: dict[str, float] = {}
    for name in names:
        found[name] = median(figures[name] for figures in rounds)
    return found


def paired_ratio(over: Sequence[Figures], under: Sequence[Figures]) -> float:
    """Return the median over the rounds of one's CPU time per sample by the other's."""
    return median(a["cpu_ms"] / b["cpu_ms"] for a, b in zip(over, under, strict=True))
