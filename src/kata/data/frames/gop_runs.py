"""Runs of neighbouring GOPs of a video file, which are fetched together where all may be kept."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kata.data.arrays import Int64

_RUN_BYTES = 512 * 1024
"""Bytes of a run, to which a last GOP adds. A file without as many is one run. Requests of this
size cost little more than their bytes, and the first batch need not wait long for its own.
"""


@dataclass(frozen=True, eq=False)
class GopRuns:
    """The runs of a file's GOPs that selected episodes show.

    Attributes:
        run: (G,) the run of each GOP, or -1.
        begin: (R,) first byte.
        end: (R,) end of the bytes.
    """

    run: Int64
    begin: Int64
    end: Int64

    @property
    def bytes(self) -> int:
        """Return the bytes of all runs."""
        return int((self.end - self.begin).sum())

    @staticmethod
    def of(gops: tuple[Int64, Int64, Int64], first: Int64, stop: Int64) -> GopRuns:
        """Return the runs of a file.

        Args:
            gops: (G,) first frame, first byte and end of the bytes of each GOP.
            first: (E,) first frame of each episode.
            stop: (E,) the frame after its last one.
        """
        first_frame, begin, end = gops
        # 1. The GOPs that episodes show: +1 where an episode begins, -1 behind its last GOP.
        change = np.zeros(len(first_frame) + 1, np.int64)
        np.add.at(change, first_frame.searchsorted(first, side="right") - 1, 1)
        np.add.at(change, first_frame.searchsorted(stop), -1)
        shown = np.flatnonzero(np.cumsum(change)[:-1] > 0)
        # 2. A run ends where GOPs are left out, or their bytes do not touch.
        is_new = np.ones(len(shown), bool)
        is_new[1:] = (np.diff(shown) > 1) | (begin[shown[1:]] != end[shown[:-1]])
        start = np.flatnonzero(is_new)[np.cumsum(is_new) - 1]
        # 3. It is also cut every _RUN_BYTES.
        part = (begin[shown] - begin[shown[start]]) // _RUN_BYTES
        is_new[1:] |= np.diff(part) > 0
        run = np.full(len(first_frame), -1)
        run[shown] = np.cumsum(is_new) - 1
        last = np.append(np.flatnonzero(is_new)[1:], len(shown)) - 1
        return GopRuns(run, begin[shown[is_new]], end[shown[last]])

    def of_gops(self, gops: Int64) -> Int64:
        """Return the runs (r,) that contain some GOPs (n,)."""
        return np.unique(self.run[gops])
