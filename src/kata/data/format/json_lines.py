"""Reading of JSON-lines files, with errors that name file and line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from kata.data.format.text import read_text
from kata.errors import DataError


def json_lines(path: Path, fields: tuple[str, ...]) -> list[dict[str, Any]]:
    """Return all objects of a JSON-lines file, each with at least `fields`.

    Raises:
        DataError: The file is absent, or a line is no JSON object or lacks a field; the message
            names file and line.
    """
    if not path.is_file():
        raise DataError(
            f"{path} is absent",
            rule="datasets of the formats v2.0 and v2.1 have it",
            remedy="bring the dataset's folder meta again, whole",
        )
    rows: list[dict[str, Any]] = []
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise _bad(path, f"is no JSON in line {number}: {error}", fields) from error
        if not isinstance(row, dict) or any(name not in row for name in fields):
            raise _bad(path, f"lacks a field in line {number}: {line[:80]}", fields)
        rows.append(row)
    return rows


def _bad(path: Path, what: str, fields: tuple[str, ...]) -> DataError:
    return DataError(
        f"{path} {what}",
        rule=f"one JSON object a line with {', '.join(fields)}",
        remedy="correct that line, or download the file again",
    )
