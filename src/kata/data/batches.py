"""Batches of the endless sample stream, read ahead of the one that asks."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Protocol

import numpy as np

from kata.data.order import Int64
from kata.spec import Batch


class Rows(Protocol):
    """What reads samples by the row of their anchor: of one dataset or of a mixture."""

    def read(self, rows: Int64) -> Batch:
        """The samples anchored at `rows` (B,)."""
        ...


class Positions(Protocol):
    """What says which of `n` anchors stand at positions of the stream."""

    n: int

    def at(self, positions: Int64) -> Int64:
        """Anchor numbers in [0, n), of the shape of `positions`."""
        ...


class Batches:
    """The batch of any step; the `ahead` steps after it are read in the background meanwhile.

    Args:
        reader: reads frames by row.
        rows: the rows that may be anchors; `order` counts over them, so len(rows) == order.n.
        order: which anchor stands at which position.
        batch_size: samples per step.
        ahead: steps read in advance; each costs one batch of memory.
    """

    def __init__(self, reader: Rows, rows: Int64, order: Positions, batch_size: int, *, ahead: int = 2) -> None:
        assert len(rows) == order.n, f"{len(rows)} rows, but the order counts {order.n}"
        assert batch_size > 0, "a batch has at least one sample"
        self.reader, self.rows, self.order, self.batch_size, self.ahead = (
            reader,
            rows,
            order,
            batch_size,
            ahead,
        )
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="kata-batches")
        self._coming: dict[int, Future[Batch]] = {}

    def at(self, step: int) -> Batch:
        """The batch of positions [step * batch_size, (step + 1) * batch_size); these are batch["position"].

        Steps in sequence find their batch ready; a jump drops what was read ahead. Errors met in the
        background are raised here, for the step that they belong to.
        """
        wanted = range(step, step + self.ahead + 1)
        for other in [known for known in self._coming if known not in wanted]:
            self._coming.pop(other).cancel()
        for number in wanted:
            if number not in self._coming:
                self._coming[number] = self._pool.submit(self._read, number)
        return self._coming.pop(step).result()

    def _read(self, step: int) -> Batch:
        positions = np.arange(step * self.batch_size, (step + 1) * self.batch_size, dtype=np.int64)
        batch = self.reader.read(self.rows[self.order.at(positions)])
        batch["position"] = positions
        return batch

    def close(self) -> None:
        """Stop reading ahead; returns when the background thread is idle."""
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._coming.clear()

    def __enter__(self) -> Batches:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
