"""Statistics of a whole dataset that is being written, from those of its episodes and from its
table files.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kata.data.format.feature_stats import STATS, Summary, merge_summaries, quantiles
from kata.data.format.flatten import flat_column
from kata.data.writing.arrow_tables import measured
from kata.spec import Column

EXACT_VALUES = (
    2**26
)  # a column of more numbers than this (0.5 GB as float64) gets the mean of its episodes' quantiles


class Totals:
    """Takes episode rows (`stats/<key>/<stat>`), gives the content of stats.json."""

    def __init__(self, columns: Mapping[str, Column]) -> None:
        self._columns = measured(columns)
        self._summaries: dict[str, Summary] = {}

    def add(self, row: Mapping[str, Any]) -> None:
        """Count in one episode."""
        for key in self._columns:
            found = {stat: row.get(f"stats/{key}/{stat}") for stat in STATS}
            summary = {stat: np.array(value) for stat, value in found.items() if value is not None}
            if summary:
                known = self._summaries.get(key)
                self._summaries[key] = merge_summaries([known, summary]) if known else summary

    def stats(self, files: Sequence[Path], frames: int) -> dict[str, Any]:
        """The content of stats.json; quantiles of columns go over all frames while they fit in
        memory.

        Args:
            files: the table files, which hold exactly the episodes counted in.
            frames: their number of rows.
        """
        stats: dict[str, Any] = {}
        for key, summary in self._summaries.items():
            column = self._columns[key]
            exact: Summary = {}
            if not column.is_camera and frames * int(np.prod(column.shape)) <= EXACT_VALUES:
                values = np.concatenate(
                    [flat_values(pq.read_table(path, columns=[key])[key]) for path in files]
                )
                exact = quantiles(values.reshape(-1, column.shape[-1]).astype(np.float64))
            stats[key] = {name: value.tolist() for name, value in (summary | exact).items()}
        return stats


def flat_values(chunks: pa.ChunkedArray) -> NDArray[Any]:
    """Return all numbers of a column of scalars or nested lists; empty places are NaN or None."""
    array, _ = flat_column(chunks)
    return np.asarray(array.to_numpy(zero_copy_only=False))
