"""Statistics of a mixture: of all its frames together, and as each of its datasets is
normalised.
"""

from __future__ import annotations

import numpy as np

from kata.data.dataset.mixture import Mixture, MixtureEntry, is_vector
from kata.data.format.feature_stats import STATS, Summary, merge, summarise
from kata.data.stats.dataset_stats import camera_stats, dataset_stats
from kata.spec import Column, Stats

_NEUTRAL = dict(zip(STATS, (-1, 1, 0, 1, 0, -1, -1, 0, 1, 1), strict=True))
"""Statistics under which zero stays zero in every mode, for dimensions that a dataset does not
have.
"""


def joint_stats(mixture: Mixture, cameras: bool = True) -> Stats:
    """Statistics of the selected frames of all datasets, by common name, as of one dataset that
    holds them all.

    Vectors are exact, quantiles included; a dimension that only some datasets have is summed over
    those. Cameras are joined from the datasets' own figures, weighted by frames: exact but for
    quantiles, whose mean is taken.
    """
    columns = mixture.columns
    stats: Stats = {}
    for key, column in columns.items():
        if (
            not column.is_camera
            and column.dtype != "string"
            and (found := _of_column(mixture, key, column))
        ):
            stats[key] = found
    if cameras:
        found = [_renamed(part, camera_stats(part.dataset)) for part in mixture.parts]
        stats |= {key: merge([own[key] for own in found if key in own]) for key in mixture.cameras}
    return stats


def _of_column(mixture: Mixture, key: str, column: Column) -> Summary | None:
    """None where the datasets' shapes cannot be joined; whoever needs that column refuses it."""
    parts = [part for part in mixture.parts if key in part.columns]
    values = [part.dataset.column(part.own(key)) for part in parts]
    if not mixture.padded(key):
        return summarise(np.concatenate(values) if len(values) > 1 else values[0])
    if not all(is_vector(part.columns[key]) for part in parts):
        return None
    widths = np.unique([v.shape[1] for v in values])
    cuts = [
        summarise(np.concatenate([v[:, first:last] for v in values if v.shape[1] >= last]))
        for first, last in zip([0, *widths[:-1]], widths, strict=True)
    ]
    joined: Summary = {
        name: np.concatenate([cut[name] for cut in cuts]) for name in STATS if name != "count"
    }
    assert len(joined["mean"]) == column.shape[0]
    return joined | {"count": np.array([sum(len(v) for v in values)])}


def part_stats(
    mixture: Mixture, joint: Stats, *, own: bool, cameras: bool = True
) -> tuple[Stats, ...]:
    """What each dataset is normalised with: the joint statistics, or its `own`.

    Dimensions that a dataset lacks get figures that leave zero at zero; cameras that it lacks get
    the joint ones.
    """
    return tuple(
        _fitted(
            part, joint, _renamed(part, dataset_stats(part.dataset, cameras=cameras)) if own else {}
        )
        for part in mixture.parts
    )


def _renamed(part: MixtureEntry, stats: Stats) -> Stats:
    names = part.rename or {}
    return {names.get(key, key): summary for key, summary in stats.items()}


def _fitted(part: MixtureEntry, joint: Stats, own: Stats) -> Stats:
    fitted: Stats = {}
    for key, common in joint.items():
        summary = own.get(key, common)
        width = (
            part.columns[key].shape[0]
            if key in part.columns and is_vector(part.columns[key])
            else None
        )
        fitted[key] = summary if width is None else _widened(summary, width, len(common["mean"]))
    return fitted


def _widened(summary: Summary, width: int, whole: int) -> Summary:
    if width == whole:
        return summary
    return {
        name: value
        if name == "count"
        else np.concatenate([value[:width], np.full(whole - width, _NEUTRAL[name])])
        for name, value in summary.items()
    }
