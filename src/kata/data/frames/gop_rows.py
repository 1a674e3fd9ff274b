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
"""Bits of the frame number in a key, which is file and frame number in one integer."""

_LONG_GROUP = 32
"""Frames of a GOP up to which all of it is decoded, even for the first batch."""


class Members(NamedTuple):
    """The rows of some GOPs, ordered by GOP.

    Attributes:
        file: (g,) file of each GOP.
        rows: (n,) rows of the dataset.
        numbers: (n,) numbers of the frames in the file.
        group: (n,) the GOP of each row.
    """

    file: Int64
    rows: Int64
    numbers: Int64
    group: Int64


class GroupRows:
    """An index of the rows whose frames a range of a file shows.

    A GOP may belong to several episodes, and their rows need not be contiguous. An episode table
    may even give the same frame to two episodes.

    Example:
        Episode 0 has rows 0-9, shown by frames 0-9 of file 0; episode 1 has rows 10-19, shown by
        frames 10-19. The GOP of frames 8-11 shows the rows 8-11, of both episodes.

    Args:
        span: position of each episode in the camera's files.
        episodes: first row and length of each episode.
    """

    def __init__(self, span: Span, episodes: Episodes) -> None:
        # Episodes in the order of their frames. `_reached` is the furthest end so far: it ascends
        # even where episodes overlap, so that a binary search may use it.
        order = np.lexsort((span.first, span.file))
        self._length, self._start = episodes.length[order], episodes.start[order]
        self._begin = (span.file[order] << _FRAME_BITS) + span.first[order]
        self._reached = np.maximum.accumulate(self._begin + self._length)

    def of(self, file: Int64, first: Int64, end: Int64) -> Members:
        """Return the rows of some GOPs, [first, end) of `file`.

        Args:
            file: (N,) number of the file.
            first: (N,) first frame of the GOP; a GOP may be named twice.
            end: (N,) the frame after its last one.
        """
        # 1. Each GOP once, as a range of keys.
        first, end = (file << _FRAME_BITS) + first, (file << _FRAME_BITS) + end
        first, once = np.unique(first, return_index=True)
        file, end = file[once], end[once]
        # 2. The episodes that may overlap it: from the first that reaches beyond its begin to the
        #    last that begins before its end.
        lowest = self._reached.searchsorted(first, side="right")
        several = np.maximum(self._begin.searchsorted(end) - lowest, 0)
        episode, group = ranges(lowest, several), np.arange(len(file)).repeat(several)
        # 3. The overlap with each; it is empty for episodes in between that end too early.
        low = np.maximum(first[group], self._begin[episode])
        high = np.minimum(end[group], self._begin[episode] + self._length[episode])
        count = np.maximum(high - low, 0)
        rows = ranges(low - self._begin[episode] + self._start[episode], count)
        numbers = ranges(low & ((1 << _FRAME_BITS) - 1), count)
        return Members(file, rows, numbers, group.repeat(count))


def beyond_last_asked(members: Members, asked: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return the mask (n,) of members of long GOPs that come after the last one asked for."""
    last = np.zeros(len(members.file), np.int64)
    np.maximum.at(last, members.group[asked], members.numbers[asked])
    is_long = np.bincount(members.group, minlength=len(members.file)) > _LONG_GROUP
    return is_long[members.group] & (members.numbers > last[members.group])
