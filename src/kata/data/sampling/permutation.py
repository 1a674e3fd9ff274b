"""The order of training: which anchor stands at a position of the endless sample stream. Pure
arithmetic.
"""

from __future__ import annotations

import zlib
from typing import Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kata.data.arrays import Int64

_UInt64: TypeAlias = NDArray[np.uint64]


_ROUNDS = 6


_STEP = np.uint64(0x9E3779B97F4A7C15)


def _mix(values: _UInt64) -> _UInt64:
    """SplitMix64's finaliser (Steele, Lea, Flood 2014): every input bit changes every output
    bit.
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def keyed(seed: int, purpose: str, epoch: int, values: Int64) -> _UInt64:
    """A random 64-bit number for each value (n,), the same for the same (seed, purpose, epoch,
    value).
    """
    with np.errstate(over="ignore"):
        key = _mix(
            np.full(1, seed % 2**64, np.uint64)
            + _STEP * np.uint64(zlib.crc32(purpose.encode()) | 1)
        )
        key = _mix(key ^ np.uint64(epoch % 2**64))
        return _mix(_mix(values.astype(np.uint64) + _STEP) ^ key)


class SampleOrder(Protocol):
    """An order of n anchors: which one stands at a position of the endless stream.

    cycle: positions that an epoch takes; of a mixture, that of the dataset whose epoch takes
        longest.
    """

    n: int
    cycle: int

    def at(self, positions: NDArray[np.integer]) -> Int64:
        """Anchor numbers in [0, n) at these positions, any shape; position // n is the epoch."""
        ...


class PermutationOrder:
    """A permutation of n anchors per epoch, keyed by (seed, epoch); nothing is stored.

    A Feistel network permutes the next power of four; values outside [0, n) are walked on along
    their cycle (Black and Rogaway 2002), which leaves a permutation of [0, n) exactly.

    Args:
        n: number of anchors, at least 1.
        seed: any integer; the same seed gives the same stream for ever.
        shuffle: False gives 0, 1, ..., n-1 in every epoch.
    """

    def __init__(self, n: int, seed: int, *, shuffle: bool = True) -> None:
        assert n > 0, "an order needs at least one anchor"
        self.n, self.seed, self.shuffle = n, seed, shuffle
        self.cycle = n
        self._half_bits = max(1, ((n - 1).bit_length() + 1) // 2)

    def at(self, positions: NDArray[np.integer]) -> Int64:
        """Anchor numbers in [0, n) at these positions, any shape; position // n is the epoch."""
        flat = np.asarray(positions, dtype=np.int64)
        epoch, place = np.divmod(flat, np.int64(self.n))
        if not self.shuffle:
            return place
        with np.errstate(over="ignore"):
            keys = _mix(
                _mix(np.full(1, self.seed % 2**64, np.uint64) + _STEP)
                ^ epoch.reshape(-1).astype(np.uint64)
            )
            walked = self._walk(place.reshape(-1).astype(np.uint64), keys)
        return walked.astype(np.int64).reshape(flat.shape)

    def _walk(self, values: _UInt64, keys: _UInt64) -> _UInt64:
        """Permute until every value lies in [0, n): less than four passes on average."""
        out = self._permute(values, keys)
        outside = np.flatnonzero(out >= self.n)
        while outside.size:
            again = self._permute(out[outside], keys[outside])
            out[outside] = again
            outside = outside[again >= self.n]
        return out

    def _permute(self, values: _UInt64, keys: _UInt64) -> _UInt64:
        """One pass of the Feistel network over 2 * half_bits bits."""
        half = np.uint64(self._half_bits)
        mask = np.uint64((1 << self._half_bits) - 1)
        left, right = values >> half, values & mask
        for number in range(_ROUNDS):
            salt = keys + _STEP * np.full(1, number + 1, np.uint64)
            left, right = right, left ^ (_mix(right ^ _mix(salt)) & mask)
        return (left << half) | right


Order = PermutationOrder
"""The public name in `kata.data`."""
