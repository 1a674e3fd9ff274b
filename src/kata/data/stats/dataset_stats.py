"""Statistics of exactly the selected frames; a note of the dataset names what was sampled."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kata.data.arrays import Int64
from kata.data.dataset.dataset import Dataset
from kata.data.format.feature_stats import (
    STATS,
    ImageCounts,
    Summary,
    complete,
    load_stats,
    merge_summaries,
    stat_arrays,
    summarise,
)
from kata.data.format.json_lines import json_lines
from kata.data.format.v3 import read_episode_rows
from kata.spec import Stats

SAMPLED_FRAMES = 500
"""Most frames decoded for camera statistics: no policy is sensitive to the error of a mean over 500
frames.
"""


def dataset_stats(dataset: Dataset, cameras: bool = True) -> Stats:
    """Compute the statistics of the selected frames, per feature.

    These are min, max, mean, std, count, q01, q10, q50, q90 and q99. Vectors (D,) and scalars (1,)
    are exact over all frames. Features of higher rank pool all axes but the last. Cameras (C, 1, 1)
    in [0, 1] get the stored values where these describe exactly the selected episodes. Otherwise
    they come from sampled frames, and a line in the dataset's `notes` says so.

    Args:
        dataset: the selected episodes are measured.
        cameras: False leaves the cameras out; then nothing is decoded.
    """
    result = column_stats(dataset)
    if cameras:
        result |= camera_stats(dataset)
    return result


def column_stats(dataset: Dataset) -> Stats:
    """Return the statistics of all table columns with numbers, over every selected frame, in
    float64.
    """
    keys = [
        key
        for key, column in dataset.columns.items()
        if not column.is_camera and column.dtype != "string"
    ]
    return {key: summarise(dataset.column(key)) for key in keys}


def camera_stats(dataset: Dataset) -> Stats:
    """Return the statistics of all cameras, each (C, 1, 1) in [0, 1].

    These are the stored ones where they are complete, else those of sampled frames.
    """
    own = {key: summary for key, summary in _own(dataset).items() if key in dataset.cameras}
    sampled = [key for key in dataset.cameras if key not in own]
    if not sampled:
        return own
    rows = sample_rows(dataset.layout.length)
    _note(dataset, f"statistics of {', '.join(sampled)} come from {len(rows)} evenly spread frames")
    return own | frame_stats(dataset, sampled, rows)


def sample_rows(lengths: Int64) -> Int64:
    """Return evenly spread rows: as many as LeRobot takes, but at most 500 in all."""
    count = min(int(_sampled_of(lengths).sum()), SAMPLED_FRAMES)
    return np.linspace(0, int(lengths.sum()) - 1, count).round().astype(np.int64)


def episode_sample_rows(lengths: Int64) -> Int64:
    """Return the rows that LeRobot samples: evenly spread ones of each episode."""
    starts, counts = np.cumsum(lengths) - lengths, _sampled_of(lengths)
    parts = [
        start + np.linspace(0, length - 1, count).round().astype(np.int64)
        for start, length, count in zip(starts, lengths, counts, strict=True)
    ]
    return np.concatenate(parts)


def _sampled_of(lengths: Int64) -> Int64:
    """Return LeRobot's number of sampled frames per episode.

    It is length ** 0.75, at least 100 (or all frames) and at most 10,000.
    """
    return np.maximum(
        np.minimum(100, lengths), np.minimum((lengths**0.75).astype(np.int64), 10_000)
    )


def frame_stats(
    dataset: Dataset,
    keys: Sequence[str],
    rows: Int64,
    progress: Callable[[int, int], None] | None = None,
) -> Stats:
    """Return statistics of cameras over decoded frames.

    Args:
        dataset: the dataset.
        keys: of the cameras.
        rows: (n,) rows to decode.
        progress: called with the number of decoded and of all rows.

    Returns:
        (C, 1, 1) in [0, 1] each; `count` is the number of rows.
    """
    from kata.data.loader.reader import Reader

    counts = {key: ImageCounts(dataset.columns[key].shape[2]) for key in keys}
    done = 0
    with Reader(dataset, {}, keys=keys) as reader:
        for part in np.array_split(rows, max(1, len(rows) // 16)):
            batch = reader.read(part)
            for key in keys:
                for frame in batch[key]:
                    counts[key].add(frame)
            done += len(part)
            if progress:
                progress(done, len(rows))
    return {key: count.summary() for key, count in counts.items()}


def stored_stats(dataset: Dataset, keys: Sequence[str]) -> tuple[Stats, str]:
    """Return the stored statistics of exactly the selected episodes, and the name of their source.

    The source is meta/stats.json for a whole dataset, else the joined statistics of the episodes;
    ({}, '') if there are none.
    """
    path = dataset.root / "meta" / "stats.json"
    if dataset.is_whole and path.is_file():
        return {
            key: stats for key, stats in load_stats(path).items() if key in keys
        }, "meta/stats.json"
    if dataset.is_cut:
        return {}, ""
    parts = _per_episode(dataset, keys)
    merged = {
        key: merge_summaries(found)
        for key, found in parts.items()
        if len(found) == len(dataset.layout.index)
    }
    return merged, ("the statistics of the episodes" if merged else "")


class Difference(NamedTuple):
    """A statistic of a feature that differs from the data.

    Attributes:
        key: the feature.
        stat: name of the statistic.
        found: of the data, flat.
        stored: as stored, flat.
        off: largest distance of the two.
    """

    key: str
    stat: str
    found: NDArray[Any]
    stored: NDArray[Any]
    off: float


def differences(found: Stats, stored: Stats, *, sampled: Sequence[str] = ()) -> list[Difference]:
    """Return the stored statistics that differ from those of the data.

    Equal means within 1e-4 of the feature's range: numbers are float32, and sums are rounded in
    their order. Features in `sampled` come from other frames than the stored ones; of these mean
    and std are compared, within 0.02.
    """
    rows: list[Difference] = []
    for key, stats in stored.items():
        for stat in (name for name in STATS if name in stats and key in found):
            if key in sampled and stat not in ("mean", "std"):
                continue
            ours = found[key][stat].reshape(-1).astype(float)
            theirs = stats[stat].reshape(-1).astype(float)
            allowed = 0.5
            if stat != "count":
                span = float(np.max(found[key]["max"] - found[key]["min"], initial=0.0))
                allowed = 0.02 if key in sampled else 1e-4 * span
                allowed += 1e-6 * float(np.abs(ours).max()) + 1e-9
            same_shape = ours.shape == theirs.shape and np.isfinite(theirs).all()
            off = float(np.abs(ours - theirs).max()) if same_shape else np.inf
            if off > allowed:
                rows.append(Difference(key, stat, ours, theirs, off))
    return rows


def _own(dataset: Dataset) -> Stats:
    """Return the cameras' stored statistics of exactly the selected episodes, where all ten are
    present.
    """
    return complete(stored_stats(dataset, list(dataset.cameras))[0])


def _per_episode(dataset: Dataset, keys: Sequence[str]) -> dict[str, list[Summary]]:
    """Return the stored statistics of the selected episodes, by feature, without episodes that have
    none.
    """
    parts: dict[str, list[Summary]] = {key: [] for key in keys}
    wanted = set(dataset.layout.index.tolist())
    for number, stored in episode_stats(dataset, keys):
        for key, found in parts.items():
            if number in wanted and STATS[0] in stored.get(key, {}):
                found.append(stored[key])
    return parts


def episode_stats(dataset: Dataset, keys: Sequence[str]) -> list[tuple[int, Stats]]:
    """Return the stored statistics of every episode that has some, with its index.

    At least the features in `keys` are read.
    """
    if dataset.info.is_v3:
        return _rows_v3(dataset, keys)
    path = dataset.root / "meta" / "episodes_stats.jsonl"
    if not path.is_file():
        return []
    lines = json_lines(path, ("episode_index", "stats"))
    return [(int(line["episode_index"]), stat_arrays(line["stats"])) for line in lines]


def _rows_v3(dataset: Dataset, keys: Sequence[str]) -> list[tuple[int, Stats]]:
    table = read_episode_rows(dataset.root, prefix="stats/")
    wanted = itertools.product(keys, STATS)
    names = [f"stats/{key}/{stat}" for key, stat in wanted]
    names = [name for name in names if name in table.column_names]
    if not names or "episode_index" not in table.column_names:
        return []
    rows: list[tuple[int, Stats]] = []
    for row in table.select(["episode_index", *names]).to_pylist():
        stored: dict[str, dict[str, Any]] = {}
        for name in names:
            _, key, stat = name.split("/")
            if row[name] is not None:
                stored.setdefault(key, {})[stat] = row[name]
        rows.append((int(row["episode_index"]), stat_arrays(stored)))
    return rows


def _note(dataset: Dataset, text: str) -> None:
    if text not in dataset.notes:
        dataset.notes.append(text)
