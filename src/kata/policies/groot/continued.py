"""GR00T's way of continuing a chunk that is still executed: its kind of real-time chunking."""

from __future__ import annotations

import torch
from torch import Tensor


def ramp(steps: int, given: int, fixed: int, rate: float) -> Tensor:
    """Return how far each action of a chunk may move from where it begins, (steps,) in [0, 1].

    The first actions begin with those of the last chunk.

    Args:
        steps: length of the chunk.
        given: actions that begin with the last chunk's.
        fixed: those of them that are executed before the new chunk is there: they stay.
        rate: of the exponential that leads from them to actions that are free.
    """
    fixed = max(0, min(fixed, given))
    strength = torch.ones(steps)
    strength[:fixed] = 0.0
    time = torch.linspace(0.0, 1.0, given - fixed + 2)
    rise = 1 - torch.exp(-rate * time)
    strength[fixed:given] = (rise / rise[-1].clamp_min(1e-8))[1:-1]
    return strength
