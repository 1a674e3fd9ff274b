"""Batches of the endless sample stream, read ahead in the background."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from kata.closing import Closing
from kata.data.arrays import Int64
from kata.data.dataset.anchors import AnchorRows
from kata.data.loader.reader import PendingBatch, Reader
from kata.data.sampling.permutation import SampleOrder
from kata.errors import FrameError
from kata.spec import Batch

FORESEEN = 1 << 17
"""Positions of the stream that are planned at a time: 1 MB per frame of a sample's window."""

_BLOCK = 4096
"""Positions whose anchors are computed at a time: for 8 of them it costs about as much."""

_FURTHER = 32
"""Steps per batch in which frames to prefetch are sought, after the batches being read."""


_CHUNK_STEPS, _CHUNKS = 16, 16
"""Steps whose byte ranges are asked for together, and how many of these at a time."""


SubstituteFn: TypeAlias = Callable[[Int64, Int64], Int64]
"""substitute(positions, anchors), both (B,), returns anchors (B,) that can all be decoded."""


@dataclass(frozen=True)
class RankSlice:
    """The slice of each batch that a rank reads: the `number`-th of `of` equal, contiguous ones."""

    number: int = 0
    of: int = 1


WHOLE = RankSlice()


class _Anchors:
    """The anchors at positions of the stream, computed a block at a time."""

    def __init__(self, rows: Int64 | AnchorRows, order: SampleOrder) -> None:
        self._rows, self._order = rows, order
        self._known: tuple[int, Int64] = (0, np.empty(0, np.int64))

    def at(self, positions: Int64) -> Int64:
        """Return the anchors at ascending positions (n,)."""
        begin, end = int(positions[0]), int(positions[-1]) + 1
        first, rows = self._known
        if not first <= begin <= end <= first + len(rows):
            first = begin
            # An epoch at most: those of a tiny dataset are short, and each costs several sorts.
            ahead = min(_BLOCK, self._order.cycle)
            rows = self._rows[self._order.at(np.arange(begin, max(end, begin + ahead)))]
            self._known = (first, rows)  # one assignment, so that other threads see both or none
        return rows[positions - first]


class Batches(Closing):
    """The batch of any step, or a rank's slice of it; the next steps are read in the background.

    Args:
        reader: reads frames by row.
        rows: the rows that may be anchors; `order` counts over them, so len(rows) == order.n.
        order: which anchor stands at which position.
        batch_size: samples per step, a multiple of `rank_slice.of`.
        rank_slice: positions [step * batch_size + number * size, ... + size) are read, size =
            batch_size / of.
        ahead: steps read in advance, fewer where the reader's `frame_memory` does not hold that
            many.
        substitute: finds other samples for those that cannot be decoded; None lets the error end
            the run.

    Raises: ConfigError when `frame_memory` does not hold one batch.
    """

    def __init__(
        self,
        reader: Reader,
        rows: Int64 | AnchorRows,
        order: SampleOrder,
        batch_size: int,
        *,
        ahead: int = 2,
        rank_slice: RankSlice = WHOLE,
        substitute: SubstituteFn | None = None,
    ) -> None:
        assert len(rows) == order.n, f"{len(rows)} rows, but the order counts {order.n}"
        assert batch_size > 0, "a batch has at least one sample"
        assert batch_size % rank_slice.of == 0, f"{batch_size} samples in {rank_slice.of} parts"
        self.reader = reader
        self.rows = rows
        self.order = order
        self.batch_size = batch_size
        self.rank_slice = rank_slice
        self.slice_size = batch_size // rank_slice.of
        self.ahead = reader.reserve_batches(self.slice_size, ahead + 1) - 1
        self._substitute, self._replaced = substitute, dict[int, Int64]()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kata-batches")
        self._coming: dict[int, Future[PendingBatch]] = {}
        self._anchors = _Anchors(rows, order)
        self._far_anchors = _Anchors(rows, order)
        self._foreseen = range(0)
        self._prefetched = 0
        self._asked = 0
        # Two epochs, so that the plan has the next use of every frame: a dataset that fits into the
        # budget is then decoded once.
        steps = min(FORESEEN // self.slice_size, -(-2 * order.cycle // batch_size))
        self._span = max(2 * (self.ahead + 2), steps)

    def at(self, step: int) -> Batch:
        """Return the batch of a step, or this rank's slice of it.

        Steps in sequence find their batch ready; a jump drops what was read ahead.

        Args:
            step: positions [step * batch_size, (step + 1) * batch_size) of the stream.

        Returns:
            The batch of `Reader.read`, and `position`, int64 (B,).

        Raises:
            KataError: errors met in the background, for the step that they belong to.
        """
        wanted = range(step, step + self.ahead + 1)
        for other in [known for known in self._coming if known not in wanted]:
            self._coming.pop(other).cancel()
        # One background thread starts the batches in order, since the decoders serve tasks in the
        # order in which they are submitted.
        for number in wanted:
            if number not in self._coming:
                self._coming[number] = self._pool.submit(self._start, number)
        self._pool.submit(self._fetch_ahead, step + 1)
        if self.reader.looks_ahead:
            self._pool.submit(self._further, step + self.ahead + 1)
        coming = self._coming.pop(step).result()
        try:
            return coming.result()
        except FrameError:
            if self._substitute is None:
                raise
        # Rare, so this batch is simply read again, in this thread.
        positions = self._positions(step, step + 1)
        self._replaced[step] = self._substitute(positions, self._anchors.at(positions))
        return self.reader.read(self._replaced[step]) | {"position": positions}

    def anchors(self, step: int) -> Int64:
        """Return the anchors (B,) of all samples of a step, with the substitutes read here."""
        anchors = self._anchors.at(np.arange(step * self.batch_size, (step + 1) * self.batch_size))
        if step in self._replaced:
            first = self.rank_slice.number * self.slice_size
            anchors[first : first + self.slice_size] = self._replaced[step]
        return anchors

    def masks(self, step: int) -> Batch:
        """Return `Reader.masks` of the whole batch of a step, of which this may read a slice.

        They are those of the planned samples, which every rank knows; only one rank knows a
        substitute.
        """
        return self.reader.masks(
            self._anchors.at(np.arange(step * self.batch_size, (step + 1) * self.batch_size))
        )

    def _start(self, step: int) -> PendingBatch:
        self._look_ahead(step)
        positions = self._positions(step, step + 1)
        reading = self.reader.start(self._anchors.at(positions), step)
        reading.batch["position"] = positions
        return reading

    def _positions(self, begin: int, end: int) -> Int64:
        """Return the positions that are read for these steps."""
        steps = np.arange(begin, end, dtype=np.int64)
        firsts = steps * self.batch_size + self.rank_slice.number * self.slice_size
        return (firsts[:, None] + np.arange(self.slice_size)).reshape(-1)

    def _look_ahead(self, step: int) -> None:
        """Plan the steps from this one on; renew the plan when half of it is used."""
        left = self._foreseen.stop - step
        if not self.reader.looks_ahead or (step >= self._foreseen.start and left > self._span // 2):
            return
        self._foreseen = range(step, step + self._span)
        steps = np.repeat(np.arange(step, step + self._span, dtype=np.int64), self.slice_size)
        self.reader.plan_ahead(
            self.rows[self.order.at(self._positions(step, step + self._span))], steps
        )

    def _further(self, step: int) -> None:
        """Keep idle decoders busy with the steps that come after those being read."""
        if not step <= self._prefetched <= self._foreseen.stop:
            self._prefetched = step
        # Decoders that overtook the requests would take the room of bytes that are needed sooner.
        stop = min(self._foreseen.stop, self._asked) if self.reader.is_far else self._foreseen.stop
        for _ in range(_FURTHER):
            if self._prefetched >= stop:
                return
            if not self.reader.prefetch(
                self._anchors.at(self._positions(self._prefetched, self._prefetched + 1)),
                self._prefetched,
            ):
                return
            self._prefetched += 1

    def _fetch_ahead(self, step: int) -> None:
        """Ask for the bytes of the steps to come, if files are far, until the pool has enough."""
        # No further than the plan: beyond it are bytes that were here before.
        stop = step + self._span // 2
        if not step <= self._asked <= stop:
            self._asked = step
            self.reader.forget_fetches()
        self.reader.pass_steps(step)
        for _ in range(_CHUNKS):
            if self._asked >= stop or not self.reader.may_fetch:
                return
            # Few steps at first, so that the first batches need not wait for later ones; then many,
            # so that neighbouring ranges share a request.
            count = min(max(self._asked - step, 1), _CHUNK_STEPS)
            end = min(self._asked + count, stop)
            self.reader.fetch_ahead(
                self._far_anchors.at(self._positions(self._asked, end)), range(self._asked, end)
            )
            self._asked = end

    def close(self) -> None:
        """Stop reading ahead; returns when the background thread is idle."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._coming.clear()
