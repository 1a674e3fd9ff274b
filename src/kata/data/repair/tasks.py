"""Repairs of the task table: sentences, order, and the note by which LeRobot reads them."""

from __future__ import annotations

import itertools
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kata.data.format.episode_table import EpisodeTable
from kata.data.format.info import Info, read_info
from kata.data.format.read import read_episode_table
from kata.data.format.tasks import read_tasks
from kata.data.format.v3 import TASKS_FILE
from kata.data.repair.working_copy import WorkingCopy
from kata.data.writing.arrow_tables import task_table

_LINES = "meta/tasks.jsonl"


def repair_tasks(copy: WorkingCopy) -> None:
    """Write the task table where it is absent, lacks a sentence, or is read wrongly by LeRobot.

    Raises:
        DataError: The metadata cannot be read.
    """
    info = read_info(copy.root)
    layout = read_episode_table(copy.root, info, lambda _: None, [])
    name = TASKS_FILE if info.is_v3 else _LINES
    if not (copy.root / name).is_file():
        tasks = _from_rows(copy, layout)
        if tasks is None:
            copy.leave(
                "tasks",
                f"{name} is absent, and the episodes do not tell which sentence has which number",
            )
            return
        copy.changed("tasks", f"{name} is made of the tasks of the episodes: {len(tasks)}")
        _write(copy, info, tasks)
        return
    tasks = read_tasks(copy.root, info, layout, [])
    used = dict.fromkeys(itertools.chain(*layout.tasks))
    lacking = [task for task in used if task not in tasks]
    if lacking:
        tasks += lacking
        copy.changed("tasks", f"{name} has the sentences of all episodes: {len(lacking)} more")
    is_good = not info.is_v3 or _is_good(copy, copy.root / TASKS_FILE, tasks)
    if lacking or not is_good:
        _write(copy, info, tasks)


def _write(copy: WorkingCopy, info: Info, tasks: list[str]) -> None:
    if info.is_v3:
        copy.replace(
            TASKS_FILE, lambda path: pq.write_table(task_table(tasks), path, compression="snappy")
        )
    else:
        copy.write_lines(
            _LINES, [{"task_index": number, "task": task} for number, task in enumerate(tasks)]
        )


def _is_good(copy: WorkingCopy, path: Path, tasks: list[str]) -> bool:
    """Return whether LeRobot reads the table as kata does; note what keeps it from that."""
    table = pq.read_table(path)
    numbers = table["task_index"].to_pylist()
    note = json.loads((table.schema.metadata or {}).get(b"pandas", b"{}"))
    is_index, is_ordered = bool(note.get("index_columns")), numbers == list(range(len(numbers)))
    if sorted(numbers) != list(range(len(numbers))):
        copy.leave(
            "tasks", f"{path.name} has the numbers {str(numbers[:8])[1:-1]}, with holes or twice"
        )
        return True
    if not is_ordered:
        copy.changed("tasks", f"the rows of {path.name} are ordered by task_index")
    if not is_index:
        copy.changed("tasks", f"{path.name} says that the sentence is its index")
    return is_index and is_ordered


def _from_rows(copy: WorkingCopy, layout: EpisodeTable) -> list[str] | None:
    """Return the sentences by number where every episode has one of each, and they fit together."""
    found: dict[int, str] = {}
    for position, (file, first, length) in enumerate(
        zip(
            layout.data.file.tolist(),
            layout.data.first.tolist(),
            layout.length.tolist(),
            strict=True,
        )
    ):
        sentences = layout.tasks[position]
        try:
            column = pq.read_table(copy.root / layout.data.files[file], columns=["task_index"])[
                "task_index"
            ]
        except (pa.ArrowException, UnicodeDecodeError, OSError, KeyError):
            return None
        numbers = np.unique(column.slice(first, length).to_numpy())
        if (
            len(sentences) != 1
            or len(numbers) != 1
            or found.setdefault(int(numbers[0]), sentences[0]) != sentences[0]
        ):
            return None
    tasks = [found[number] for number in sorted(found)]
    return (
        tasks
        if sorted(found) == list(range(len(found))) and len(set(tasks)) == len(tasks)
        else None
    )
