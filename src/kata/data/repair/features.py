"""Repairs of features: how their columns lie in the files, and those that the user leaves out."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kata.data.check.tables import is_list_of_one
from kata.data.format.feature_stats import STATS_FILE
from kata.data.format.info import INFO_FILE, raw_info, read_info
from kata.data.format.json_lines import json_lines
from kata.data.format.v3 import EPISODE_FILES
from kata.data.repair.episodes_v2 import STATS_V2
from kata.data.repair.table_file import rewrite_table
from kata.data.repair.working_copy import WorkingCopy
from kata.errors import ConfigError, did_you_mean
from kata.spec import BOOKKEEPING


def drop_features(copy: WorkingCopy) -> None:
    """Leave out the features that the user names: declared ones, or columns of the data files.

    Raises:
        ConfigError: There is no such feature, or every dataset has it.
    """
    keys = copy.answers.drop
    if not keys:
        return
    raw = raw_info(copy.root)
    tables = copy.names("data/**/*.parquet")
    columns: set[str] = set()
    for table in tables:
        columns.update(_columns(copy, table))
    for key in keys:
        if key in BOOKKEEPING or (key not in raw["features"] and key not in columns):
            raise ConfigError(
                f"drop: {key}",
                rule="a feature of the dataset, and none of " + ", ".join(BOOKKEEPING),
                remedy=did_you_mean(key, {*raw["features"], *columns} - set(BOOKKEEPING)),
            )
        raw["features"].pop(key, None)
        copy.changed("features", f"'{key}' is left out")
    copy.write_json(INFO_FILE, raw)
    for table in tables:
        if set(keys) & set(_columns(copy, table)):
            rewrite_table(copy, table, {}, drop=keys)
    for key in keys:
        for name in copy.names("videos/**/*"):
            if key in name.split("/"):
                copy.remove(name)
    _drop_metadata(copy, keys)


def _columns(copy: WorkingCopy, name: str) -> list[str]:
    try:
        return list(pq.read_schema(copy.root / name).names)
    except (pa.ArrowException, UnicodeDecodeError, OSError):
        return []


def _drop_metadata(copy: WorkingCopy, keys: Sequence[str]) -> None:
    for name in copy.names(EPISODE_FILES):
        table = pq.read_table(copy.root / name)
        gone = [
            each
            for each in table.column_names
            if each.split("/")[0] in ("videos", "stats") and each.split("/")[1] in keys
        ]
        if gone:
            left = table.drop_columns(gone)
            copy.replace(
                name, lambda path, left=left: pq.write_table(left, path, compression="snappy")
            )
    if (copy.root / STATS_V2).is_file():
        rows = json_lines(copy.root / STATS_V2, ("episode_index", "stats"))
        for row in rows:
            row["stats"] = {key: value for key, value in row["stats"].items() if key not in keys}
        copy.write_lines(STATS_V2, rows)
    if (copy.root / STATS_FILE).is_file():
        stats = json.loads((copy.root / STATS_FILE).read_text(encoding="utf-8"))
        copy.write_json(STATS_FILE, {key: value for key, value in stats.items() if key not in keys})


def repair_layout(copy: WorkingCopy) -> None:
    """Write lists of one number as numbers, where a feature is declared as one.

    Raises:
        DataError: The metadata cannot be read.
    """
    columns = read_info(copy.root).columns
    changed: dict[str, None] = {}
    for name in copy.names("data/**/*.parquet"):
        try:
            schema = pq.read_schema(copy.root / name)
            lists = [
                k for k, c in columns.items() if k in schema.names and is_list_of_one(schema, k, c)
            ]
            lists = [
                key for key in lists if _has_one(pq.read_table(copy.root / name, columns=[key]))
            ]
        except (pa.ArrowException, UnicodeDecodeError, OSError):
            continue
        if lists:
            rewrite_table(copy, name, {}, flat=lists)
            changed |= dict.fromkeys(lists)
    if changed:
        copy.changed("column layout", f"numbers, not lists of one number: {', '.join(changed)}")


def _has_one(table: pa.Table) -> bool:
    """Return whether every row of the only column has one number."""
    column: Any = table.column(0).combine_chunks()
    return not column.null_count and len(column.flatten()) == len(column)
