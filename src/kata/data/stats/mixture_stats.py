"""Statistics of a mixture: of all its frames, and those with which each dataset is normalized."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from kata.data.dataset.mixture import Mixture, MixtureEntry, is_vector
from kata.data.format.feature_stats import STATS, Summary, merge_summaries, summarise
from kata.data.stats.dataset_stats import camera_stats, dataset_stats
from kata.spec import Column, Stats

_NEUTRAL = dict(zip(STATS, (-1, 1, 0, 1, 0, -1, -1, 0, 1, 1), strict=True))
"""Statistics that keep zero at zero in every mode of normalization, for dimensions that a dataset
lacks.
"""


def joint_stats(mixture: Mixture, cameras: bool = True) -> Stats:
    """Return the statistics of the selected frames of all datasets, by common name.

    They are those of one dataset that holds all frames. Vectors are exact, quantiles included; a
    dimension that only some datasets have counts only those. Cameras are joined from the datasets'
    statistics, weighted by frames: exact but for quantiles, which are averaged.
    """
    if mixture.is_single:
        return _renamed(mixture.parts[0], dataset_stats(mixture.datasets[0], cameras=cameras))
    columns = mixture.columns
    stats: Stats = {}
    for key, column in columns.items():
        if column.is_camera or column.dtype == "string":
            continue
        found = _of_column(mixture, key, column)
        if found:
            stats[key] = found
    if cameras:
        of_parts = [_renamed(part, camera_stats(part.dataset)) for part in mixture.parts]
        for key in mixture.cameras:
            stats[key] = merge_summaries([own[key] for own in of_parts if key in own])
    return stats


def _of_column(mixture: Mixture, key: str, column: Column) -> Summary | None:
    """Return the statistics of a column, or None if the datasets' shapes cannot be joined.

    Whoever needs such a column refuses it.
    """
    parts = [part for part in mixture.parts if key in part.columns]
    values = [part.dataset.column(part.own(key)) for part in parts]
    if not mixture.padded(key):
        return summarise(np.concatenate(values) if len(values) > 1 else values[0])
    if not all(is_vector(part.columns[key]) for part in parts):
        return None
    # Between two widths that occur, each dimension exists in the same datasets.
    widths = np.unique([v.shape[1] for v in values])
    cuts: list[Summary] = []
    for first, last in zip([0, *widths[:-1]], widths, strict=True):
        wide = [v[:, first:last] for v in values if v.shape[1] >= last]
        cuts.append(summarise(np.concatenate(wide)))
    joined: Summary = {}
    for name in STATS:
        if name != "count":
            joined[name] = np.concatenate([cut[name] for cut in cuts])
    assert len(joined["mean"]) == column.shape[0]
    return joined | {"count": np.array([sum(len(v) for v in values)])}


def part_stats(
    mixture: Mixture,
    joint: Stats,
    *,
    own: bool,
    cameras: bool = True,
    changed: Callable[[Sequence[MixtureEntry]], Stats] | None = None,
) -> tuple[Stats, ...]:
    """Return the statistics with which each dataset is normalized: the joint ones, or its `own`.

    Dimensions that a dataset lacks get statistics that keep zero at zero. Cameras that it lacks get
    the joint ones.

    Args:
        mixture: the datasets.
        joint: from `joint_stats`.
        own: True to compute those of each dataset.
        cameras: False leaves the cameras out.
        changed: gives statistics that replace the ones of a dataset's frames.
    """
    fitted: list[Stats] = []
    for part in mixture.parts:
        stats: Stats = {}
        if own:
            stats = _renamed(part, dataset_stats(part.dataset, cameras=cameras))
            stats |= changed([part]) if changed else {}
        fitted.append(_fitted(part, joint, stats))
    return tuple(fitted)


def _renamed(part: MixtureEntry, stats: Stats) -> Stats:
    names = part.rename or {}
    return {names.get(key, key): summary for key, summary in stats.items()}


def _fitted(part: MixtureEntry, joint: Stats, own: Stats) -> Stats:
    fitted: Stats = {}
    for key, common in joint.items():
        summary = own.get(key, common)
        if key in part.columns and is_vector(part.columns[key]):
            width = part.columns[key].shape[0]
            summary = _widened(summary, width, len(common["mean"]))
        fitted[key] = summary
    return fitted


def _widened(summary: Summary, width: int, whole: int) -> Summary:
    if width == whole:
        return summary
    wide = dict(summary)
    for name in set(summary) - {"count"}:
        neutral = np.full(whole - width, _NEUTRAL[name])
        wide[name] = np.concatenate([summary[name][:width], neutral])
    return wide
