"""The order of a mixture: the dataset at each position of the stream, and the sample of it, by
arithmetic.

position g -> dataset i = table[g mod P] -> the n-th sample of that dataset's own stream,
n = (g div P) * c_i + rank
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from kata.data.arrays import Int64
from kata.data.sampling.permutation import PermutationOrder, SampleOrder
from kata.errors import DataError

PERIOD_MAX = 65_536
"""Longest period that is tabulated: 0.6 MB, and 0.2 s at the start of a run."""

_SPREAD = 0x5851F42D4C957F2D
"""Between the seeds of a mixture's datasets: large and odd, so that no two runs' seeds ever
meet.
"""


def whole_shares(weights: Sequence[float]) -> tuple[int, ...]:
    """Return whole numbers c_i in the ratio of the weights, which are read as decimal numbers.

    Their sum, the period, is at most PERIOD_MAX. A longer one is cut to that by the method of
    largest remainders, which moves each share by less than 1 / PERIOD_MAX.

    Raises: DataError for a share below 1 / PERIOD_MAX.
    """
    # 1. The exact ratio in smallest whole numbers: 0.1 is a tenth, not the float next to it.
    exact = [Fraction(str(weight)) for weight in weights]
    unit = math.lcm(*(f.denominator for f in exact))
    counts = [int(f * unit) for f in exact]
    divisor = math.gcd(*counts)
    counts = [c // divisor for c in counts]
    total = sum(counts)
    if total <= PERIOD_MAX:
        return tuple(counts)
    # 2. A longer period is scaled down to PERIOD_MAX; no dataset may lose its last place.
    wanted = [Fraction(c * PERIOD_MAX, total) for c in counts]
    if min(wanted) < 1:
        raise DataError(
            f"the share of dataset {wanted.index(min(wanted))} of the mixture is "
            f"{float(min(wanted)) / PERIOD_MAX:.2g}",
            rule=f"at least 1 of {PERIOD_MAX} samples",
            remedy="give it a larger weight (dataset.mix[i].weight), or leave it out",
        )
    # 3. Largest remainders: round down, then give the places left over to those that lost most.
    cut = [math.floor(w) for w in wanted]
    by_remainder = sorted(range(len(cut)), key=lambda i: (cut[i] - wanted[i], i))
    for i in by_remainder[: PERIOD_MAX - sum(cut)]:
        cut[i] += 1
    return tuple(cut)


class Shares:
    """A periodic schedule of k datasets with `counts[i]` places each in a period of P =
    sum(counts).

    After n samples the count of dataset i differs from n * c_i / P by at most 1 - 1 / (2k - 2),
    whence in every stretch of the stream by at most 2 - 1 / (k - 1) (k > 1): one sample for two
    datasets, less than two for any number. R. Tijdeman, "The chairman assignment problem", Discrete
    Mathematics 32 (1980).
    """

    def __init__(self, counts: Sequence[int]) -> None:
        assert counts, "a mixture has at least one dataset"
        assert min(counts) > 0, "a dataset without a share has no place in a mixture"
        self.counts = tuple(counts)
        self.period = sum(counts)
        self._table = _chairmen(self.counts)
        self._rank = np.empty(self.period, dtype=np.int64)
        for number, count in enumerate(self.counts):
            self._rank[self._table == number] = np.arange(count)

    @property
    def bound(self) -> float:
        """Return the samples by which a dataset's count in any stretch may differ from its exact
        share.
        """
        return 2 - 1 / (len(self.counts) - 1) if len(self.counts) > 1 else 0.0

    def at(self, positions: Int64) -> tuple[Int64, Int64]:
        """Return dataset number and place in that dataset's own stream, both of the shape of
        `positions`.
        """
        turn, place = np.divmod(np.asarray(positions, dtype=np.int64), np.int64(self.period))
        number = self._table[place].astype(np.int64)
        return number, turn * np.asarray(self.counts, dtype=np.int64)[number] + self._rank[place]

    def seen(self, samples: int) -> tuple[int, ...]:
        """Return the number of the first `samples` positions that belong to each dataset."""
        turns, rest = divmod(samples, self.period)
        begun = np.bincount(self._table[:rest], minlength=len(self.counts))
        return tuple(turns * c + int(b) for c, b in zip(self.counts, begun, strict=True))


def _chairmen(counts: Sequence[int]) -> np.ndarray:
    """Return Tijdeman's assignment over one period: of the datasets that are due, the one with the
    first deadline.

    Times are whole numbers in units of 1 / (P * (2k - 2)), so nothing is rounded.
    """
    k, period = len(counts), sum(counts)
    if k == 1:
        return np.zeros(period, dtype=np.int16)
    unit = 2 * k - 2
    table = np.empty(period, dtype=np.int16)
    step = [c * unit for c in counts]
    # 1. The first sample of each dataset: its release and its deadline.
    release = [period] * k  # dataset i is due at place n (from 1) when n * step[i] reaches it ...
    deadline = [
        -(-(period * (unit - 1)) // s) for s in step
    ]  # ... and must have come at this place
    given = [0] * k
    for n in range(1, period + 1):
        # 2. Earliest deadline first among those released; the lower number wins a tie.
        chosen = min((deadline[i], i) for i in range(k) if n * step[i] >= release[i])[1]
        table[n - 1] = chosen
        given[chosen] += 1
        # 3. The next release and deadline of the dataset that was given the place.
        base = given[chosen] * period * unit
        release[chosen] = base + period
        deadline[chosen] = -(-(base + period * (unit - 1)) // step[chosen])
    return table


def part_seed(seed: int, number: int) -> int:
    """Return the seed of the order of one dataset of a mixture."""
    return seed + number * _SPREAD


class MixtureOrder:
    """The order of a mixture: `Shares` over datasets whose anchors each have an order of their own.

    Anchors are numbered through: those of the second dataset follow those of the first. Each
    dataset runs through epochs of its own. A mixture of one has the order of that dataset alone.

    Args:
        orders: of each dataset's anchors, keyed by `part_seed`.
        shares: which dataset stands where.
    """

    def __init__(self, orders: Sequence[SampleOrder], shares: Shares) -> None:
        assert len(orders) == len(shares.counts), (
            f"{len(orders)} datasets, {len(shares.counts)} shares"
        )
        sizes = [order.n for order in orders]
        self.orders, self.shares, self.n = list(orders), shares, sum(sizes)
        self.cycle = max(
            -(-size * shares.period // count)
            for size, count in zip(sizes, shares.counts, strict=True)
        )
        self._first = np.cumsum(sizes) - np.asarray(sizes)

    @staticmethod
    def full(sizes: Sequence[int], shares: Shares, seed: int) -> MixtureOrder:
        """Return an order with a permutation per epoch of each dataset's anchors, `sizes` of
        them.
        """
        return MixtureOrder(
            [PermutationOrder(size, part_seed(seed, number)) for number, size in enumerate(sizes)],
            shares,
        )

    def at(self, positions: NDArray[np.integer]) -> Int64:
        """Return the anchor numbers in [0, n) at these positions, any shape."""
        number, place = self.shares.at(np.asarray(positions, dtype=np.int64))
        anchors = np.empty(number.shape, dtype=np.int64)
        for i, order in enumerate(self.orders):
            mine = number == i
            anchors[mine] = self._first[i] + order.at(place[mine])
        return anchors
