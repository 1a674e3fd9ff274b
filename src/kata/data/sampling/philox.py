"""Random numbers keyed by (seed, position, purpose), by the counter-based generator Philox.

Philox 4x32 with ten rounds (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", 2011),
vectorised: the counter is (block, position), the key is (seed, purpose). A sample's numbers are the
same on any rank, in any batch, in any order. np.random.Philox takes one key per generator, so it
cannot be vectorised over positions.
"""

from __future__ import annotations

import math
import zlib
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kata.spec import Draw

_M0, _M1 = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_W0, _W1 = 0x9E3779B9, 0xBB67AE85
_LOW = np.uint64(0xFFFFFFFF)
_HALF = np.uint64(32)


def philox(counter: NDArray[np.uint64], key: tuple[int, int]) -> NDArray[np.uint64]:
    """Return four random 32-bit words per counter.

    Args:
        counter: (..., 4) 32-bit words held as uint64.
        key: two 32-bit words.

    Returns:
        (..., 4) uint64.
    """
    c0, c1, c2, c3 = (counter[..., i] for i in range(4))
    k0, k1 = key
    for _ in range(10):
        # A round multiplies two of the words to 64 bits, mixes the high halves into the other two
        # words, and permutes all four. 64-bit arrays hold the products without a carry.
        p0, p1 = _M0 * c0, _M1 * c2
        c0 = (p1 >> _HALF) ^ c1 ^ np.uint64(k0)
        c1 = p1 & _LOW
        c2 = (p0 >> _HALF) ^ c3 ^ np.uint64(k1)
        c3 = p0 & _LOW
        # Weyl sequence: another key in each round costs two additions.
        k0, k1 = (k0 + _W0) & 0xFFFFFFFF, (k1 + _W1) & 0xFFFFFFFF
    return np.stack([c0, c1, c2, c3], axis=-1)


def draw(seed: int, positions: NDArray[np.int64], purpose: str, draw: Draw) -> NDArray[np.float32]:
    """Return random numbers for the samples at some positions of the stream.

    Args:
        seed: of the run.
        positions: (B,) of the stream.
        purpose: name of the use; other purposes give independent numbers.
        draw: shape per sample, and distribution. 'uniform' is in (0, 1); 'normal' is standard
            normal by the formula of Box and Muller.

    Returns:
        (B, *draw.shape) float32.
    """
    # 1. Four words per block.
    size = math.prod(draw.shape)
    where = np.asarray(positions, dtype=np.uint64)
    words = _words(seed, where, purpose, size)
    # 2. 24 bits fill the mantissa of a float32. The half excludes 0 and 1, so that log() in
    #    `_normal` is finite.
    uniform = ((words >> np.uint64(8)).astype(np.float64) + 0.5) / float(1 << 24)
    values = uniform if draw.kind == "uniform" else _normal(uniform)
    # 3. The last block of a sample may have up to three numbers too many.
    of_samples = values.reshape(len(where), -1)[:, :size]
    return of_samples.reshape(len(where), *draw.shape).astype(np.float32)


def _words(seed: int, positions: NDArray[Any], purpose: str, size: int) -> NDArray[np.uint64]:
    """Return random 32-bit words (B, blocks, 4), at least `size` per position.

    The counter is (block of four numbers, position low, position high, seed high), so no two
    positions and no two numbers of one share a counter.
    """
    blocks = -(-size // 4)
    where = positions.astype(np.uint64)
    counter = np.zeros((len(where), blocks, 4), dtype=np.uint64)
    counter[..., 0] = np.arange(blocks, dtype=np.uint64)
    counter[..., 1] = (where & _LOW)[:, None]
    counter[..., 2] = (where >> _HALF)[:, None]
    counter[..., 3] = np.uint64((seed >> 32) & 0xFFFFFFFF)
    return philox(counter, (seed & 0xFFFFFFFF, zlib.crc32(purpose.encode())))


def _normal(uniform: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return standard normal numbers, two from each two uniform ones (Box and Muller 1958)."""
    radius = np.sqrt(-2.0 * np.log(uniform[..., 0::2]))
    angle = 2.0 * np.pi * uniform[..., 1::2]
    return np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).reshape(
        uniform.shape
    )


def draw_below(
    seed: int, position: int, purpose: str, shape: tuple[int, ...], bound: int
) -> NDArray[np.int64]:
    """Return random whole numbers in [0, bound).

    Args:
        seed: of the run.
        position: of the stream.
        purpose: name of the use; other purposes give independent numbers.
        shape: of the result.
        bound: at most 2^32. Numbers are equally likely up to bound / 2^32.
    """
    size = math.prod(shape)
    words = _words(seed, np.array([position]), purpose, size)
    scaled = words.reshape(-1)[:size] * np.uint64(bound) >> _HALF
    return scaled.astype(np.int64).reshape(shape)
