"""Declarations that the datasets of a merge share: features, rate, robot, tasks; differences are
named.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kata.data.arrays import Int64
from kata.data.edit.edit_source import SUBTASKS, Part
from kata.errors import DataError
from kata.spec import Column

_SHOWN = 8


@dataclass(frozen=True)
class Common:
    """The declarations of the new dataset.

    renumber: per part, new task_index by old one (-1: not used).
    """

    fps: int
    robot_type: str | None
    features: dict[str, dict[str, Any]]
    columns: dict[str, Column]
    rest: dict[str, Any]
    tasks: list[str]
    renumber: list[Int64]
    notes: list[str]


def common(parts: Sequence[Part], robot_type: str | None = None) -> Common:
    """Return the shared declarations of the parts; task sentences are united and renumbered.

    Args:
        parts: at least one.
        robot_type: a name for the result; without it the parts' own, which must be one.

    Raises:
        DataError: one message with everything that differs.
    """
    _require_equal(parts, robot_type)
    first, notes = parts[0], list[str]()
    tasks, renumber = _tasks(parts)
    for part, new in zip(parts, renumber, strict=True):
        kept = new[new >= 0]
        numbered = _numbering_columns(part)
        if numbered and not np.array_equal(kept, np.flatnonzero(new >= 0)):
            notes.append(
                f"{', '.join(numbered)} of {part.name} may hold task numbers, which stay as they "
                "were"
            )
    rest: dict[str, Any] = {}
    for key, value in first.rest.items():
        if all(part.rest.get(key) == value for part in parts):
            rest[key] = value
    lost = sorted(set[str]().union(*(part.rest for part in parts)) - set(rest))
    notes += [f"info.json: {', '.join(lost)} differ and are left out"] if lost else []
    features = {key: dict(entry) for key, entry in first.features.items()}
    for key, entry in features.items():
        infos = [part.features[key].get("info", {}) for part in parts]
        if any(infos):
            entry["info"] = shared(infos)
    robot = robot_type if robot_type is not None else first.dataset.robot_type
    return Common(first.dataset.fps, robot, features, first.columns, rest, tasks, renumber, notes)


def shared(infos: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the camera facts that all agree on; null where they differ, as LeRobot writes it."""
    empty: dict[str, Any] = {"video.extra_options": {}}
    agreed: dict[str, Any] = {}
    for name in itertools.chain(*infos):
        value = infos[0].get(name)
        is_same = all(info.get(name) == value for info in infos)
        agreed[name] = value if is_same else empty.get(name)
    return agreed


def _require_equal(parts: Sequence[Part], robot_type: str | None) -> None:
    first = parts[0]
    lines: list[str] = []
    for part in parts[1:]:
        found = _differences(first, part)
        if robot_type is None and part.dataset.robot_type != first.dataset.robot_type:
            found.append(
                f"robot_type: {first.dataset.robot_type!r} and {part.dataset.robot_type!r}"
            )
        if found:
            more = [f"... and {len(found) - _SHOWN} more"] if len(found) > _SHOWN else []
            lines += [
                f"{first.name} and {part.name} differ:",
                *(f"  {line}" for line in [*found[:_SHOWN], *more]),
            ]
    if lines:
        raise DataError(
            "\n".join(lines),
            rule="datasets that are merged have equal features, shapes, names, fps and robot type",
            remedy="leave a feature out with --drop=[<name>], name the robot with "
            "--robot_type=<text>, "
            "or bring cameras to one size with `kata data transcode`",
        )


def _differences(one: Part, other: Part) -> list[str]:
    found: list[str] = []
    if one.dataset.fps != other.dataset.fps:
        found.append(f"fps: {one.dataset.fps} and {other.dataset.fps}")
    for key in dict.fromkeys([*one.columns, *other.columns]):
        ours, theirs = one.columns.get(key), other.columns.get(key)
        if ours is None or theirs is None:
            found.append(f"{key}: only in {(one if theirs is None else other).name}")
        elif (ours.dtype, ours.shape) != (theirs.dtype, theirs.shape):
            found.append(
                f"{key}: {ours.dtype} {list(ours.shape)} and {theirs.dtype} {list(theirs.shape)}"
            )
        elif ours.names != theirs.names:
            found.append(f"{key}: names {_short(ours.names)} and {_short(theirs.names)}")
        elif (key in one.unread) != (key in other.unread):
            found.append(f"{key}: depth in only one of them")
    paths = [part.root / SUBTASKS for part in (one, other)]
    texts = [path.read_bytes() if path.is_file() else b"" for path in paths]
    if texts[0] != texts[1]:
        found.append(f"{SUBTASKS}: other subtasks, and 'subtask_index' is not renumbered")
    return found


def _short(names: tuple[str, ...] | None) -> str:
    text = ", ".join(names or ("none",))
    return text if len(text) < 60 else text[:57] + "..."


def _tasks(parts: Sequence[Part]) -> tuple[list[str], list[Int64]]:
    used = [np.unique(part.dataset.column("task_index")) for part in parts]
    for part, numbers in zip(parts, used, strict=True):
        _require_known(part, numbers)
    if len(parts) == 1 and (parts[0].dataset.is_whole or _numbering_columns(parts[0])):
        tasks = parts[0].dataset.tasks
        return list(tasks), [np.arange(len(tasks))]
    united: dict[str, int] = {}
    renumber: list[Int64] = []
    for part, numbers in zip(parts, used, strict=True):
        keep = range(len(part.dataset.tasks)) if part.dataset.is_whole else numbers.tolist()
        new = np.full(len(part.dataset.tasks), -1)
        for number in keep:
            new[number] = united.setdefault(part.dataset.tasks[number], len(united))
        renumber.append(new)
    return list(united), renumber


def _require_known(part: Part, used: Int64) -> None:
    count = len(part.dataset.tasks)
    if used.size and (used[0] < 0 or used[-1] >= count):
        bad = used[0] if used[0] < 0 else used[-1]
        raise DataError(
            f"{part.name}: a frame has task_index {bad}, there are {count} tasks",
            rule=f"task_index lies between 0 and {count - 1}",
            remedy="repair meta/tasks, or leave the episode out with --exclude",
        )


def _numbering_columns(part: Part) -> list[str]:
    """Columns that may point at tasks: whole numbers called annotation.*, as GR00T's format has
    them.
    """
    return [k for k, c in part.columns.items() if k.startswith("annotation.") and "int" in c.dtype]
