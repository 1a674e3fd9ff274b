"""An order of anchors by a keyed permutation per epoch: pure arithmetic, no table."""

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
    """Return SplitMix64's finaliser (Steele, Lea, Flood 2014) of each value.

    Every input bit changes every output bit with a probability of about one half.
    """
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


def keyed(seed: int, purpose: str, epoch: int, values: Int64) -> _UInt64:
    """Return a random 64-bit number for each value.

    Args:
        seed: any integer.
        purpose: name of the use; other purposes give independent numbers.
        epoch: number of the epoch.
        values: (n,) integers.

    Returns:
        (n,) uint64, a function of (seed, purpose, epoch, value).
    """
    # Unsigned overflow is intended: these are operations modulo 2^64.
    with np.errstate(over="ignore"):
        salt = np.uint64(zlib.crc32(purpose.encode()) | 1)
        key = _mix(np.full(1, seed % 2**64, np.uint64) + _STEP * salt)
        key = _mix(key ^ np.uint64(epoch % 2**64))
        return _mix(_mix(values.astype(np.uint64) + _STEP) ^ key)


class SampleOrder(Protocol):
    """An order of n anchors over the endless stream of samples.

    Attributes:
        n: number of anchors.
        cycle: positions that an epoch takes; of a mixture, those of the dataset whose epoch takes
            longest.
    """

    n: int
    cycle: int

    def at(self, positions: NDArray[np.integer]) -> Int64:
        """Return the anchors at positions of any shape, in [0, n); position // n is the epoch."""
        ...


class PermutationOrder:
    """A permutation of n anchors per epoch, keyed by (seed, epoch); nothing is stored.

    A Feistel network permutes the next power of four. Values outside [0, n) are permuted again
    until they are inside (cycle walking; Black and Rogaway 2002), which gives an exact permutation
    of [0, n).

    Args:
        n: number of anchors, at least 1.
        seed: any integer; the same seed always gives the same stream.
        shuffle: False gives 0, 1, ..., n-1 in every epoch.
    """

    def __init__(self, n: int, seed: int, *, shuffle: bool = True) -> None:
        assert n > 0, "an order needs at least one anchor"
        self.n = n
        self.seed = seed
        self.shuffle = shuffle
        self.cycle = n
        # Half of the bits of the largest anchor, rounded up: both halves of the network are equal.
        self._half_bits = max(1, ((n - 1).bit_length() + 1) // 2)

    def at(self, positions: NDArray[np.integer]) -> Int64:
        """Return the anchors at some positions of the stream.

        Args:
            positions: integers of any shape; position // n is the epoch.

        Returns:
            Anchor numbers in [0, n), int64, of the same shape.
        """
        flat = np.asarray(positions, dtype=np.int64)
        epoch, place = np.divmod(flat, np.int64(self.n))
        if not self.shuffle:
            return place
        # Unsigned overflow is intended: these are operations modulo 2^64.
        with np.errstate(over="ignore"):
            of_seed = _mix(np.full(1, self.seed % 2**64, np.uint64) + _STEP)
            keys = _mix(of_seed ^ epoch.reshape(-1).astype(np.uint64))
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
        """Apply one pass of the Feistel network over 2 * half_bits bits."""
        half = np.uint64(self._half_bits)
        mask = np.uint64((1 << self._half_bits) - 1)
        left, right = values >> half, values & mask
        for number in range(_ROUNDS):
            salt = keys + _STEP * np.full(1, number + 1, np.uint64)
            # A Feistel round is invertible whatever the mixing function is, so the whole is a
            # permutation.
            left, right = right, left ^ (_mix(right ^ _mix(salt)) & mask)
        return (left << half) | right


Order = PermutationOrder
"""The public name in `kata.data`."""
