"""Medians over the rounds, ratios to the peer, shares of the floor, and which targets are
reached.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from kata.bench.cases import FIRST_BATCH_S, FLOOR_SHARE, MEMORY_BYTES, TARGETS, Case
from kata.bench.rounds import Rounds


def summarise(
    case: Case, found: Mapping[str, Sequence[Mapping[str, Any]]]
) -> dict[str, dict[str, Any]]:
    """Per way the median of every figure, the ratio to the peer's CPU time, the share of the floor,
    the verdicts.

    A ratio is the median of the ratios within a round: what disturbs a round disturbs both of its
    sides.
    """
    summary: dict[str, dict[str, Any]] = {}
    for way, rounds in found.items():
        errors = [figures["error"] for figures in rounds if "error" in figures]
        summary[way] = {"error": errors[0]} if errors else medians(rounds)
    for way, figures in summary.items():
        if way in ("floor", "peer") or "error" in figures:
            continue
        figures["floor_share"] = paired(found["floor"], found[way])
        if "error" not in summary.get("peer", {"error": ""}):
            figures["peer_ratio"] = paired(found["peer"], found[way])
        figures["targets"] = targets(case, way, figures)
    return summary


def medians(rounds: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """The median of each number over the rounds."""
    names = [name for name, value in rounds[0].items() if isinstance(value, int | float)]
    return {name: median(figures[name] for figures in rounds) for name in names}


def paired(over: Sequence[Mapping[str, Any]], under: Sequence[Mapping[str, Any]]) -> float:
    """The median over the rounds of one's CPU time per sample by the other's."""
    return median(a["cpu_ms"] / b["cpu_ms"] for a, b in zip(over, under, strict=True))


def targets(case: Case, way: str, figures: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """What was to be reached by this case and way: wanted, measured, reached. Ratios only where
    there is a peer.
    """
    checks: list[tuple[str, float, float, bool]] = []
    wanted = TARGETS.get(case, {}).get(way)
    if wanted is not None and "peer_ratio" in figures:
        ratio = figures["peer_ratio"]
        checks.append(("times less CPU than the peer", wanted, ratio, ratio >= wanted))
    if way == "clips":
        share = figures["floor_share"]
        checks.append(("share of the decode floor", FLOOR_SHARE, share, share >= FLOOR_SHARE))
    first_s = figures["first_batch_s"]
    checks.append(("seconds to the first batch", FIRST_BATCH_S, first_s, first_s <= FIRST_BATCH_S))
    allowed = figures.get("budget_bytes", 0) + MEMORY_BYTES
    checks.append(
        ("bytes resident", allowed, figures["peak_bytes"], figures["peak_bytes"] <= allowed)
    )
    return {
        what: {"wanted": most, "measured": have, "reached": fine}
        for what, most, have, fine in checks
    }


def summarise_all(cases: Sequence[Case], found: Rounds) -> dict[str, dict[str, dict[str, Any]]]:
    """`summarise` of every case."""
    return {str(case): summarise(case, found[str(case)]) for case in cases}
