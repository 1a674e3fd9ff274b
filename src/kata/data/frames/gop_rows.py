"""Which rows of a dataset lie in a group of pictures, by index arithmetic."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kata.data.arrays import Int64, ranges
from kata.data.format.episode_table import Span

if TYPE_CHECKING:
    from kata.data.dataset.windows import Episodes

_FRAME_BITS = 40
"""Frames of one file that are told apart."""


class Members(NamedTuple):
    """The `file` (g,) of each group; `rows` (n,), their frame `numbers` (n,) in the file, and their `group` (n,)."""

    file: Int64
    rows: Int64
    numbers: Int64
    group: Int64


class GroupRows:
    """Finds the rows whose frames lie in a stretch of a file.

    A group of pictures may belong to several episodes, whose rows need not follow one another; and an episode table
    may give the same frame to two of them.
    """

    def __init__(self, span: Span, episodes: Episodes) -> None:
        order = np.lexsort((span.first, span.file))
        self._length, self._start = episodes.length[order], episodes.start[order]
        self._begin = (span.file[order] << _FRAME_BITS) + span.first[order]
        self._reached = np.maximum.accumulate(self._begin + self._length)

    def of(self, file: Int64, first: Int64, end: Int64) -> Members:
        """The rows of the groups that frames [first, end) of `file` are, all (N,) and each group once or more."""
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
