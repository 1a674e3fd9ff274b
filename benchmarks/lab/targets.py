"""Targets of reading: ratios to LeRobot's CPU time, the share of the floor, memory, first batch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kata.bench.cases import Case
from kata.bench.rounds import Rounds
from kata.bench.summary import Figures, is_read_by_kata, paired_ratio, summarise_ways

TARGETS: dict[Case, dict[str, float]] = {
    Case("a", "act"): {"full": 2.4, "clips": 4.5, "cache": 60},
    Case("a", "diffusion"): {"full": 1.7, "clips": 4.6, "cache": 35},
    Case("a", "sarm"): {"full": 1.4, "clips": 14, "cache": 35},
    Case("b", "act"): {"full": 1.5, "clips": 20, "cache": 120},
    Case("c", "act"): {"full": 1.1, "clips": 50, "cache": 400},
    Case("d", "act"): {"full": 100},
}
"""The peer's CPU time per sample over kata's, at least; --make writes the folders."""

FLOOR_SHARE = 0.8
"""Of the decode floor, at least, in clip order."""
FIRST_BATCH_S = 1.0
"""From opening the reader to the first batch, at most."""
MEMORY_BYTES = 1024**3
"""Resident memory beyond the stated budgets, at most."""


def summarise_all(cases: Sequence[Case], found: Rounds) -> dict[str, dict[str, dict[str, Any]]]:
    """Return `summarise_case` of every case."""
    return {str(case): summarise_case(case, found[str(case)]) for case in cases}


def summarise_case(case: Case, ways: Mapping[str, Sequence[Figures]]) -> dict[str, dict[str, Any]]:
    """Return the medians of each way, the ratio to the peer's CPU time, and the verdicts."""
    summary = summarise_ways(ways)
    for way, figures in summary.items():
        if not is_read_by_kata(way) or "error" in figures:
            continue
        if "error" not in summary.get("peer", {"error": ""}):
            figures["peer_ratio"] = paired_ratio(ways["peer"], ways[way])
        figures["targets"] = verdicts(case, way, figures)
    return summary


def verdicts(case: Case, way: str, figures: Figures) -> dict[str, dict[str, Any]]:
    """Return each target of a case and way: wanted, measured, reached. Ratios need a peer."""
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
    resident = figures["peak_bytes"]
    checks.append(("bytes resident", allowed, resident, resident <= allowed))
    return {
        what: {"wanted": limit, "measured": measured, "reached": is_reached}
        for what, limit, measured, is_reached in checks
    }


def missed(summary: Mapping[str, Mapping[str, Figures]]) -> list[str]:
    """Return a line per target that was not reached, and how many were reached."""
    count = 0
    lines: list[str] = []
    for case, ways in summary.items():
        for way, figures in ways.items():
            for what, target in figures.get("targets", {}).items():
                count += 1
                if not target["reached"]:
                    measured = f"{target['measured']:.4g}, wanted {target['wanted']:.4g}"
                    lines.append(f"not reached: {case} {way}: {what} {measured}")
    return [*lines, f"{count - len(lines)} of {count} targets reached"]
