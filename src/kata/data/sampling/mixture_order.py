"""The order of a mixture: the dataset and the sample at each position of the stream, by arithmetic.

    position g -> dataset i = table[g mod P] -> the n-th sample of that dataset's own stream,
    n = (g div P) * c_i + rank

Here P is the period of the table, c_i the places of dataset i in it, and rank the number of earlier
places of dataset i in the table.
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
"""Longest period of the table: it takes 0.6 MB, and 0.2 s at the start of a run."""

_SPREAD = 0x5851F42D4C957F2D
"""Distance of the seeds of a mixture's datasets. It is large and odd, so that the seeds of two runs
do not coincide.
"""


def whole_shares(weights: Sequence[float]) -> tuple[int, ...]:
    """Return whole numbers c_i in the ratio of the weights, which are read as decimal numbers.

    Their sum, the period, is at most PERIOD_MAX. A longer period is cut to that by the method of
    largest remainders, which changes each share by less than 1 / PERIOD_MAX.

    Args:
        weights: of each dataset, positive.

    Example:
        whole_shares([0.7, 0.3]) is (7, 3), and whole_shares([2, 1, 1]) is (2, 1, 1).

    Raises:
        DataError: A share is below 1 / PERIOD_MAX.
    """
    # 1. The exact ratio in smallest whole numbers. Through text: 0.1 means a tenth, not the float
    #    next to it, whose denominator is 2^55.
    exact = [Fraction(str(weight)) for weight in weights]
    unit = math.lcm(*(f.denominator for f in exact))
    counts = [int(f * unit) for f in exact]
    divisor = math.gcd(*counts)
    counts = [c // divisor for c in counts]
    total = sum(counts)
    if total <= PERIOD_MAX:
        return tuple(counts)
    # 2. Scale a longer period down to PERIOD_MAX. A dataset that loses its last place would never
    #    be read, so that is an error.
    wanted = [Fraction(c * PERIOD_MAX, total) for c in counts]
    if min(wanted) < 1:
        raise DataError(
            f"the share of dataset {wanted.index(min(wanted))} of the mixture is "
            f"{float(min(wanted)) / PERIOD_MAX:.2g}",
            rule=f"at least 1 of {PERIOD_MAX} samples",
            remedy="give it a larger weight (dataset.mix[i].weight), or leave it out",
        )
    # 3. Largest remainders: round down, then give the remaining places to those that lost most. The
    #    dataset's number breaks ties, so that the result is the same everywhere.
    cut = [math.floor(w) for w in wanted]
    by_remainder = sorted(range(len(cut)), key=lambda i: (cut[i] - wanted[i], i))
    for i in by_remainder[: PERIOD_MAX - sum(cut)]:
        cut[i] += 1
    return tuple(cut)


class Shares:
    """A periodic schedule of k datasets with `counts[i]` places each in a period of P =
    sum(counts).

    After n samples the count of dataset i differs from n * c_i / P by at most 1 - 1 / (2k - 2). So
    in every stretch of the stream it differs from the exact share by at most 2 - 1 / (k - 1), for k
    > 1. That is one sample for two datasets, and less than two for any number.

    Example:
        Shares((2, 1)) gives the places of a period to the datasets 0, 1, 0: at position 4 (place 1
        of the second period) stands sample 1 of dataset 1.

    Source: R. Tijdeman, "The chairman assignment problem", Discrete Mathematics 32 (1980).

    Args:
        counts: places of each dataset in a period, at least 1.
    """

    def __init__(self, counts: Sequence[int]) -> None:
        assert counts, "a mixture has at least one dataset"
        assert min(counts) > 0, "a dataset without a share has no place in a mixture"
        self.counts = tuple(counts)
        self.period = sum(counts)
        # `_rank` numbers the places of each dataset within a period, so that `at` needs no search.
        self._table = _chairmen(self.counts)
        self._rank = np.empty(self.period, dtype=np.int64)
        for number, count in enumerate(self.counts):
            self._rank[self._table == number] = np.arange(count)

    @property
    def bound(self) -> float:
        """Return the largest difference of a dataset's count from its exact share, in samples.

        It holds for any stretch of the stream.
        """
        return 2 - 1 / (len(self.counts) - 1) if len(self.counts) > 1 else 0.0

    def at(self, positions: Int64) -> tuple[Int64, Int64]:
        """Return the dataset at each position, and the place in that dataset's own stream.

        Args:
            positions: (n,) of the mixture's stream.

        Returns:
            Two int64 arrays of the shape of `positions`.
        """
        turn, place = np.divmod(np.asarray(positions, dtype=np.int64), np.int64(self.period))
        number = self._table[place].astype(np.int64)
        # Each earlier period consumed counts[i] samples of dataset i, and `_rank` counts the rest.
        counts = np.asarray(self.counts, dtype=np.int64)
        return number, turn * counts[number] + self._rank[place]

    def seen(self, samples: int) -> tuple[int, ...]:
        """Return how many of the first `samples` positions belong to each dataset."""
        turns, rest = divmod(samples, self.period)
        begun = np.bincount(self._table[:rest], minlength=len(self.counts))
        return tuple(turns * c + int(b) for c, b in zip(self.counts, begun, strict=True))


def _chairmen(counts: Sequence[int]) -> np.ndarray:
    """Return Tijdeman's assignment over one period, int16 (P,).

    Each place goes to the dataset with the earliest deadline among those that are due. Times are
    whole numbers in units of 1 / (P * (2k - 2)), so nothing is rounded.
    """
    k, period = len(counts), sum(counts)
    if k == 1:
        return np.zeros(period, dtype=np.int16)
    unit = 2 * k - 2
    table = np.empty(period, dtype=np.int16)
    step = [c * unit for c in counts]
    # 1. The first sample of each dataset. It is released at place n (from 1) when n * step[i]
    #    reaches `release[i]`, and must have its place at `deadline[i]` at the latest.
    release = [period] * k
    deadline = [-(-(period * (unit - 1)) // s) for s in step]
    given = [0] * k
    for n in range(1, period + 1):
        # 2. Earliest deadline first among those released. Tijdeman proves that no deadline is ever
        #    missed this way; the lower number wins a tie.
        chosen = min((deadline[i], i) for i in range(k) if n * step[i] >= release[i])[1]
        table[n - 1] = chosen
        given[chosen] += 1
        # 3. The next release and deadline of the dataset that was given the place.
        base = given[chosen] * period * unit
        release[chosen] = base + period
        deadline[chosen] = -(-(base + period * (unit - 1)) // step[chosen])
    return table


def part_seed(seed: int, number: int) -> int:
    """Return the seed for the order of dataset `number` of a mixture.

    Dataset 0 has the seed of the run, so a mixture of one is read in the order of its dataset.
    """
    return seed + number * _SPREAD


class MixtureOrder:
    """An order of a mixture: `Shares` over datasets, each of which has an order of its anchors.

    Anchors are numbered through: those of the second dataset follow those of the first. Each
    dataset counts its epochs by itself. A mixture of one has the order of that dataset alone.

    Args:
        orders: of each dataset's anchors, keyed by `part_seed`.
        shares: the schedule of the datasets.
    """

    def __init__(self, orders: Sequence[SampleOrder], shares: Shares) -> None:
        assert len(orders) == len(shares.counts), (
            f"{len(orders)} datasets, {len(shares.counts)} shares"
        )
        sizes = [order.n for order in orders]
        self.orders = list(orders)
        self.shares = shares
        self.n = sum(sizes)
        # The positions after which the slowest dataset has finished an epoch.
        self.cycle = max(
            -(-size * shares.period // count)
            for size, count in zip(sizes, shares.counts, strict=True)
        )
        self._first = np.cumsum(sizes) - np.asarray(sizes)

    @staticmethod
    def full(sizes: Sequence[int], shares: Shares, seed: int) -> MixtureOrder:
        """Return an order with a permutation per epoch of each dataset's anchors.

        Args:
            sizes: anchors of each dataset.
            shares: the schedule of the datasets.
            seed: of the run.
        """
        return MixtureOrder(
            [PermutationOrder(size, part_seed(seed, number)) for number, size in enumerate(sizes)],
            shares,
        )

    def at(self, positions: NDArray[np.integer]) -> Int64:
        """Return the anchors at some positions of the stream.

        Args:
            positions: integers of any shape.

        Returns:
            Anchor numbers in [0, n), int64, of the same shape.
        """
        number, place = self.shares.at(np.asarray(positions, dtype=np.int64))
        anchors = np.empty(number.shape, dtype=np.int64)
        for i, order in enumerate(self.orders):
            mine = number == i
            anchors[mine] = self._first[i] + order.at(place[mine])
        return anchors
