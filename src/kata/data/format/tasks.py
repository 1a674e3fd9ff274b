"""Language tasks: the sentence of each task_index."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kata.data.arrays import Int64
from kata.data.format.episode_table import EpisodeTable
from kata.data.format.info import Info
from kata.data.format.json_lines import json_lines
from kata.data.storage.lfs_pointer import refuse_pointer
from kata.errors import DataError


def read_tasks(root: Path, info: Info, layout: EpisodeTable, notes: list[str]) -> list[str]:
    """Return the sentences by task_index.

    Without a task file these are the episodes' tasks, in order of appearance, and a note is added.
    """
    path = root / "meta" / ("tasks.parquet" if info.is_v3 else "tasks.jsonl")
    if not path.is_file():
        found = list(dict.fromkeys(itertools.chain.from_iterable(layout.tasks)))
        notes.append(
            f"meta/{path.name} is absent: "
            + ("tasks come from the episodes" if found else "no tasks")
        )
        return found or [""]
    pairs = _from_parquet(path) if info.is_v3 else _from_lines(path)
    tasks = [""] * (max(pairs, default=0) + 1)
    for number, task in pairs.items():
        tasks[number] = task
    return tasks


def task_numbers(layout: EpisodeTable, tasks: list[str]) -> Int64:
    """Return the number of each episode's first task, (E,), for data without the column
    task_index.
    """
    number = {task: place for place, task in enumerate(tasks)}
    known = np.array([number.get(name, 0) for name in layout.tasks.names] + [0], dtype=np.int64)
    return known[layout.tasks.first()]


def check_task_range(name: str, low: int, high: int, tasks: list[str]) -> None:
    """Raise DataError unless the smallest and the largest task_index of some frames name tasks."""
    if low < 0 or high >= len(tasks):
        raise DataError(
            f"a frame of {name} has task_index {low if low < 0 else high}, but the dataset has "
            f"{len(tasks)} tasks",
            rule=f"task_index lies between 0 and {len(tasks) - 1}",
            remedy="repair the task file of the dataset, or download it again",
        )


def _from_lines(path: Path) -> dict[int, str]:
    return {
        int(row["task_index"]): str(row["task"]) for row in json_lines(path, ("task_index", "task"))
    }


def _from_parquet(path: Path) -> dict[int, str]:
    """Read a pandas frame whose index is the sentence; in old files that index has no name."""
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        refuse_pointer(path)
        raise _bad(path, f"cannot be read: {error}") from error
    sentence = next(
        (name for name in ("task", "__index_level_0__") if name in table.column_names), None
    )
    if sentence is None or "task_index" not in table.column_names:
        raise _bad(path, f"has the columns {', '.join(table.column_names)}")
    numbers, sentences = table["task_index"].to_pylist(), table[sentence].to_pylist()
    return {int(number): str(task) for number, task in zip(numbers, sentences, strict=True)}


def _bad(path: Path, what: str) -> DataError:
    return DataError(
        f"{path} {what}",
        rule="the columns task_index and task",
        remedy="download the dataset again",
    )
