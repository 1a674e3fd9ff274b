"""Frames as cameras give them, turned into what networks read."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from kata.spec import Batch


def frames_to_float(batch: Batch, cameras: Iterable[str]) -> Batch:
    """A new batch with uint8 frames (..., H, W, C) turned to float32 (..., C, H, W) in [0, 1], on their device."""
    turned = dict(batch)
    for key in cameras:
        frames = turned[key]
        assert frames.dtype == torch.uint8, key
        # A view, not a copy: channels stay innermost in memory, the layout in which convolutions are fastest.
        turned[key] = frames.to(torch.float32).div_(255).movedim(-1, -3)
    return turned
