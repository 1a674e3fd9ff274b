"""How random an order is inside a batch, against one drawn from everywhere."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kata.data.clips import Clips
from kata.data.order import Anchors


@dataclass(frozen=True)
class OrderQuality:
    """Means over batches of one epoch.

    distinct_clips: different clips per batch. same_clip_pairs: share of a batch's pairs that come from one clip.
    uniform_*: what a uniform random order gives in expectation.
    """

    distinct_clips: float
    same_clip_pairs: float
    uniform_distinct_clips: float
    uniform_same_clip_pairs: float


def order_quality(order: Anchors, clips: Clips, batch_size: int, *, batches: int = 50) -> OrderQuality:
    """Measure `batches` batches spread evenly over the first epoch; `batch_size` at least 2."""
    steps = np.linspace(0, max(order.n // batch_size - 1, 0), batches).round().astype(np.int64)
    positions = np.unique(steps)[:, None] * batch_size + np.arange(batch_size)
    clip = np.sort(clips.of(order.at(positions).reshape(-1)).reshape(positions.shape), axis=1)
    distinct = 1 + (np.diff(clip, axis=1) != 0).sum(axis=1)
    pairs = batch_size * (batch_size - 1) / 2
    same = sum((clip[:, shift:] == clip[:, :-shift]).sum(axis=1) for shift in range(1, batch_size))
    share = clips.length / clips.n
    return OrderQuality(
        distinct_clips=float(distinct.mean()),
        same_clip_pairs=float(np.mean(same) / pairs),
        uniform_distinct_clips=float((1 - (1 - share) ** batch_size).sum()),
        uniform_same_clip_pairs=float((share**2).sum()),
    )
