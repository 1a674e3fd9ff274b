"""Array types of the data engine, and arithmetic on them."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray


def ranges(starts: Int64, lengths: Int64) -> Int64:
    """Return the concatenation of [start, start + length) over all pairs.

    Args:
        starts: (n,) first number of each range.
        lengths: (n,) count of numbers of each range; 0 is allowed.

    Returns:
        (sum of lengths,) int64.

    Example:
        starts [5, 0] and lengths [2, 3] give [5, 6, 0, 1, 2].
    """
    ends = lengths.cumsum()
    return (starts - (ends - lengths)).repeat(lengths) + np.arange(
        ends[-1] if len(ends) else 0, dtype=np.int64
    )


Int64: TypeAlias = NDArray[np.int64]


Pixels: TypeAlias = NDArray[np.uint8]
