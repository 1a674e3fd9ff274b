"""The plan of the coming batches: the step that wants a frame next, by index arithmetic."""

from __future__ import annotations

import numpy as np

from kata.data.arrays import Int64

NEVER = 2**62
"""Later than any step."""

_STEP_BITS = 20
MAX_STEPS = 1 << _STEP_BITS
"""Steps that one `NextUse` can tell apart."""


def held_as_rgb(offsets: tuple[int, ...]) -> bool:
    """Return True if frames of this window are held as RGB.

    A frame serves as many samples as the window has offsets. From three on, the copies that RGB
    saves the conversion of are worth twice the memory.
    """
    return len(offsets) > 2


class NextUse:
    """The uses of a camera's frames over some steps, as one sorted array of (row, step) in 8 bytes
    each.

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
        """Return for each row (n,) the first step later than `step` that wants it, or NEVER."""
        # 1. The smallest key that would do: this row, at the next step. `later` past the last step
        #    becomes the first key of the next row, which step 3 rejects.
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
    """The next uses of all cameras' frames; empty before the first plan."""

    def __init__(self, uses: dict[str, NextUse]) -> None:
        self._uses = uses

    def after(self, camera: str, rows: Int64, step: int | None) -> Int64:
        """Return for each row (n,) the first step later than `step` that wants it; NEVER without a
        plan or step.
        """
        uses = self._uses.get(camera)
        if step is None or uses is None:
            return np.full(len(rows), NEVER)
        return uses.after(rows, step)
