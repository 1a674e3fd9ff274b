"""The parquet files of a v3.0 dataset as Arrow tables: frames, episodes, tasks."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from kata.data.format.feature_stats import STATS
from kata.spec import Column

_IMAGE = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def stored(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Return the columns that are stored in the table; video frames have separate files."""
    return {key: column for key, column in columns.items() if column.dtype != "video"}


def frame_schema(columns: Mapping[str, Column]) -> pa.Schema:
    """Schema of the frames, with the `huggingface` note from which the Hub's viewer knows the
    images.
    """
    tree = {key: _viewer_feature(column) for key, column in stored(columns).items()}
    note = json.dumps({"info": {"features": tree}})
    fields = [pa.field(key, _arrow_type(column)) for key, column in stored(columns).items()]
    return pa.schema(fields, metadata={"huggingface": note})


def frame_table(columns: Mapping[str, Column], values: Mapping[str, Any]) -> pa.Table:
    """One episode's frames: arrays (N, *shape), (N,) for shape [1], lists of str, lists of PNG
    bytes.
    """
    arrays = [arrow_array(column, values[key]) for key, column in stored(columns).items()]
    return pa.Table.from_arrays(arrays, schema=frame_schema(columns))


def task_table(tasks: Sequence[str]) -> pa.Table:
    """The tasks by task_index; the `pandas` note makes the sentence the index, which LeRobot
    needs.
    """
    table = pa.table(
        {
            "task_index": pa.array(range(len(tasks)), pa.int64()),
            "task": pa.array(tasks, pa.string()),
        }
    )
    columns = [("task_index", "int64", "int64"), ("task", "unicode", "object")]
    note = {
        "index_columns": ["task"],
        "column_indexes": [
            {
                "name": None,
                "field_name": None,
                "pandas_type": "unicode",
                "numpy_type": "object",
                "metadata": {"encoding": "UTF-8"},
            }
        ],
        "columns": [
            {
                "name": name,
                "field_name": name,
                "pandas_type": kind,
                "numpy_type": numpy_type,
                "metadata": None,
            }
            for name, kind, numpy_type in columns
        ],
        "creator": {"library": "pyarrow", "version": pa.__version__},
        "pandas_version": "2.0.0",
    }
    return table.replace_schema_metadata({"pandas": json.dumps(note)})


def episode_table(columns: Mapping[str, Column], rows: Sequence[Mapping[str, Any]]) -> pa.Table:
    """The episodes, one row each, with their places in the files and their own statistics."""
    whole, text = pa.int64(), pa.list_(pa.string())
    fields = [("episode_index", whole), ("tasks", text), ("length", whole)]
    fields += [(name, whole) for name in ("data/chunk_index", "data/file_index")]
    fields += [(name, whole) for name in ("dataset_from_index", "dataset_to_index")]
    for key in (key for key, column in columns.items() if column.dtype == "video"):
        fields += [(f"videos/{key}/{name}", whole) for name in ("chunk_index", "file_index")]
        fields += [
            (f"videos/{key}/{name}", pa.float64()) for name in ("from_timestamp", "to_timestamp")
        ]
    for key, column in measured(columns).items():
        fields += [(f"stats/{key}/{stat}", stat_type(stat, column.is_camera)) for stat in STATS]
    fields += [(f"meta/episodes/{name}", whole) for name in ("chunk_index", "file_index")]
    return pa.Table.from_pylist([dict(row) for row in rows], schema=pa.schema(fields))


def measured(columns: Mapping[str, Column]) -> dict[str, Column]:
    """The columns that have statistics: all but text."""
    return {
        key: column for key, column in columns.items() if column.dtype not in ("string", "language")
    }


def stat_type(stat: str, is_camera: bool) -> pa.DataType:
    """Return the Arrow type of one figure of a feature in the episode table."""
    if stat == "count":
        return pa.list_(pa.int64())
    kind = pa.list_(pa.float64())
    return pa.list_(pa.list_(kind)) if is_camera else kind


def _arrow_type(column: Column) -> pa.DataType:
    if column.dtype == "image":
        return _IMAGE
    if column.dtype == "string":
        return pa.string()
    kind = pa.from_numpy_dtype(np.dtype(column.dtype))
    if column.shape == (1,):
        return kind
    if len(column.shape) == 1:
        return pa.list_(kind, column.shape[0])
    for _ in column.shape:
        kind = pa.list_(kind)
    return kind


def arrow_array(column: Column, values: Any) -> pa.Array:
    """One column of frames, given as `frame_table` takes it."""
    if column.dtype == "image":
        rows = [
            {"bytes": png, "path": f"frame-{number:06d}.png"} for number, png in enumerate(values)
        ]
        return pa.array(rows, _IMAGE)
    if column.dtype == "string":
        return pa.array(values, pa.string())
    array: NDArray[Any] = np.asarray(values)
    flat = pa.array(array.reshape(-1))
    if column.shape == (1,):
        return flat
    if len(column.shape) == 1:
        return pa.FixedSizeListArray.from_arrays(flat, column.shape[0])
    for size in reversed(column.shape):
        edges = pa.array(np.arange(0, len(flat) + 1, size), pa.int32())
        flat = pa.ListArray.from_arrays(edges, flat)
    return flat


def _viewer_feature(column: Column) -> dict[str, Any]:
    if column.dtype == "image":
        return {"_type": "Image"}
    if column.shape == (1,):
        return {"dtype": column.dtype, "_type": "Value"}
    if len(column.shape) == 1:
        return {
            "feature": {"dtype": column.dtype, "_type": "Value"},
            "length": column.shape[0],
            "_type": "List",
        }
    return {
        "shape": list(column.shape),
        "dtype": column.dtype,
        "_type": f"Array{len(column.shape)}D",
    }
