"""Index arithmetic from GOPs to the rows of the dataset that they show."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kata.data.arrays import Int64, ranges
from kata.data.format.episode_table import Span

if TYPE_CHECKING:
    from kata.data.dataset.windows import Episodes

_FRAME_BITS = 40
"""A key is file and frame number in one integer: 2^40 frames per file."""

_LONG_GROUP = 32
"""Frames of a GOP that are decoded in one pass in any case."""


class Members(NamedTuple):
    """The rows of some GOPs, ordered by GOP.

    file: (g,) of each GOP. rows: (n,). numbers: (n,) of the frames in the file. group: (n,) GOP of
    each row.
    """

    file: Int64
    rows: Int64
    numbers: Int64
    group: Int64


class GroupRows:
    """An index of the rows whose frames a stretch of a file shows.

    A GOP may belong to several episodes, whose rows need not follow one another; and an episode
    table may give the same frame to two of them.
    """

    def __init__(self, span: Span, episodes: Episodes) -> None:
        order = np.lexsort((span.first, span.file))
        self._length, self._start = episodes.length[order], episodes.start[order]
        self._begin = (span.file[order] << _FRAME_BITS) + span.first[order]
        self._reached = np.maximum.accumulate(self._begin + self._length)

    def of(self, file: Int64, first: Int64, end: Int64) -> Members:
        """Return the rows of the GOPs [first, end) of `file`, all (N,); a GOP may be named
        twice.
        """
        first, end = (file << _FRAME_BITS) + first, (file << _FRAME_BITS) + end
        first, once = np.unique(first, return_index=True)
        file, end = file[once], end[once]
        lowest = self._reached.searchsorted(first, side="right")
        several = np.maximum(self._begin.searchsorted(end) - lowest, 0)
        episode, group = ranges(lowest, several), np.arange(len(file)).repeat(several)
        low = np.maximum(first[group], self._begin[episode])
        count = np.maximum(
            np.minimum(end[group], self._begin[episode] + self._length[episode]) - low, 0
        )
        rows = ranges(low - self._begin[episode] + self._start[episode], count)
        return Members(
            file, rows, ranges(low & ((1 << _FRAME_BITS) - 1), count), group.repeat(count)
        )


def beyond_last_asked(members: Members, asked: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the mask (n,) of members of long GOPs that come after the last one asked for."""
    last = np.zeros(len(members.file), np.int64)
    np.maximum.at(last, members.group[asked], members.numbers[asked])
    is_long = np.bincount(members.group, minlength=len(members.file)) > _LONG_GROUP
    return is_long[members.group] & (members.numbers > last[members.group])
