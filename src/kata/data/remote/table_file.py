"""The parts of a parquet file that some of its columns are stored in."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from kata.errors import DataError

_TAIL_BYTES = 64 * 1024
"""Bytes at the end that are read first; the footer of most files is shorter."""

_GAP_BYTES = 64 * 1024
"""Bytes between two wanted parts that are read as well, to save a request."""

_MAGIC = b"PAR1"


class Range(NamedTuple):
    """Bytes of a file."""

    begin: int
    size: int


def footer_range(size: int, read: Callable[[Range], bytearray], location: str) -> Range:
    """Return the range of a file's footer.

    Args:
        size: of the file.
        read: returns the bytes of a range.
        location: of the file, for messages.

    Raises:
        DataError: The file does not end like a parquet file.
    """
    tail = read(Range(max(size - _TAIL_BYTES, 0), min(size, _TAIL_BYTES)))
    footer_bytes = int.from_bytes(tail[-8:-4], "little") + 8
    if not tail.endswith(_MAGIC) or footer_bytes > size:
        raise _damaged(location, "does not end with a footer")
    return Range(size - footer_bytes, footer_bytes)


def needed_ranges(path: Path, skipped: Sequence[str], location: str) -> list[Range]:
    """Return the ranges of all columns but some, with small gaps between them.

    Args:
        path: a file that has the footer in its place.
        skipped: names of columns.
        location: of the file, for messages.

    Raises:
        DataError: The footer is damaged.
    """
    found: list[Range] = []
    try:
        meta = pq.read_metadata(path)
        names: list[str] = meta.schema.to_arrow_schema().names
        for group in range(meta.num_row_groups):
            for leaf in range(meta.num_columns):
                column = meta.row_group(group).column(leaf)
                if _column_of(column.path_in_schema, names) in skipped:
                    continue
                begin = column.data_page_offset
                if column.dictionary_page_offset is not None:
                    begin = min(begin, column.dictionary_page_offset)
                found.append(Range(begin, column.total_compressed_size))
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        raise _damaged(location, str(error)) from error
    return _joined(sorted(found))


def _column_of(path: str, names: Sequence[str]) -> str:
    """Return the column that a leaf belongs to; names of columns have dots, as paths do."""
    owners = [name for name in names if path == name or path.startswith(f"{name}.")]
    if not owners:
        raise pa.ArrowInvalid(f"the footer names a column {path!r} that the schema lacks")
    return max(owners, key=len)


def _joined(ranges: Sequence[Range]) -> list[Range]:
    """Return sorted ranges with neighbours joined."""
    joined: list[Range] = []
    for each in ranges:
        if joined and each.begin - sum(joined[-1]) <= _GAP_BYTES:
            begin = joined[-1].begin
            joined[-1] = Range(begin, max(sum(joined[-1]), sum(each)) - begin)
        else:
            joined.append(each)
    return joined


def _damaged(location: str, what: str) -> DataError:
    return DataError(
        f"{location} cannot be read: {what}",
        rule="a complete parquet file",
        remedy="upload the file again, or leave its episodes out with --dataset.exclude_episodes",
    )
