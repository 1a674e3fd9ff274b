"""Conversion of camera frames to the float images that networks read."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from kata.spec import Batch, Colours


def frames_to_float(batch: Batch, cameras: Iterable[str]) -> Batch:
    """Return a batch whose uint8 frames (..., H, W, C) are float32 (..., C, H, W) in [0, 1]."""
    turned = dict(batch)
    for key in cameras:
        frames = turned[key]
        assert frames.dtype == torch.uint8, key
        # A view, not a copy: channels-last memory is the fastest layout for convolutions.
        turned[key] = frames.to(torch.float32).div_(255).movedim(-1, -3)
    return turned


def planes_to_rgb(planes: Tensor, colours: Colours) -> Tensor:
    """Return RGB frames uint8 (..., H, W, 3) of 4:2:0 planes uint8 (..., H * 3 / 2, W, 1).

    The rows of Y come first, then those of U and of V, two of them per row. Each U and V serves
    2 x 2 pixels. The pixels equal libswscale's, see `Colours`.
    """
    lines, width = planes.shape[-3] * 2 // 3, planes.shape[-2]
    luma, chroma = planes.flatten(-3).split((lines * width, lines * width // 2), dim=-1)
    y = _scaled(luma, colours.offset, colours.luma).unflatten(-1, (lines // 2, 2, width // 2, 2))
    u, v = chroma.unflatten(-1, (2, lines // 2, 1, width // 2, 1)).unbind(-5)
    rgb = torch.empty((*y.shape, 3), dtype=torch.uint8, device=planes.device)
    green = _scaled(u, 1024, colours.green_u) + _scaled(v, 1024, colours.green_v)
    for channel, part in enumerate(
        (_scaled(v, 1024, colours.red), green, _scaled(u, 1024, colours.blue))
    ):
        rgb[..., channel] = (y + part).clamp_(0, 255)
    return rgb.flatten(-5, -4).flatten(-3, -2)


def _scaled(values: Tensor, offset: int, factor: int) -> Tensor:
    """Return ((values << 3) - offset) * factor >> 16 as int16, which holds every result."""
    return (
        values.to(torch.int32)
        .mul_(8)
        .sub_(offset)
        .mul_(factor)
        .bitwise_right_shift_(16)
        .to(torch.int16)
    )
