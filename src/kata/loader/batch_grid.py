"""The positions of each batch of a loader, over endless streams and over whole epochs."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kata.data.arrays import Int64
from kata.data.sampling.permutation import SampleOrder


@dataclass(frozen=True)
class BatchGrid:
    """The division of the sample stream into batches, and of the stream into runs.

    A run is one iteration of a loader: positions [k * run, (k + 1) * run). Its last batch is
    incomplete, or is left out. Without runs, one batch follows the other.

    Args:
        start: position of the first sample of batch 0.
        batch: samples of a batch over all ranks.
        run: positions of a run; None for an endless one.
        drop_last: True leaves out the incomplete batch at the end of a run.
    """

    start: int
    batch: int
    run: int | None = None
    drop_last: bool = False

    def first(self, step: int) -> int:
        """Return the position of the first sample of a batch."""
        return int(self._firsts(np.array([step]))[0])

    def left(self, step: int) -> int:
        """Return the samples of a batch, over all ranks: fewer at the end of a run."""
        if self.run is None:
            return self.batch
        return min(self.batch, self.run - self.first(step) % self.run)

    def is_last(self, step: int) -> bool:
        """Return True for the last batch of a run."""
        return self.run is not None and self.first(step) // self.run < self.first(step + 1) // (
            self.run
        )

    def batches(self, length: int) -> int:
        """Return the batches of this many positions of one run."""
        return length // self.batch if self.drop_last else -(-length // self.batch)

    def positions(self, places: NDArray[np.integer]) -> Int64:
        """Return the positions at places of the grid, where batch k has [k * batch, (k + 1) *
        batch).

        Places that the last batch of a run leaves empty have the positions after the run.
        """
        step, within = np.divmod(np.asarray(places, dtype=np.int64), self.batch)
        return self._firsts(step) + within

    def _firsts(self, steps: Int64) -> Int64:
        """Return the first positions of batches, of any shape."""
        if self.run is None:
            return self.start + steps * self.batch
        # The first run may have begun before the grid did; all others are whole.
        number, place = divmod(self.start, self.run)
        here = self.batches(self.run - place)
        runs, within = np.divmod(steps - here, self.batches(self.run))
        later = (number + 1 + runs) * self.run + within * self.batch
        return np.where(steps < here, self.start + steps * self.batch, later)


class GridOrder:
    """An order whose positions are places of a grid.

    Args:
        order: the anchors at positions of the stream.
        grid: the positions at places of the grid.
    """

    def __init__(self, order: SampleOrder, grid: BatchGrid) -> None:
        self.n, self.cycle = order.n, order.cycle
        self._order, self._grid = order, grid

    def at(self, positions: NDArray[np.integer]) -> Int64:
        """Return the anchors at places of the grid, of any shape."""
        return self._order.at(self._grid.positions(positions))
