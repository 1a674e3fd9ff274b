"""Sizes of images for GR00T, and the two ways in which its checkpoints resize them."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torchvision.transforms import InterpolationMode
from torchvision.transforms.v2 import functional as F

Size = tuple[int, int]


@dataclass(frozen=True)
class Geometry:
    """Options of the images in a checkpoint, under LeRobot's names.

    Attributes:
        image_crop_size: height and width of the crop, whose share of the target counts.
        image_target_size: height and width in the end.
        shortest_image_edge: side before the crop; None takes the target's height.
        crop_fraction: share of the crop in place of that of `image_crop_size`.
        use_albumentations: keep proportions, and average pixels in resizing.
        letter_box_transform: pad to a square first.
    """

    image_crop_size: list[int] | None = None
    image_target_size: list[int] | None = None
    shortest_image_edge: int | None = None
    crop_fraction: float | None = None
    use_albumentations: bool = False
    letter_box_transform: bool = False

    @property
    def share(self) -> float | None:
        """Return the share of height and width that the crop keeps; None for no crop."""
        share = self.crop_fraction
        if share is None and self.image_crop_size is not None and self.image_target_size:
            share = self.image_crop_size[0] / float(self.image_target_size[0])
        return share if share is not None and 0 < share < 1 else None

    @property
    def edge(self) -> int:
        """Return the side that frames are resized to before the crop."""
        assert self.image_target_size is not None
        return self.shortest_image_edge or self.image_target_size[0]


def squared(frames: Tensor) -> Tensor:
    """Return frames (..., H, W) padded to squares with black, an odd pixel at the end."""
    height, width = frames.shape[-2:]
    edge = max(height, width)
    left, top = (edge - width) // 2, (edge - height) // 2
    return F.pad(frames, [left, top, edge - width - left, edge - height - top], fill=[0])


def bicubic(frames: Tensor, size: Size) -> Tensor:
    """Return uint8 frames (..., 3, H, W) of another size."""
    return F.resize(frames, list(size), InterpolationMode.BICUBIC, antialias=True)


def for_model(frames: Tensor, geometry: Geometry) -> Tensor:
    """Return uint8 frames (B, 3, H, W) as the backbone's processor gets them."""
    if geometry.image_target_size is None:
        return frames
    if geometry.letter_box_transform:
        frames = squared(frames)
    frames = bicubic(frames, (geometry.edge, geometry.edge))
    if geometry.share is not None:
        height, width = (max(1, round(side * geometry.share)) for side in frames.shape[-2:])
        top, left = (frames.shape[-2] - height) // 2, (frames.shape[-1] - width) // 2
        frames = frames[..., top : top + height, left : left + width]
    high, wide = geometry.image_target_size
    return frames if frames.shape[-2:] == (high, wide) else bicubic(frames, (high, wide))


def before_crop(frames: Tensor, geometry: Geometry) -> Tensor:
    """Return uint8 frames whose shorter side is resized, as albumentations does before a crop."""
    if geometry.image_target_size is None:
        return frames
    frames = squared(frames) if geometry.letter_box_transform else frames
    return shortest_edge(frames, geometry.edge)


def crop_size(size: Size, geometry: Geometry) -> Size:
    """Return height and width of albumentations' crop of frames of this size."""
    if geometry.share is None:
        return size
    return max(1, int(size[0] * geometry.share)), max(1, int(size[1] * geometry.share))


def shortest_edge(frames: Tensor, edge: int) -> Tensor:
    """Return uint8 frames (..., 3, H, W) whose shorter side is `edge`, resized by areas."""
    height, width = frames.shape[-2:]
    shortest = min(height, width)
    if shortest == edge:
        return frames
    scale = edge / float(shortest)
    size = (max(1, round(height * scale)), max(1, round(width * scale)))
    rows = area_weights(height, size[0]).to(frames.device)
    columns = area_weights(width, size[1]).to(frames.device)
    found = rows @ frames.float() @ columns.T
    return found.round().clamp(0, 255).to(torch.uint8)


@functools.cache
def area_weights(before: int, after: int) -> Tensor:
    """Return the weights of OpenCV's INTER_AREA along a side, float32 (after, before).

    A smaller image averages areas. A larger one interpolates between two pixels, and keeps each
    pixel's color in its inner part.
    """
    weights = torch.zeros(after, before)
    scale = before / after
    for place in range(after):
        if after > before:
            first = math.floor(place * scale)
            share = (place + 1) - (first + 1) / scale
            share = share - math.floor(share) if share > 0 else 0.0
            weights[place, first] += 1 - share
            weights[place, min(first + 1, before - 1)] += share
            continue
        start, end = place * scale, min((place + 1) * scale, before)
        for pixel in range(math.floor(start), min(math.ceil(end), before)):
            weights[place, pixel] = min(pixel + 1, end) - max(pixel, start)
        weights[place] /= weights[place].sum()
    return weights


def fitting_size(size: Size, factor: int, least: int, most: int) -> Size:
    """Return height and width that a multiple of `factor` divides, near others.

    Proportions are kept, roughly, where the area is between `least` and `most` pixels.
    """
    height, width = size
    high, wide = round(height / factor) * factor, round(width / factor) * factor
    if high * wide > most:
        ratio = math.sqrt(height * width / most)
        high = max(factor, math.floor(height / ratio / factor) * factor)
        wide = max(factor, math.floor(width / ratio / factor) * factor)
    elif high * wide < least:
        ratio = math.sqrt(least / (height * width))
        high = math.ceil(height * ratio / factor) * factor
        wide = math.ceil(width * ratio / factor) * factor
    return high, wide


def geometry_of(options: dict[str, Any]) -> Geometry:
    """Return the geometry among options of a checkpoint."""
    return Geometry(**{n: options[n] for n in Geometry.__dataclass_fields__ if n in options})
