"""Parameters of augmentations: ranges that users give, and values drawn from them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Uniform: TypeAlias = NDArray[np.float32]
Range: TypeAlias = tuple[float, float]


def pair(value: Any, low: float, high: float) -> Range:
    """A range (min, max) inside [low, high]; ValueError otherwise."""
    if not isinstance(value, Sequence) or len(value) != 2:
        raise ValueError(f"{value} is not a pair (min, max)")
    first, last = float(value[0]), float(value[1])
    if not low <= first <= last <= high:
        raise ValueError(f"{value} is not a range inside [{low:g}, {high:g}]")
    return first, last


def around_one(value: Any) -> Range:
    """b means (max(0, 1 - b), 1 + b), as in torchvision."""
    if isinstance(value, (int, float)):
        value = (max(0.0, 1.0 - value), 1.0 + value)
    return pair(value, 0.0, math.inf)


def uniform_between(bounds: Range, u: NDArray[Any]) -> NDArray[np.float64]:
    """Numbers evenly spread over a range."""
    return bounds[0] + (bounds[1] - bounds[0]) * u.astype(np.float64)


def whole(bounds: Range, u: NDArray[Any]) -> NDArray[np.int64]:
    """Whole numbers min..max, both included, equally often."""
    return (bounds[0] + np.floor(u.astype(np.float64) * (bounds[1] - bounds[0] + 1))).astype(
        np.int64
    )


def on(frames: Tensor, values: NDArray[Any]) -> Tensor:
    """Return parameters (n,) or (n, k...) as (n, k..., 1, 1, 1, 1) on the frames' device."""
    placed = torch.from_numpy(np.ascontiguousarray(values, dtype=np.float32)).to(
        frames.device, non_blocking=True
    )
    return placed.reshape(*placed.shape, 1, 1, 1, 1)
