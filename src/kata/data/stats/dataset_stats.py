"""Statistics of exactly the selected frames; what was sampled is said in the dataset's notes."""

from __future__ import annotations

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
    merge,
    stat_arrays,
    summarise,
)
from kata.data.format.json_lines import json_lines
from kata.data.format.v3 import episode_table
from kata.spec import Stats

SAMPLED_FRAMES = 500
"""Most frames decoded for camera statistics: a mean over 500 frames is steadier than any policy
can tell.
"""


def dataset_stats(dataset: Dataset, cameras: bool = True) -> Stats:
    """Compute min, max, mean, std, count, q01, q10, q50, q90 and q99 of the selected frames, per
    feature.

    Vectors (D,) and scalars (1,) are exact over all frames. Features of higher rank pool all axes
    but the last. Cameras (C, 1, 1) in [0, 1] are the stored ones where these describe exactly the
    selected episodes. Otherwise they come from sampled frames, which a line in the dataset's
    `notes` then states.

    Args:
        dataset: the selected episodes are measured.
        cameras: False leaves the cameras out; nothing is decoded then.
    """
    result = column_stats(dataset)
    if cameras:
        result |= camera_stats(dataset)
    return result


def column_stats(dataset: Dataset) -> Stats:
    """All table columns with numbers: population figures over every selected frame, in float64."""
    keys = [
        key
        for key, column in dataset.columns.items()
        if not column.is_camera and column.dtype != "string"
    ]
    return {key: summarise(dataset.column(key)) for key in keys}


def camera_stats(dataset: Dataset) -> Stats:
    """All cameras, (C, 1, 1) in [0, 1]: the dataset's own where complete, else from sampled
    frames.
    """
    own = {key: summary for key, summary in _own(dataset).items() if key in dataset.cameras}
    sampled = [key for key in dataset.cameras if key not in own]
    if not sampled:
        return own
    rows = sample_rows(dataset.layout.length)
    _note(dataset, f"statistics of {', '.join(sampled)} come from {len(rows)} evenly spread frames")
    return own | frame_stats(dataset, sampled, rows)


def sample_rows(lengths: Int64) -> Int64:
    """Evenly spread rows: as many as LeRobot takes, but no more than 500 in all."""
    count = min(int(_sampled_of(lengths).sum()), SAMPLED_FRAMES)
    return np.linspace(0, int(lengths.sum()) - 1, count).round().astype(np.int64)


def episode_sample_rows(lengths: Int64) -> Int64:
    """The rows that LeRobot samples: of each episode evenly spread ones."""
    starts, counts = np.cumsum(lengths) - lengths, _sampled_of(lengths)
    parts = [
        start + np.linspace(0, length - 1, count).round().astype(np.int64)
        for start, length, count in zip(starts, lengths, counts, strict=True)
    ]
    return np.concatenate(parts)


def _sampled_of(lengths: Int64) -> Int64:
    """LeRobot's number of sampled frames per episode: length ** 0.75, but at least 100 (or all)
    and at most 10,000.
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
    """Statistics of these cameras over the decoded frames `rows`, (C, 1, 1) in [0, 1]; count is
    their number.
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
    """The statistics that the dataset brings for exactly the selected episodes, and the name of
    where they lie.

    meta/stats.json for a whole dataset, else those of the episodes joined; ({}, '') where there are
    none.
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
        key: merge(found) for key, found in parts.items() if len(found) == len(dataset.layout.index)
    }
    return merged, ("the statistics of the episodes" if merged else "")


class Difference(NamedTuple):
    """One figure of one feature that is not what the data give; both as flat arrays, `off` their
    largest distance.
    """

    key: str
    stat: str
    found: NDArray[Any]
    stored: NDArray[Any]
    off: float


def differences(found: Stats, stored: Stats, *, sampled: Sequence[str] = ()) -> list[Difference]:
    """Where stored statistics are not those of the data.

    Equal means within 1e-4 of the feature's range: numbers are float32, and sums are rounded in
    their order. Of the features in `sampled`, which come from other frames than the stored ones,
    mean and std are compared, within 0.02.
    """
    rows: list[Difference] = []
    for key, stats in stored.items():
        for stat in (name for name in STATS if name in stats and key in found):
            if key in sampled and stat not in ("mean", "std"):
                continue
            ours, theirs = (
                found[key][stat].reshape(-1).astype(float),
                stats[stat].reshape(-1).astype(float),
            )
            span = float(np.max(found[key]["max"] - found[key]["min"], initial=0.0))
            allowed = 0.5 if stat == "count" else 0.02 if key in sampled else 1e-4 * span
            allowed += 0.0 if stat == "count" else 1e-6 * float(np.abs(ours).max()) + 1e-9
            same_shape = ours.shape == theirs.shape and np.isfinite(theirs).all()
            off = float(np.abs(ours - theirs).max()) if same_shape else np.inf
            if off > allowed:
                rows.append(Difference(key, stat, ours, theirs, off))
    return rows


def _own(dataset: Dataset) -> Stats:
    """The dataset's stored statistics of exactly the selected episodes, where all ten figures
    are there.
    """
    return complete(stored_stats(dataset, list(dataset.cameras))[0])


def _per_episode(dataset: Dataset, keys: Sequence[str]) -> dict[str, list[Summary]]:
    """Stored statistics of the selected episodes; a feature lacks those of an episode that has
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
    """The stored statistics of every episode that has some, with its index; those of `keys` at
    least.
    """
    if dataset.info.is_v3:
        return _rows_v3(dataset, keys)
    path = dataset.root / "meta" / "episodes_stats.jsonl"
    if not path.is_file():
        return []
    lines = json_lines(path, ("episode_index", "stats"))
    return [(int(line["episode_index"]), stat_arrays(line["stats"])) for line in lines]


def _rows_v3(dataset: Dataset, keys: Sequence[str]) -> list[tuple[int, Stats]]:
    table = episode_table(dataset.root, prefix="stats/")
    names = [f"stats/{key}/{stat}" for key in keys for stat in STATS]
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
