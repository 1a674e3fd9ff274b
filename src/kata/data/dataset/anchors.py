"""The rows that may start a sample, as runs of consecutive ones."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kata.data.arrays import Int64


class AnchorRows:
    """Ascending rows, indexed and counted like an array of them.

    An array takes 8 bytes per frame: 2.4 GB for a million episodes of 300 frames. Runs take 16
    bytes per episode, and one run where no frame is left out.

    Args:
        starts: (R,) first row of each run, ascending.
        lengths: (R,) rows of each run; 0 is allowed.
    """

    def __init__(self, starts: Int64, lengths: Int64) -> None:
        starts, lengths = starts[lengths > 0], lengths[lengths > 0]
        is_new = np.ones(len(starts), bool)
        is_new[1:] = starts[1:] != starts[:-1] + lengths[:-1]
        before = np.cumsum(lengths) - lengths
        self._starts, self._before = starts[is_new], before[is_new]
        self._count = int(lengths.sum())

    @staticmethod
    def of(rows: Int64 | AnchorRows) -> AnchorRows:
        """Return an ascending array of rows (N,) as runs."""
        return rows if isinstance(rows, AnchorRows) else AnchorRows(rows, np.ones_like(rows))

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, places: Any) -> Any:
        """Return the rows at some places: an array of them for an array or a slice."""
        if isinstance(places, slice):
            places = np.arange(self._count)[places]
        places = np.asarray(places)
        places = np.where(places < 0, places + self._count, places)
        if places.size and (places.min() < 0 or places.max() >= self._count):
            raise IndexError(f"places {places.min()} to {places.max()} of {self._count} rows")
        run = self._before.searchsorted(places, side="right") - 1
        return self._starts[run] + (places - self._before[run])

    def __iter__(self) -> Iterator[np.int64]:
        return iter(self[:])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:
        return np.asarray(self[:], dtype)

    def before(self, rows: Int64) -> Int64:
        """Return the number of these rows that are smaller than each of `rows` (n,)."""
        if not self._count:
            return np.zeros(len(rows), np.int64)
        run = np.maximum(self._starts.searchsorted(rows, side="right") - 1, 0)
        ends = np.append(self._before[1:], self._count)
        return np.clip(self._before[run] + rows - self._starts[run], self._before[run], ends[run])

    def between(self, begin: int, end: int) -> AnchorRows:
        """Return the rows in [begin, end), counted from `begin` on."""
        low = np.maximum(self._starts, begin)
        ends = self._starts + np.diff(self._before, append=self._count)
        return AnchorRows(low - begin, np.maximum(np.minimum(ends, end) - low, 0))
