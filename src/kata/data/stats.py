"""Statistics of exactly the selected frames; what was sampled is said in the dataset's notes."""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from kata.data.dataset import Dataset
from kata.data.layout_v2 import json_lines
from kata.data.layout_v3 import episode_table
from kata.data.measure import STATS, ImageCounts, Summary, merge, summarise
from kata.data.order import Int64
from kata.errors import DataError
from kata.spec import Stats

SAMPLED_FRAMES = 500
"""Most frames decoded for camera statistics: a mean over 500 frames is steadier than any policy can tell."""


def column_stats(dataset: Dataset) -> Stats:
    """All table columns with numbers: population figures over every selected frame, in float64."""
    keys = [key for key, column in dataset.columns.items() if not column.is_camera and column.dtype != "string"]
    return {key: summarise(dataset.column(key)) for key in keys}


def camera_stats(dataset: Dataset) -> Stats:
    """All cameras, (C, 1, 1) in [0, 1]: the dataset's own where complete, else from sampled frames."""
    own = {key: summary for key, summary in _own(dataset).items() if key in dataset.cameras}
    sampled = [key for key in dataset.cameras if key not in own]
    return own | _sampled(dataset, sampled) if sampled else own


def sample_rows(lengths: Int64) -> Int64:
    """Evenly spread rows: as many as LeRobot takes (length ** 0.75 an episode, at least 100), at most 500."""
    per_episode = np.maximum(np.minimum(100, lengths), np.minimum((lengths**0.75).astype(np.int64), 10_000))
    count = min(int(per_episode.sum()), SAMPLED_FRAMES)
    return np.linspace(0, int(lengths.sum()) - 1, count).round().astype(np.int64)


def _sampled(dataset: Dataset, keys: list[str]) -> Stats:
    from kata.data.reader import Reader

    rows = sample_rows(dataset.layout.length)
    counts = {key: ImageCounts(dataset.columns[key].shape[2]) for key in keys}
    with Reader(dataset, {}, keys=keys) as reader:
        for part in np.array_split(rows, max(1, len(rows) // 16)):
            batch = reader.read(part)
            for key in keys:
                for frame in batch[key]:
                    counts[key].add(frame)
    _note(dataset, f"statistics of {', '.join(keys)} come from {len(rows)} evenly spread frames")
    return {key: count.summary() for key, count in counts.items()}


def _own(dataset: Dataset) -> Stats:
    """The dataset's stored statistics of exactly the selected episodes, where all ten figures are there."""
    path = dataset.root / "meta" / "stats.json"
    if dataset.is_whole and path.is_file():
        return _complete(_load(path))
    parts = _per_episode(dataset)
    merged = {key: merge(found) for key, found in parts.items() if len(found) == len(dataset.layout.index)}
    return _complete(merged)


def _per_episode(dataset: Dataset) -> dict[str, list[Summary]]:
    """Stored camera statistics of the selected episodes; a camera lacks those of an episode that has none."""
    parts: dict[str, list[Summary]] = {key: [] for key in dataset.cameras}
    wanted = set(dataset.layout.index.tolist())
    for number, stored in _stored_rows(dataset):
        for key, found in parts.items():
            if number in wanted and STATS[0] in stored.get(key, {}):
                found.append(stored[key])
    return parts


def _stored_rows(dataset: Dataset) -> list[tuple[int, Stats]]:
    if dataset.info.is_v3:
        return _rows_v3(dataset)
    path = dataset.root / "meta" / "episodes_stats.jsonl"
    if not path.is_file():
        return []
    lines = json_lines(path, ("episode_index", "stats"))
    return [(int(line["episode_index"]), _arrays(line["stats"])) for line in lines]


def _rows_v3(dataset: Dataset) -> list[tuple[int, Stats]]:
    table = episode_table(dataset.root, prefix="stats/")
    names = [f"stats/{key}/{stat}" for key in dataset.cameras for stat in STATS]
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
        rows.append((int(row["episode_index"]), _arrays(stored)))
    return rows


def _load(path: Any) -> Stats:
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        return _arrays(raw)
    except (ValueError, AttributeError) as error:
        raise DataError(
            f"{path} cannot be read: {error}",
            rule="a JSON object of figures per feature",
            remedy="delete the file (statistics are then computed), or download it again",
        ) from error


def _arrays(raw: dict[str, dict[str, Any]]) -> Stats:
    return {key: {stat: np.atleast_1d(np.asarray(v)) for stat, v in stats.items()} for key, stats in raw.items()}


def _complete(stats: Stats) -> Stats:
    return {key: {name: found[name] for name in STATS} for key, found in stats.items() if set(STATS) <= set(found)}


def _note(dataset: Dataset, text: str) -> None:
    if text not in dataset.notes:
        dataset.notes.append(text)
