"""Frames in the sizes of Qwen's image encoders, as the models' own processors resize them."""

from __future__ import annotations

import math

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torchvision.transforms.v2 import InterpolationMode
from torchvision.transforms.v2 import functional as F

from kata.errors import DataError

MOST_STRETCHED = 200
"""The largest ratio of two sides that Qwen's processors accept."""


def fitted_size(size: tuple[int, int], unit: int, least: int, most: int) -> tuple[int, int]:
    """Return height and width of a frame whose sides `unit` divides, nearly in its proportions.

    Args:
        size: height and width of the frame in pixels.
        unit: side of a token in pixels.
        least: the fewest pixels of the result.
        most: the most pixels of the result.

    Raises:
        DataError: one side is more than MOST_STRETCHED times as long as the other.
    """
    height, width = size
    if max(size) > MOST_STRETCHED * min(size):
        raise DataError(
            f"frames of {height}x{width} pixels",
            rule=f"no side is more than {MOST_STRETCHED} times as long as the other",
            remedy="choose cameras with other proportions",
        )
    rounded = (round(height / unit) * unit, round(width / unit) * unit)
    if rounded[0] * rounded[1] > most:
        shrunk = math.sqrt(height * width / most)
        high, wide = (max(unit, math.floor(side / shrunk / unit) * unit) for side in size)
        return high, wide
    if rounded[0] * rounded[1] < least:
        grown = math.sqrt(least / (height * width))
        high, wide = (math.ceil(side * grown / unit) * unit for side in size)
        return high, wide
    return rounded


def levels_of(frames: Tensor) -> Tensor:
    """Return frames in [0, 1] as uint8, rounded."""
    return frames.clamp(0, 1).mul(255.0).round().to(torch.uint8)


def resized(levels: Tensor, size: tuple[int, int], *, with_pillow: bool) -> Tensor:
    """Return frames in another size, by bicubic interpolation with smoothing.

    Args:
        levels: uint8 (B, 3, H, W).
        size: height and width of the result.
        with_pillow: on the CPU compute with Pillow, as the processors do that transformers calls
            slow. Other kernels, and those of other devices, differ from it by a level or two.

    Returns:
        uint8 (B, 3, height, width).
    """
    if tuple(levels.shape[-2:]) == tuple(size):
        return levels
    if not with_pillow or levels.device.type != "cpu":
        return F.resize(levels, list(size), InterpolationMode.BICUBIC, antialias=True)
    made: list[np.ndarray] = []
    for frame in levels.permute(0, 2, 3, 1).contiguous().numpy():
        image = Image.fromarray(frame).resize((size[1], size[0]), Image.Resampling.BICUBIC)
        made.append(np.asarray(image))
    return torch.from_numpy(np.stack(made)).permute(0, 3, 1, 2).contiguous()
