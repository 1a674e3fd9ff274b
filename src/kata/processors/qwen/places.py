"""Places of tokens in three axes, time, row and column, as Qwen's vision-language models count."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray


def multimodal_places(
    is_image: NDArray[np.bool_], grids: Iterable[tuple[int, int]]
) -> NDArray[np.int64]:
    """Return the place of each token, (3, L).

    A word follows what stands before it by one in all axes. The tokens of an image share a time;
    their rows and columns count on from there, and the next word follows the largest of them.

    Args:
        is_image: (L,), True for tokens of images; a word stands between two images.
        grids: rows and columns of tokens of each image, in the order in which they stand.
    """
    places = np.zeros((3, len(is_image)), np.int64)
    waiting = iter(grids)
    following, at = 0, 0
    while at < len(is_image):
        if not is_image[at]:
            places[:, at] = following
            following, at = following + 1, at + 1
            continue
        rows, columns = next(waiting)
        last = at + rows * columns
        places[0, at:last] = following
        places[1, at:last] = following + np.repeat(np.arange(rows), columns)
        places[2, at:last] = following + np.tile(np.arange(columns), rows)
        following, at = following + max(rows, columns), last
    return places
