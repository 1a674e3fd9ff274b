"""Rotary position embeddings (arXiv 2104.09864) for given positions; pairs are halves apart."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rotation(NamedTuple):
    """Cosines and sines of the angles of some positions, each float32 (B, 1, L, D / 2)."""

    cos: Tensor
    sin: Tensor


def rotation_at(
    positions: Tensor, width: int, base: float, *, rounds_frequency: bool = False
) -> Rotation:
    """Return the rotation of positions (B, L) for heads of `width` numbers.

    The angle of pair i is position / base^(2 i / width), computed in float32.

    Args:
        positions: (B, L).
        width: of a head.
        base: of the periods.
        rounds_frequency: round 1 / base^(2 i / width) before it is multiplied by the position, as
            transformers does. Angles of far positions differ in the last digits otherwise.
    """
    half = torch.arange(width // 2, dtype=torch.float32, device=positions.device)
    period = base ** ((2.0 / width) * half)
    place = positions[:, None, :, None].float()
    angles = place * (1.0 / period) if rounds_frequency else place / period
    return Rotation(angles.cos(), angles.sin())


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """Return `x` (B, heads, L, D), rotated in float32 and cast back."""
    first, second = x.float().chunk(2, dim=-1)
    turned = (first * by.cos - second * by.sin, second * by.cos + first * by.sin)
    return torch.cat(turned, dim=-1).to(x.dtype)
