"""The size of a camera's frames in a dataset's files."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq

from kata.data import Dataset
from kata.data.storage.store import StoredFile
from kata.data.video.packet_index import open_index

_FILES = 64
"""Files of a camera that are looked at, evenly spread: a dataset may have thousands."""


def stored_frame_bytes(dataset: Dataset, camera: str) -> float:
    """Return the mean bytes of a frame of a camera, as it is stored.

    Up to 64 files are looked at. Of a video the packets count, of a table the column's pages.
    """
    is_video = dataset.columns[camera].dtype == "video"
    span = dataset.layout.videos[camera] if is_video else dataset.layout.data
    names = span.used()
    places = np.unique(np.linspace(0, len(names) - 1, _FILES).round().astype(int))
    num_bytes = 0
    frames = 0
    for place in places.tolist():
        if is_video:
            index = open_index(StoredFile(dataset.store, names[place]))
            num_bytes += int(index.size.sum(dtype=np.int64))
            frames += len(index)
        else:
            table = pq.ParquetFile(dataset.root / names[place]).metadata
            num_bytes += _column_bytes(table, camera)
            frames += table.num_rows
    return num_bytes / frames


def _column_bytes(table: pq.FileMetaData, camera: str) -> int:
    """Return the bytes of all pages of a column of images and of its parts."""
    total = 0
    for number in range(table.num_row_groups):
        group = table.row_group(number)
        for place in range(group.num_columns):
            column = group.column(place)
            if column.path_in_schema.startswith(f"{camera}."):
                total += column.total_compressed_size
    return total
