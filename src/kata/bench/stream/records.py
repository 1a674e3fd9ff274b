"""The records of readings in a folder: a JSON file each, one table, one picture."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from kata.bench.stream.picture import stream_picture
from kata.files import write_json

PREFIX = "stream_"
LABELS = ("source", "dataset", "mode", "node", "nodes", "batch_size", "num_workers", "num_batches")
"""Columns of the table before the figures."""


def keep(folder: Path, began: datetime, record: Mapping[str, Any]) -> list[Path]:
    """Write a record, then the table and the picture of all records in the folder.

    Returns:
        The three files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{PREFIX}{record['source']}_{record['mode']}_{began:%Y%m%d_%H%M%S}.json"
    one = folder / name
    table = folder / "stream.csv"
    picture = folder / "stream.png"
    write_json(one, record, indent=1)
    records = _read(folder)
    table.write_text(table_text(records), encoding="utf-8")
    picture.write_bytes(stream_picture(records))
    return [one, table, picture]


def _read(folder: Path) -> list[dict[str, Any]]:
    """Return the records in a folder, in the order of their names."""
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob(f"{PREFIX}*.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        if "nodes" in record:  # else it is a file of somebody else
            found.append(record)
    return found


def table_text(records: Sequence[Mapping[str, Any]]) -> str:
    """Return a row per node of each record, as CSV."""
    rows: list[dict[str, Any]] = []
    for record in records:
        for number, figures in enumerate(record["nodes"]):
            settings = record["settings"]
            rows.append(
                {
                    "source": record["source"],
                    "dataset": record["dataset"]["name"],
                    "mode": record["mode"],
                    "node": number,
                    "nodes": len(record["nodes"]),
                    "batch_size": settings["batch_size"],
                    "num_workers": record["threads"],
                    "num_batches": settings["num_batches"],
                    **figures,
                }
            )
    columns = list(LABELS)
    for row in rows:
        columns += [name for name in row if name not in columns]
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
