"""When each frame of the coming batches is wanted: index arithmetic on sorted whole numbers."""

from __future__ import annotations

import numpy as np

from kata.data.arrays import Int64

NEVER = 2**62
"""Later than any step."""

_STEP_BITS = 20
MAX_STEPS = 1 << _STEP_BITS
"""Steps that one `NextUse` can tell apart."""


def held_as_rgb(offsets: tuple[int, ...]) -> bool:
    """Whether frames of this window are held converted: a copy is cheaper than a conversion, but takes twice the room.

    A frame serves as many samples as the window has offsets.
    """
    return len(offsets) > 2


class NextUse:
    """The uses of frames over some steps, as one sorted array of (row, step): 8 bytes per frame of each batch.

    Args:
        rows: (N, T) rows of the frames that each anchor wants.
        steps: (N,) the step that each anchor belongs to, all within MAX_STEPS of the least.
    """

    def __init__(self, rows: Int64, steps: Int64) -> None:
        self._first = int(steps.min()) if len(steps) else 0
        offset = steps - self._first
        assert offset.max(initial=0) < MAX_STEPS, "too many steps for one plan"
        self._keys = np.unique((rows << _STEP_BITS) | offset[:, None])

    def after(self, rows: Int64, step: int) -> Int64:
        """For each row (n,), the first step later than `step` that wants it, or NEVER."""
        later = min(max(step - self._first + 1, 0), MAX_STEPS)
        wanted = rows << _STEP_BITS
        place = self._keys.searchsorted(wanted + later)
        found = (
            self._keys[np.minimum(place, len(self._keys) - 1)] if len(self._keys) else wanted - 1
        )
        hit = (place < len(self._keys)) & (found >> _STEP_BITS == rows)
        return np.where(hit, (found & (MAX_STEPS - 1)) + self._first, NEVER)
