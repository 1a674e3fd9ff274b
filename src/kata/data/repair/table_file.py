"""A data file written again with some columns or rows changed; everything else keeps its values."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kata.data.repair.working_copy import WorkingCopy


def rewrite_table(
    copy: WorkingCopy,
    name: str,
    columns: Mapping[str, np.ndarray],
    mask: NDArray[np.bool_] | None = None,
    drop: Sequence[str] = (),
    flat: Sequence[str] = (),
) -> None:
    """Write a data file of the copy again, row group by row group, so that memory stays flat.

    Args:
        copy: The copy; the file that the new one replaces may be shared with the dataset.
        name: The file.
        columns: New values of all rows, by column. A column that the file lacks comes last.
        mask: (rows,) which rows stay; None for all.
        drop: Columns to leave out.
        flat: Columns of lists of one number that become numbers.
    """
    file = pq.ParquetFile(copy.root / name)
    keep = np.ones(file.metadata.num_rows, dtype=bool) if mask is None else mask

    def write(path: Path) -> None:
        writer: pq.ParquetWriter | None = None
        begin = 0
        for number in range(file.num_row_groups):
            group = file.read_row_group(number).drop_columns(
                [each for each in drop if each in file.schema_arrow.names]
            )
            end = begin + len(group)
            for key in flat:
                numbers = group[key].combine_chunks().flatten()
                group = group.set_column(group.schema.get_field_index(key), key, numbers)
            group = _replaced(group, {key: values[begin:end] for key, values in columns.items()})
            if writer is None:
                added = [key for key in columns if key not in file.schema_arrow.names]
                group = _noted(group, [*added, *flat], drop)
                writer = pq.ParquetWriter(path, group.schema, compression="snappy")
            kept = group.filter(pa.array(keep[begin:end])).cast(writer.schema)
            if len(kept):
                writer.write_table(kept, row_group_size=len(kept))
            begin = end
        if writer is not None:
            writer.close()

    copy.replace(name, write)


def _replaced(group: pa.Table, columns: Mapping[str, np.ndarray]) -> pa.Table:
    for key, values in columns.items():
        place = group.schema.get_field_index(key)
        if place < 0:
            group = group.append_column(key, pa.array(values))
        else:
            field = group.schema.field(place)
            group = group.set_column(place, field, pa.array(values).cast(field.type))
    return group


def _noted(group: pa.Table, added: Sequence[str], drop: Sequence[str]) -> pa.Table:
    """Correct the note from which the Hub's viewer knows the columns, where the file has one."""
    metadata = dict(group.schema.metadata or {})
    note = json.loads(metadata.get(b"huggingface", b"{}"))
    features = note.get("info", {}).get("features")
    if features is None:
        return group
    for key in drop:
        features.pop(key, None)
    for key in added:
        dtype = str(group.schema.field(key).type.to_pandas_dtype()().dtype)
        features[key] = {"dtype": dtype, "_type": "Value"}
    return group.replace_schema_metadata(metadata | {b"huggingface": json.dumps(note).encode()})
