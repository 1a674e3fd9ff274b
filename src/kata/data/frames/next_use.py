"""A plan of the coming batches: the next step that wants a frame, by index arithmetic."""

from __future__ import annotations

import numpy as np

from kata.data.arrays import Int64
from kata.data.storage.fetch_requests import NEVER

_STEP_BITS = 20
MAX_STEPS = 1 << _STEP_BITS
"""Steps that one `NextUse` can tell apart."""


def held_as_rgb(offsets: tuple[int, ...]) -> bool:
    """Return True if frames of this window are held as RGB instead of planes.

    A frame serves as many samples as the window has offsets. From three on, it is worth twice the
    memory to convert once and copy afterwards.
    """
    return len(offsets) > 2


class NextUse:
    """The uses of a camera's frames over some steps: one sorted array of (row, step), 8 bytes each.

    Belady's rule needs the next use of any frame at any step. A dictionary of lists would take
    about 100 bytes per use, and a loop in Python to build.

    Example:
        Row 7 is wanted at steps 2 and 5. Then after([7], 1) is [2], after([7], 2) is [5], and
        after([7], 5) is [NEVER].

    Args:
        rows: (N, T) rows of the frames that each anchor wants.
        steps: (N,) the step of each anchor, less than MAX_STEPS after the first one.
    """

    def __init__(self, rows: Int64, steps: Int64) -> None:
        self._first = int(steps.min()) if len(steps) else 0
        offset = steps - self._first
        assert offset.max(initial=0) < MAX_STEPS, "too many steps for one plan"
        # Row in the upper bits, step in the lower ones: one binary search finds row and step
        # together.
        self._keys = np.unique((rows << _STEP_BITS) | offset[:, None])

    def after(self, rows: Int64, step: int) -> Int64:
        """Return the first step later than `step` that wants each row, or NEVER.

        Args:
            rows: (n,) rows of the dataset.
            step: uses at this step or before do not count.

        Returns:
            (n,) int64.
        """
        # 1. The smallest key that would be an answer: this row, at the next step. Past the last
        #    step this is the first key of the next row, which step 3 rejects.
        later = min(max(step - self._first + 1, 0), MAX_STEPS)
        wanted = rows << _STEP_BITS
        # 2. The first stored key that is not smaller.
        place = self._keys.searchsorted(wanted + later)
        if not len(self._keys):
            return np.full(len(rows), NEVER)
        found = self._keys[np.minimum(place, len(self._keys) - 1)]
        # 3. It is an answer only if it belongs to the same row.
        is_hit = (place < len(self._keys)) & (found >> _STEP_BITS == rows)
        return np.where(is_hit, (found & (MAX_STEPS - 1)) + self._first, NEVER)


class UsePlan:
    """The next uses of all cameras' frames. It is empty before the first plan."""

    def __init__(self, uses: dict[str, NextUse]) -> None:
        self._uses = uses

    def after(self, camera: str, rows: Int64, step: int | None) -> Int64:
        """Return the first step later than `step` that wants each row (n,).

        Returns:
            (n,) int64; NEVER where no step does, and for all rows without a plan or a step.
        """
        uses = self._uses.get(camera)
        if step is None or uses is None:
            return np.full(len(rows), NEVER)
        return uses.after(rows, step)
