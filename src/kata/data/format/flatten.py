"""Arrow columns of scalars or nested lists as one flat array."""

from __future__ import annotations

from typing import Any

import pyarrow as pa


def flat_column(chunks: pa.ChunkedArray) -> tuple[Any, int]:
    """Return every value of a column, and how many lists or values are empty.

    Args:
        chunks: The column; its lists may be nested.

    Returns:
        The values as an Arrow array, and the number of empty places on all levels.
    """
    array: Any = chunks.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = pa.concat_arrays(array.chunks)
    empty = array.null_count
    while (
        pa.types.is_list(array.type)
        or pa.types.is_fixed_size_list(array.type)
        or pa.types.is_large_list(array.type)
    ):
        array = array.flatten()
        empty += array.null_count
    return array, empty
