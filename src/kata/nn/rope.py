"""Rotary position embeddings (arXiv 2104.09864) for given positions; pairs are halves apart."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Rotation(NamedTuple):
    """Cosines and sines of the angles of some positions, each float32 (B, 1, L, D / 2)."""

    cos: Tensor
    sin: Tensor


def rotation_at(positions: Tensor, width: int, base: float) -> Rotation:
    """Return the rotation of positions (B, L) for heads of `width` numbers.

    The angle of pair i is position / base^(2 i / width), computed in float32.
    """
    half = torch.arange(width // 2, dtype=torch.float32, device=positions.device)
    angles = positions[:, None, :, None].float() / base ** ((2.0 / width) * half)
    return Rotation(angles.cos(), angles.sin())


def rotate(x: Tensor, by: Rotation) -> Tensor:
    """Return `x` (B, heads, L, D), rotated in float32 and cast back."""
    first, second = x.float().chunk(2, dim=-1)
    turned = (first * by.cos - second * by.sin, second * by.cos + first * by.sin)
    return torch.cat(turned, dim=-1).to(x.dtype)
