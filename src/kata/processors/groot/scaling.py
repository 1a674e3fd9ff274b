"""Scaling to [-1, 1] and back, by the smallest and the largest number."""

from __future__ import annotations

import torch
from torch import Tensor

from kata.processors.steps import StateDict


def scaled(values: Tensor, low: Tensor, high: Tensor, *, clips: bool) -> Tensor:
    """Return values (..., D) in [-1, 1]; numbers that never change become 0."""
    low, high = low.to(values), high.to(values)
    span = high - low
    moves = span != 0
    found = 2 * (values - low) / torch.where(moves, span, torch.ones_like(span)) - 1
    found = torch.where(moves, found, torch.zeros_like(found))
    return found.clamp(-1.0, 1.0) if clips else found


def unscaled(values: Tensor, low: Tensor, high: Tensor, *, clips: bool = True) -> Tensor:
    """Return values (..., D) from [-1, 1]; numbers that never change get their only value."""
    low, high = low.to(values), high.to(values)
    values = values.clamp(-1.0, 1.0) if clips else values
    return (values + 1.0) * 0.5 * (high - low) + low


def limits_of(stats: StateDict, width: int) -> tuple[Tensor, Tensor]:
    """Return min and max, (width,): cut, or continued with 0 and 1, as LeRobot does."""
    found: list[Tensor] = []
    for name, default in (("min", 0.0), ("max", 1.0)):
        values = stats.get(name, torch.empty(0)).flatten().float()[:width]
        rest = torch.full((width - len(values),), default)
        found.append(torch.cat((values, rest)))
    return found[0], found[1]
