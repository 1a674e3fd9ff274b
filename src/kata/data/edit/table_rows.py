"""Table rows of episodes, with the bookkeeping columns of their new place; all else keeps its
bits.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kata.data.edit.edit_source import Part
from kata.data.format.text import REPAIR
from kata.data.format.v3 import FileSeries
from kata.data.writing.arrow_tables import arrow_array, frame_schema, stored
from kata.data.writing.running_stats import flat_values
from kata.errors import DataError
from kata.spec import Column

TIME_TOLERANCE_S = 1e-4
"""Time stamps this close to frame / fps are kept; it is what LeRobot allows."""


class EpisodeRows:
    """The table rows of a part, episode by episode; each file is read once when episodes come in
    its order.
    """

    def __init__(self, part: Part) -> None:
        self._part = part
        self._path: Path | None = None
        self._table = pa.table({})

    def get(self, position: int) -> pa.Table:
        """The rows of one chosen episode, as the file has them.

        Raises: DataError when the file cannot be read, or has fewer rows.
        """
        length = int(self._part.layout.length[position])
        path, first = self.place(position)
        if path != self._path:
            self._table, self._path = _read(path), path
            self._refuse_more_rows(position, length)
        rows = self._table.slice(first, length)
        if len(rows) < length:
            raise _bad(
                path,
                f"has {len(self._table)} rows, episode {self._part.layout.index[position]} needs "
                "more",
            )
        return rows

    def _refuse_more_rows(self, position: int, length: int) -> None:
        """In v2.x a file is one episode: rows beyond its length would be lost."""
        if not self._part.dataset.info.is_v3 and len(self._table) > length:
            episode = self._part.layout.index[position]
            raise DataError(
                f"{self._path} has {len(self._table)} rows, the metadata give episode {episode} "
                f"{length}",
                rule="no row is lost: a file of v2.x has the rows of its episode",
                remedy=f"{REPAIR} with the right length; or leave the episode out with --exclude",
            )

    def place(self, position: int) -> tuple[Path, int]:
        """File and first row of an episode."""
        span = self._part.layout.data
        return self._part.root / span.files[span.file[position]], int(span.first[position])


def _read(path: Path) -> pa.Table:
    try:
        return pq.ParquetFile(path).read()
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        raise _bad(path, f"cannot be read: {error}") from error


def numbers(path: Path, key: str, rows: pa.Table, column: Column) -> NDArray[Any]:
    """A numeric column as (N, *shape), (N,) for shape [1], in its declared dtype.

    Raises: DataError when it is absent, has another shape, empty places, or numbers that are not
        finite.
    """
    if key not in rows.column_names:
        raise _bad(path, f"has no column '{key}'")
    values = flat_values(rows[key])
    if len(values) != len(rows) * int(np.prod(column.shape)) or values.dtype == object:
        raise _bad(
            path, f"has {len(values)} values of '{key}' in {len(rows)} rows, or empty places"
        )
    values = values.astype(column.dtype)
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        raise _bad(path, f"has numbers of '{key}' that are empty, NaN or infinite")
    return values.reshape(len(rows), *(() if column.shape == (1,) else column.shape))


def cells(path: Path, key: str, rows: pa.Table, column: Column) -> Any:
    """A column of texts, images or language as one Arrow array without empty cells."""
    if key not in rows.column_names:
        raise _bad(path, f"has no column '{key}'")
    array: Any = pa.concat_arrays(rows[key].chunks)
    empty = array.null_count
    if column.dtype == "image":
        if not pa.types.is_struct(array.type) or array.type.get_field_index("bytes") < 0:
            raise _bad(path, f"holds {array.type} in '{key}', no encoded images")
        empty += array.field("bytes").null_count
    if empty and column.dtype != "language":
        raise _bad(path, f"has {empty} empty cells in '{key}'")
    return array


def new_rows(values: Mapping[str, Any], columns: Mapping[str, Column]) -> pa.Table:
    """One episode's rows: numpy arrays of numbers, Arrow arrays of what is copied as it is."""
    kinds: dict[str, pa.Field] = {field.name: field for field in frame_schema(_plain(columns))}
    arrays: list[pa.Array] = []
    for key, column in stored(columns).items():
        given = values[key]
        if isinstance(given, np.ndarray):
            given = arrow_array(column, given)
        elif key in kinds:
            given = given.cast(kinds[key].type)
        arrays.append(given)
    fields = [pa.field(key, array.type) for key, array in zip(stored(columns), arrays, strict=True)]
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def _plain(columns: Mapping[str, Column]) -> dict[str, Column]:
    """Without language columns, whose Arrow type is that of the source."""
    return {key: column for key, column in columns.items() if column.dtype != "language"}


class TableSeries:
    """The parquet files of one series of a new dataset, a row group for each table that is added.

    Args:
        folder: The dataset's folder.
        series: The names of the files, and when the next one begins.
        note: Schema metadata of every file.
    """

    def __init__(
        self, folder: Path, series: FileSeries, note: Mapping[str, str] | None = None
    ) -> None:
        self._folder = folder
        self._series = series
        self._note = dict(note or {})
        self._writer: pq.ParquetWriter | None = None
        self._sink: Any = None
        self._rows = 0
        self.files: list[Path] = []

    def place(self, rows: int) -> dict[str, int]:
        """Return the columns that point at the file of the next `rows` rows.

        Their size is estimated from the mean size of the rows before.
        """
        if self._writer is not None:
            held_bytes = self._sink.tell()
            self._series.held_bytes = held_bytes
            if not self._series.has_room(held_bytes / self._rows * rows):
                self.close()
        return self._series.columns()

    def add(self, table: pa.Table) -> None:
        """Write rows to the file that `place` has named."""
        if self._writer is None:
            path = self._folder / self._series.name
            path.parent.mkdir(parents=True, exist_ok=True)
            self._sink = path.open("wb")
            self._writer = pq.ParquetWriter(
                self._sink, table.schema.with_metadata(self._note or None), compression="snappy"
            )
            self.files.append(path)
            self._rows = 0
        self._writer.write_table(table, row_group_size=len(table))
        self._rows += len(table)

    def close(self) -> None:
        """Finish the file that is open."""
        if self._writer is not None:
            self._writer.close()
            self._sink.close()
            self._writer = None
            self._series.next_file()


def viewer_note(columns: Mapping[str, Column], known: pa.Schema) -> dict[str, str]:
    """The `huggingface` note of the frames; what it says of language columns comes from the
    source's own note.
    """
    note = frame_schema(_plain(columns)).metadata[b"huggingface"]
    tree = json.loads(note)
    theirs = (
        json.loads((known.metadata or {}).get(b"huggingface", b"{}"))
        .get("info", {})
        .get("features", {})
    )
    language = [key for key, column in columns.items() if column.dtype == "language"]
    if any(key not in theirs for key in language):
        return {}
    tree["info"]["features"] |= {key: theirs[key] for key in language}
    return {"huggingface": json.dumps(tree)}


def _bad(path: Path, what: str) -> DataError:
    return DataError(
        f"{path} {what}",
        rule="as many rows as the episode table says, every column as info.json declares it",
        remedy="repair the file, leave its episodes out with --exclude, or the feature with --drop",
    )
