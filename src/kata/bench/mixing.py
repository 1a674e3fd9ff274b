"""The mixing of an order in clips: how many clips a batch has samples of."""

from __future__ import annotations

from dataclasses import asdict

from kata.data.sampling.clip_order import ClipOrder, order_quality
from kata.data.sampling.mixture_order import MixtureOrder
from kata.data.sampling.permutation import SampleOrder


def mixing_of(order: SampleOrder, batch_size: int) -> dict[str, float]:
    """Return how an order in clips mixes them, and the figures of a uniform order.

    A full order, whose figures would be the uniform ones, gives an empty dictionary.
    """
    assert isinstance(order, MixtureOrder)
    (own,) = order.orders
    if not isinstance(own, ClipOrder) or batch_size < 2:
        return {}
    found = order_quality(own, own.clips, batch_size)
    return {"clips_per_batch": found.distinct_clips} | asdict(found)
