"""Checks of the metadata against each other: info.json, the episode table and the tasks."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kata.data.arrays import Int64
from kata.data.check.findings import Findings, numbers_text
from kata.data.format.episode_table import EpisodeTable, Span
from kata.data.format.info import Info, raw_info
from kata.data.format.text import REPAIR, byte_order_mark, read_text
from kata.data.format.v3 import read_episode_rows
from kata.data.storage.store import Store
from kata.errors import nearest

_REPAIR = f"{REPAIR} where the files show what is right; else download the dataset again"

_KNOWN_FIELDS = (
    "codebase_version",
    "fps",
    "features",
    "total_episodes",
    "total_frames",
    "total_tasks",
    "total_videos",
    "total_chunks",
    "chunks_size",
    "data_files_size_in_mb",
    "video_files_size_in_mb",
    "data_path",
    "video_path",
    "robot_type",
    "splits",
    "tools",
    "storage_format",
)
"""Fields of info.json that some version of LeRobot writes, or that kata knows."""


def check_texts(root: Path, found: Findings) -> None:
    """Report fields of info.json that no program reads, and texts that LeRobot refuses."""
    path = root / "meta" / "info.json"
    lines = read_text(path).split("\n")
    for name in raw_info(root):
        if name not in _KNOWN_FIELDS:
            number = next((n for n, line in enumerate(lines, 1) if f'"{name}"' in line), 1)
            close = nearest(name, _KNOWN_FIELDS)
            found.warning(
                "unknown fields",
                f"meta/info.json has the field '{name}' in line {number}",
                rule="kata and LeRobot ignore fields that the format does not have",
                remedy=f"did you mean '{close}'?" if close else "none needed",
            )
    for path in sorted([*root.glob("meta/*.json"), *root.glob("meta/*.jsonl")]):
        if byte_order_mark(path):
            found.warning(
                "text",
                f"meta/{path.name} begins with a byte order mark",
                rule="LeRobot reads UTF-8 without a byte order mark",
                remedy=f"none for kata; {REPAIR}",
            )


def check_totals(
    raw: dict[str, Any], layout: EpisodeTable, tasks: list[str], found: Findings
) -> None:
    """Report totals of info.json that differ from what the tables hold."""
    counted = {
        "total_episodes": len(layout.index),
        "total_frames": int(layout.length.sum()),
        "total_tasks": len(tasks),
    }
    for name, number in counted.items():
        if name in raw and raw[name] != number:
            found.error(
                "totals",
                f"meta/info.json says {name} = {raw[name]}, the tables hold {number}",
                rule="info.json counts what the episode and task tables hold",
                remedy=_REPAIR,
            )


def check_numbering(layout: EpisodeTable, found: Findings) -> None:
    """Report holes in the numbering 0, 1, 2, ... of episodes: LeRobot looks them up by position."""
    if not np.array_equal(layout.index, np.arange(len(layout.index))):
        holes = np.setdiff1d(np.arange(int(layout.index.max()) + 1), layout.index)
        found.warning(
            "episode numbers",
            f"the episode table lacks {numbers_text(holes.tolist())}",
            rule="episodes are numbered from 0 without holes; LeRobot finds them by position",
            remedy=_REPAIR,
        )


def check_episode_table(root: Path, info: Info, found: Findings) -> None:
    """Report rows of a v3.0 episode table whose lengths, frame ranges and video times disagree."""
    table = read_episode_rows(root)
    columns = {
        name: np.asarray(table[name].to_numpy())
        for name in table.column_names
        if _is_number(table, name)
    }
    index = columns["episode_index"] if "episode_index" in columns else np.arange(table.num_rows)
    order = np.argsort(index, kind="stable")
    columns = {name: values[order] for name, values in columns.items()}
    index = index[order]
    begin, end = columns["dataset_from_index"], columns["dataset_to_index"]
    length = end - begin
    if "length" in columns:
        _table_rows(
            found,
            index,
            columns["length"] != length,
            "length",
            columns["length"],
            "dataset_to - dataset_from",
            length,
        )
    expected = np.concatenate([[0], end[:-1]])
    _table_rows(
        found,
        index,
        begin != expected,
        "dataset_from_index",
        begin,
        "the episode before ends at",
        expected,
    )
    for key, column in info.columns.items():
        first, last = (columns.get(f"videos/{key}/{edge}_timestamp") for edge in ("from", "to"))
        if column.dtype == "video" and first is not None and last is not None:
            _check_times(key, info.fps, index, length, first, last, found)


def _is_number(table: Any, name: str) -> bool:
    kind = str(table.schema.field(name).type)
    return kind.startswith(("int", "uint", "float", "double"))


def _tell(
    level: Callable[..., None],
    kind: str,
    index: Int64,
    bad: NDArray[np.bool_],
    what: Callable[[int], str],
    rule: str,
) -> None:
    for row in np.flatnonzero(bad).tolist():
        level(
            kind,
            f"episode {index[row]}: {what(row)}",
            rule=rule,
            remedy=_REPAIR,
            episodes=[index[row]],
        )


def _table_rows(
    found: Findings,
    index: Int64,
    bad: NDArray[np.bool_],
    name: str,
    values: Int64,
    other: str,
    expected: Int64,
) -> None:
    def what(row: int) -> str:
        return f"{name} is {values[row]}, {other} {expected[row]}"

    rule = "frame ranges follow each other without gaps, and are as long as their episodes"
    _tell(found.error, "episode table", index, bad, what, rule)


def _check_times(
    key: str,
    fps: int,
    index: Int64,
    length: Int64,
    first: np.ndarray,
    last: np.ndarray,
    found: Findings,
) -> None:
    """Report times of episodes in a video that are no frame boundaries.

    LeRobot's readers use both times; kata counts frames from the first one alone.
    """
    long = np.abs((last - first) * fps - length) > 0.5
    between = np.abs(first * fps - np.rint(first * fps)) > 0.1

    def what(row: int) -> str:
        if long[row]:
            return (
                f"'{key}' lasts {last[row] - first[row]:.4f} s, its frames "
                f"{length[row] / fps:.4f} s"
            )
        return f"'{key}' begins between two frames, at {first[row]:.4f} s"

    rule = "from_timestamp is a whole number of frames, to_timestamp one episode later"
    _tell(found.warning, "video times", index, long | between, what, rule)


def check_tasks(
    root: Path, info: Info, layout: EpisodeTable, tasks: list[str], found: Findings
) -> None:
    """Report a task table that LeRobot cannot use, and sentences of episodes that it lacks."""
    unknown: dict[str, Any] = {}
    for sentences, episode in zip(layout.tasks, layout.index, strict=True):
        unknown |= dict.fromkeys(sentences, episode)
    for task in set(unknown) - set(tasks):
        found.warning(
            "tasks",
            f"episode {unknown[task]} has the task '{task}', which the task table lacks",
            rule="every task of an episode stands in the task table",
            remedy=_REPAIR,
            episodes=[unknown[task]],
        )
    path = root / "meta" / "tasks.parquet"
    if not info.is_v3 or not path.is_file():
        return
    table = pq.read_table(path)
    if table["task_index"].to_pylist() != list(range(table.num_rows)):
        found.error(
            "tasks",
            "meta/tasks.parquet begins with the numbers "
            f"{str(table['task_index'].to_pylist()[:8])[1:-1]}",
            rule="task_index counts the rows from 0; LeRobot finds sentences by position",
            remedy=_REPAIR,
        )
    note = json.loads((table.schema.metadata or {}).get(b"pandas", b"{}"))
    if not note.get("index_columns"):
        found.warning(
            "tasks",
            "meta/tasks.parquet does not say that the sentence is its index",
            rule="LeRobot reads the sentence from the pandas index; without it the task is a "
            "number",
            remedy=REPAIR,
        )


def check_overlaps(layout: EpisodeTable, found: Findings) -> None:
    """Report episodes that claim the same rows of a table or the same frames of a video."""
    _check_overlap("the table", layout.data, layout, found)
    for key, span in layout.videos.items():
        _check_overlap(f"'{key}'", span, layout, found)


def _check_overlap(name: str, span: Span, layout: EpisodeTable, found: Findings) -> None:
    order = np.lexsort((span.first, span.file))
    file = span.file[order]
    first = span.first[order]
    end = first + layout.length[order]
    for place in np.flatnonzero((file[1:] == file[:-1]) & (first[1:] < end[:-1])):
        episodes = layout.index[order[place : place + 2]]
        found.error(
            "overlap",
            f"episodes {episodes[0]} and {episodes[1]} share frames of {name}: {first[place + 1]} "
            "to "
            f"{min(end[place], end[place + 1]) - 1} of {span.files[file[place]]}",
            rule="every frame of a file belongs to one episode",
            remedy=_REPAIR,
            episodes=episodes,
        )


def check_files(store: Store, layout: EpisodeTable, found: Findings) -> None:
    """Report files that episodes need and that do not exist."""
    for span in layout.spans():
        present = store.stamps(span.used())
        for number in np.unique(span.file):
            if span.files[number] not in present:
                episodes = layout.index[span.file == number]
                found.error(
                    "missing files",
                    f"{span.files[number]} is absent: episode{'s' if len(episodes) > 1 else ''} "
                    f"{numbers_text(episodes.tolist())}",
                    rule="every episode has its table file and one file per video camera",
                    remedy=f"download the rest, or use --dataset.episodes=available; {REPAIR}",
                    episodes=episodes,
                )
