"""Statistics of features: reading them, computing them and merging those of several episodes.

Every statistic of an episode is exact. Over all episodes min, max, mean, std and count stay exact,
and so do quantiles of columns that fit in memory. Quantiles of cameras are the frame-weighted mean
of the episodes' quantiles, as in LeRobot 0.6.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kata.data.format.text import read_text
from kata.errors import DataError
from kata.spec import Stats


def is_quantile(stat: str) -> bool:
    """Return True for q01 to q99.

    LeRobot averages them over episodes, so stored values are not the quantiles of the whole.
    """
    return stat in QUANTILES


def load_stats(path: Path) -> Stats:
    """Read a stats.json as float64 arrays.

    Raises:
        DataError: The file is damaged.
    """
    try:
        raw = json.loads(read_text(path))
        return stat_arrays(raw)
    except (ValueError, AttributeError) as error:
        raise DataError(
            f"{path} cannot be read: {error}",
            rule="a JSON object of figures per feature",
            remedy="delete the file (statistics are then computed), or download it again",
        ) from error


def stat_arrays(raw: dict[str, dict[str, Any]]) -> Stats:
    """Turn the lists of a statistics file into float64 arrays."""
    arrays: Stats = {}
    for key, stats in raw.items():
        arrays[key] = {stat: np.atleast_1d(np.asarray(value)) for stat, value in stats.items()}
    return arrays


def complete(stats: Stats) -> Stats:
    """Return the features that have all ten statistics, in their usual order."""
    whole: Stats = {}
    for key, found in stats.items():
        if set(STATS) <= set(found):
            whole[key] = {name: found[name] for name in STATS}
    return whole


QUANTILES = {"q01": 0.01, "q10": 0.10, "q50": 0.50, "q90": 0.90, "q99": 0.99}


STATS_FILE = "meta/stats.json"
STATS = ("min", "max", "mean", "std", "count", *QUANTILES)


Summary = dict[str, NDArray[Any]]
"""The statistics of one feature by name."""


def summarise(values: NDArray[Any]) -> Summary:
    """Return the ten statistics of one column.

    Args:
        values: (N,) or (N, D), one row per frame. Of more axes only the last one stays.
    """
    return moments(values) | quantiles(_flat(values))


def moments(values: NDArray[Any]) -> Summary:
    """Return all statistics but the quantiles: which `merge_summaries` joins exactly."""
    flat = _flat(values)
    return {
        "min": flat.min(axis=0),
        "max": flat.max(axis=0),
        "mean": flat.mean(axis=0),
        "std": flat.std(axis=0),
        "count": np.array([len(values)]),
    }


def _flat(values: NDArray[Any]) -> NDArray[np.float64]:
    return values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1).astype(np.float64)


def quantiles(flat: NDArray[Any]) -> Summary:
    """Return the five quantiles of (N, D) values, linear between neighbours."""
    return dict(zip(QUANTILES, np.quantile(flat, list(QUANTILES.values()), axis=0), strict=True))


class ImageCounts:
    """Statistics of one camera over an episode, from the counts of the 256 levels of each channel.

    Every frame counts, where LeRobot samples. Of frames with a side of 300 pixels or more, a grid
    of about 150 points a side is counted, which costs less than encoding does.

    Args:
        channels: of a frame.
    """

    def __init__(self, channels: int) -> None:
        self._levels = np.zeros((channels, 256), dtype=np.int64)
        self._frames = 0

    def add(self, frame: NDArray[np.uint8]) -> None:
        """Count one frame, uint8 (H, W, C)."""
        side = max(frame.shape[:2])
        stride = max(1, side // 150) if side >= 300 else 1
        for channel, counts in enumerate(self._levels):
            counts += np.bincount(frame[::stride, ::stride, channel].ravel(), minlength=256)
        self._frames += 1

    def summary(self) -> Summary:
        """Return the statistics, each (C, 1, 1), on levels scaled to [0, 1].

        `count` is the number of frames.
        """
        # 1. Exact mean and variance, as sums over 256 levels instead of over pixels.
        levels, counts = np.arange(256) / 255.0, self._levels
        pixels = int(counts[0].sum())
        mean = counts @ levels / pixels
        variance = (counts * (levels - mean[:, None]) ** 2).sum(axis=1) / pixels
        found = {
            "min": np.array([levels[row.nonzero()[0][0]] for row in counts]),
            "max": np.array([levels[row.nonzero()[0][-1]] for row in counts]),
            "mean": mean,
            "std": np.sqrt(np.maximum(variance, 0.0)),
        }
        # 2. Quantiles as np.quantile computes them: between the two neighbours of place q * (n - 1)
        #    in the sorted pixels, which are found in the cumulative counts.
        above = np.cumsum(counts, axis=1)
        for name, q in QUANTILES.items():
            place = q * (pixels - 1)
            low, high = int(np.floor(place)), int(np.ceil(place))
            values: list[float] = []
            for row in above:
                below = levels[np.searchsorted(row, low, side="right")]
                over = levels[np.searchsorted(row, high, side="right")]
                values.append(below + (over - below) * (place - low))
            found[name] = np.array(values)
        shaped: Summary = {name: value.reshape(-1, 1, 1) for name, value in found.items()}
        return shaped | {"count": np.array([self._frames])}


def merge_summaries(parts: Sequence[Summary]) -> Summary:
    """Return the statistics of several parts as one.

    All but the quantiles are exact; those are the count-weighted mean. Means and variances are
    joined as in Chan, Golub and LeVeque (1979).
    """
    counts = np.array([int(part["count"][0]) for part in parts], dtype=np.float64)
    weights = counts / counts.sum()

    def weighted(values: list[NDArray[Any]]) -> NDArray[Any]:
        return np.tensordot(weights, np.stack(values), axes=1)

    mean = weighted([part["mean"] for part in parts])
    merged: Summary = {
        "min": np.min([part["min"] for part in parts], axis=0),
        "max": np.max([part["max"] for part in parts], axis=0),
        "mean": mean,
        "std": np.sqrt(weighted([part["std"] ** 2 + (part["mean"] - mean) ** 2 for part in parts])),
        "count": np.array([int(counts.sum())]),
    }
    for name in QUANTILES:
        values = [part[name] for part in parts if name in part]
        if len(values) == len(parts):
            merged[name] = weighted(values)
    return merged
