"""Checks of statistics: dimensions that never change, and stored values that differ from the
data.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from kata.data.check.findings import Findings
from kata.data.dataset.dataset import Dataset
from kata.data.format.feature_stats import QUANTILES, STATS, Summary
from kata.data.format.text import REPAIR
from kata.data.stats.dataset_stats import differences, stored_stats
from kata.spec import BOOKKEEPING, Column, Stats, role_of


def check_constant(
    columns: Mapping[str, Column], figures: Mapping[str, Summary], found: Findings
) -> None:
    """Report dimensions of a policy's inputs and outputs that have one value throughout."""
    for key, summary in figures.items():
        column = columns[key]
        still = np.flatnonzero(summary["min"] == summary["max"])
        if key in BOOKKEEPING or role_of(key, column) is None or not still.size:
            continue
        size = summary["min"].size
        names = (
            column.names if column.names is not None and len(column.names) == size else range(size)
        )
        said = ", ".join(f"{names[place]} = {summary['min'][place]:.4g}" for place in still[:8])
        found.warning(
            "constant dimensions",
            f"'{key}' never changes in {still.size} of {size} dimensions: {said}"
            + (", ..." if still.size > 8 else ""),
            rule="a dimension that never changes teaches nothing",
            remedy="none for a joint that is meant to stand still; else check the recording",
        )


def check_stored(data: Dataset, figures: Mapping[str, Summary], found: Findings) -> None:
    """Report stored statistics of the table's columns that differ from those of all frames."""
    keys = [
        key
        for key, column in data.columns.items()
        if column.dtype != "string" and key not in BOOKKEEPING
    ]
    stored, place = stored_stats(data, keys)
    if not place and not data.is_whole:
        return  # stored statistics may describe the whole dataset, of which this is a part
    if not place:
        found.warning(
            "statistics",
            "none are stored",
            rule="LeRobot normalises with stored statistics; kata computes its own",
            remedy=REPAIR,
        )
        return
    exact: Stats = {}
    for key, stats in stored.items():
        exact[key] = {stat: value for stat, value in stats.items() if stat not in QUANTILES}
    for each in differences(dict(figures), exact):
        off = (
            "another number of values"
            if each.found.shape != each.stored.shape
            else f"off by {each.off:.6g}"
        )
        found.error(
            "statistics",
            f"{each.stat} of '{each.key}' in {place} is not that of the frames: {off}",
            rule="stored statistics are those of the frames; LeRobot normalises with them",
            remedy=REPAIR,
        )
    _check_quantiles(stored, place, found)
    lacking: dict[str, list[str]] = {}
    for key in keys:
        names = " ".join(stat for stat in STATS if stat not in stored.get(key, {}))
        if names:
            lacking.setdefault(names, []).append(key)
    for names, having in lacking.items():
        found.warning(
            "statistics",
            f"{place}: no {names} of {', '.join(having)}",
            rule="ten figures per feature; LeRobot trains with them, policies that use quantiles "
            "with these too",
            remedy=REPAIR,
        )


def _check_quantiles(stored: Stats, place: str, found: Findings) -> None:
    for key, stats in stored.items():
        if {"min", "max", *QUANTILES} <= set(stats) and not do_quantiles_rise(stats):
            found.error(
                "statistics",
                f"quantiles of '{key}' in {place} do not rise from min to max",
                rule="min <= q01 <= q10 <= q50 <= q90 <= q99 <= max",
                remedy=REPAIR,
            )


def do_quantiles_rise(stats: Summary) -> bool:
    """Return whether quantiles rise and lie between min and max, whatever they were averaged
    over.
    """
    rows = np.stack([stats[name].reshape(-1) for name in ("min", *QUANTILES, "max")])
    # LeRobot computes them from histograms of 5000 bins, so they are off by up to a bin.
    slack = (rows[-1] - rows[0]) / 1000 + 1e-6 * np.abs(rows).max(axis=0) + 1e-9
    return bool((np.diff(rows, axis=0) >= -slack).all())
