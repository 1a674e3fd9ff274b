"""Columns that are joined from others: `action` out of `action.joints` and `action.gripper_close`.

The parts stand behind each other along the last axis, in the order that the user gives. They are no
columns of the dataset any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kata.errors import DataError, did_you_mean
from kata.spec import BOOKKEEPING, Column

Concat: TypeAlias = Mapping[str, Sequence[str]]
"""Joined column -> its parts, in order."""


def join_columns(repo_id: str, columns: Mapping[str, Column], concat: Concat) -> dict[str, Column]:
    """Return the columns with each joined one in the place of its first part.

    Raises: DataError for a part that is absent or no vector, and for a name that is taken.
    """
    places: dict[str, list[str]] = {}
    gone: set[str] = set()
    for key, parts in concat.items():
        _check(repo_id, columns, key, parts)
        places.setdefault(parts[0], []).append(key)
        gone.update(parts)
    result: dict[str, Column] = {}
    for key, column in columns.items():
        for joined in places.get(key, []):
            result[joined] = _joined(columns, concat[joined])
        if key not in gone:
            result[key] = column
    return result


def parts_of(columns: Mapping[str, Column], concat: Concat) -> dict[str, dict[str, Column]]:
    """Return the parts of each joined column, in order."""
    found: dict[str, dict[str, Column]] = {}
    for key, parts in concat.items():
        found[key] = {part: columns[part] for part in parts}
    return found


def join_values(parts: Sequence[NDArray[Any]]) -> NDArray[np.float32]:
    """Return the parts' rows behind each other: float32 (rows, D), or (rows,) for one number.

    Args:
        parts: (rows, d) or (rows,) of any numbers.
    """
    rows = len(parts[0])
    columns = [part.reshape(rows, -1).astype(np.float32, copy=False) for part in parts]
    joined = np.concatenate(columns, axis=1)
    return joined[:, 0] if joined.shape[1] == 1 else joined


def _joined(columns: Mapping[str, Column], parts: Sequence[str]) -> Column:
    size = sum(columns[part].shape[0] for part in parts)
    return Column("float32", (size,), _names(columns, parts))


def _names(columns: Mapping[str, Column], parts: Sequence[str]) -> tuple[str, ...]:
    """Return a name for each dimension: the parts' own where all differ, else `<part>.<name>`."""
    own: list[str] = []
    whole: list[str] = []
    for part in parts:
        column, last = columns[part], part.rpartition(".")[2]
        if column.names is not None:
            own += column.names
            whole += [f"{last}.{name}" for name in column.names]
            continue
        numbered = [last] if column.shape == (1,) else [f"{last}.{i}" for i in _range(column)]
        own += numbered
        whole += numbered
    return tuple(own if len(set(own)) == len(own) else whole)


def _range(column: Column) -> range:
    return range(column.shape[0])


def _check(repo_id: str, columns: Mapping[str, Column], key: str, parts: Sequence[str]) -> None:
    """Refuse parts that cannot be joined, and a name that another column has."""
    vectors = [name for name, column in columns.items() if _can_be_joined(name, column)]
    for part in parts:
        if part not in columns:
            raise DataError(
                f"dataset.concat: {part} is not in {repo_id}",
                rule=f"columns that can be joined: {', '.join(vectors)}",
                remedy=did_you_mean(part, vectors),
            )
        if part not in vectors:
            column = columns[part]
            raise DataError(
                f"dataset.concat: {part} of {repo_id} is {column.dtype} {list(column.shape)}",
                rule=f"columns that can be joined: {', '.join(vectors)}",
                remedy=f"leave {part} out of {key}",
            )
    if key in columns and key not in parts:
        raise DataError(
            f"dataset.concat: {key} is a column of {repo_id} already",
            rule="a joined column has its own name, or that of one of its parts",
            remedy=f"choose another name, or put {key} among its parts",
        )


def _can_be_joined(key: str, column: Column) -> bool:
    is_vector = not column.is_camera and column.dtype != "string" and len(column.shape) == 1
    return is_vector and key not in BOOKKEEPING
