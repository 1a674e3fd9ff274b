"""Colour, sharpness and place, changed for many samples at once, each with its own parameters.

Every class takes LeRobot's arguments. It is called with frames (n, T, C, H, W), float in [0, 1],
and `uniforms` random numbers per sample (n, uniforms) in (0, 1).
Colors and geometry follow torchvision's definitions.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from kata.processors.augment.ranges import Uniform, around_one, on, pair, uniform_between, whole

_GREY = (0.2989, 0.587, 0.114)


def _blend(frames: Tensor, other: Tensor, factor: Tensor) -> Tensor:
    return (frames * factor + other * (1.0 - factor)).clamp_(0.0, 1.0)


def _grey(frames: Tensor) -> Tensor:
    if frames.shape[2] == 1:
        return frames
    red, green, blue = frames.unbind(2)
    return (red * _GREY[0] + green * _GREY[1] + blue * _GREY[2]).unsqueeze(2)


class Identity:
    """Leaves the frames as they are."""

    uniforms = 0

    def __call__(self, frames: Tensor, u: Uniform) -> Tensor:
        """The frames."""
        del u
        return frames


class ColorJitter:
    """Jitter of brightness, contrast, saturation (factors) or hue (up to half a turn)."""

    uniforms = 1

    def __init__(self, **kwargs: Any) -> None:
        if len(kwargs) != 1:
            raise ValueError("give brightness, contrast, saturation or hue")
        self.name, value = next(iter(kwargs.items()))
        if self.name not in ("brightness", "contrast", "saturation", "hue"):
            raise TypeError(f"{self.name} is none of brightness, contrast, saturation, hue")
        if self.name == "hue":
            self.range = pair(
                (-value, value) if isinstance(value, (int, float)) else value, -0.5, 0.5
            )
        else:
            self.range = around_one(value)

    def __call__(self, frames: Tensor, u: Uniform) -> Tensor:
        """Frames with another colour. Saturation and hue leave a camera without colour as it is."""
        factor = on(frames, uniform_between(self.range, u[:, 0]))
        if self.name == "brightness":
            return (frames * factor).clamp_(0.0, 1.0)
        if self.name == "contrast":
            return _blend(frames, _grey(frames).mean(dim=(2, 3, 4), keepdim=True), factor)
        if frames.shape[2] != 3:
            return frames
        if self.name == "saturation":
            return _blend(frames, _grey(frames), factor)
        return _shift_hue(frames, factor.squeeze(2))


def _shift_hue(frames: Tensor, turns: Tensor) -> Tensor:
    """Shift the hue by `turns` (n, 1, 1, 1) in the hexagonal model of HSV (Smith 1978)."""
    red, green, blue = frames.unbind(2)
    value = frames.amax(2)
    spread = value - frames.amin(2)
    grey = spread == 0
    safe = torch.where(grey, torch.ones_like(spread), spread)
    sixth = torch.where(
        value == red,
        (green - blue) / safe,
        torch.where(value == green, 2.0 + (blue - red) / safe, 4.0 + (red - green) / safe),
    )
    sixth = torch.where(grey, torch.zeros_like(sixth), sixth) + 6.0 * turns
    # A channel is the value minus the spread times a trapezoid of the hue, a third of a turn apart.
    parts: list[Tensor] = []
    for offset in (5.0, 3.0, 1.0):
        k = torch.remainder(offset + sixth, 6.0)
        parts.append(value - spread * torch.minimum(k, 4.0 - k).clamp(0.0, 1.0))
    return torch.stack(parts, dim=2).clamp_(0.0, 1.0)


class SharpnessJitter:
    """Jitter of sharpness: 0 blurs, 1 keeps, 2 doubles the difference to the blurred frame."""

    uniforms = 1

    def __init__(self, sharpness: Any) -> None:
        self.range = around_one(sharpness)

    def __call__(self, frames: Tensor, u: Uniform) -> Tensor:
        """Sharper or softer frames; their outermost pixels stay, as in torchvision."""
        height, width = frames.shape[-2:]
        if height <= 2 or width <= 2:
            return frames
        kernel = torch.ones(1, 1, 3, 3, device=frames.device, dtype=frames.dtype)
        kernel[..., 1, 1] = 5.0
        flat = frames.reshape(-1, 1, height, width)
        soft = flat.clone()
        soft[..., 1:-1, 1:-1] = F.conv2d(flat, kernel / 13.0)
        return _blend(
            frames, soft.reshape(frames.shape), on(frames, uniform_between(self.range, u[:, 0]))
        )


class RandomAffine:
    """Rotation, shift (share of the size), scale and shear; nearest pixel, black outside."""

    uniforms = 6

    def __init__(
        self, degrees: Any, translate: Any = None, scale: Any = None, shear: Any = None
    ) -> None:
        self.degrees = pair(
            (-degrees, degrees) if isinstance(degrees, (int, float)) else degrees, -360, 360
        )
        shift = (0.0, 0.0) if translate is None else translate
        if (
            not isinstance(shift, Sequence)
            or len(shift) != 2
            or not all(0.0 <= float(x) <= 1.0 for x in shift)
        ):
            raise ValueError(f"translate={translate} is not a pair of shares between 0 and 1")
        self.shift = (float(shift[0]), float(shift[1]))
        self.scale = pair((1.0, 1.0) if scale is None else scale, 1e-3, 1e3)
        shear = (
            (0.0, 0.0)
            if shear is None
            else (-shear, shear)
            if isinstance(shear, (int, float))
            else shear
        )
        flat = (*shear, 0.0, 0.0) if len(shear) == 2 else tuple(shear)
        self.shear_x, self.shear_y = pair(flat[:2], -89, 89), pair(flat[2:], -89, 89)

    def __call__(self, frames: Tensor, u: Uniform) -> Tensor:
        """Moved frames."""
        height, width = frames.shape[-2:]
        theta = self._inverse(u, height, width)
        grid = F.affine_grid(
            theta.to(frames.device, non_blocking=True), [len(u), 1, height, width], False
        )
        flat = frames.flatten(1, 2)
        return F.grid_sample(flat, grid, mode="nearest", align_corners=False).reshape(frames.shape)

    def _inverse(self, u: Uniform, height: int, width: int) -> Tensor:
        """Return maps (n, 2, 3) from result to source, in the grid's units of half a side."""
        angle = np.deg2rad(uniform_between(self.degrees, u[:, 0]))
        tx = np.round(uniform_between((-1, 1), u[:, 1]) * self.shift[0] * width)
        ty = np.round(uniform_between((-1, 1), u[:, 2]) * self.shift[1] * height)
        scale = uniform_between(self.scale, u[:, 3])
        sx, sy = (
            np.deg2rad(uniform_between(self.shear_x, u[:, 4])),
            np.deg2rad(uniform_between(self.shear_y, u[:, 5])),
        )
        a = np.cos(angle - sy) / np.cos(sy)
        b = -np.cos(angle - sy) * np.tan(sx) / np.cos(sy) - np.sin(angle)
        c = np.sin(angle - sy) / np.cos(sy)
        d = -np.sin(angle - sy) * np.tan(sx) / np.cos(sy) + np.cos(angle)
        inverse = np.stack([np.stack([d, -b], -1), np.stack([-c, a], -1)], 1) / scale[:, None, None]
        moved = inverse @ np.stack([-tx, -ty], -1)[..., None]
        half = np.array([width, height], np.float64) / 2.0
        theta = np.concatenate([inverse * half / half[:, None], moved / half[:, None]], axis=2)
        return torch.from_numpy(theta.astype(np.float32))


class GammaCorrection:
    """Exposure: frames to the power gamma, whose logarithm is uniform over the range."""

    uniforms = 1

    def __init__(self, gamma: Any = (0.5, 2.0)) -> None:
        if isinstance(gamma, (int, float)):
            gamma = sorted((float(gamma), 1.0 / gamma)) if gamma > 0 else (gamma, gamma)
        self.range = pair(gamma, 1e-6, math.inf)

    def __call__(self, frames: Tensor, u: Uniform) -> Tensor:
        """Brighter or darker frames."""
        logs = (math.log(self.range[0]), math.log(self.range[1]))
        return frames.pow(on(frames, np.exp(uniform_between(logs, u[:, 0])))).clamp_(0.0, 1.0)


class PlanckianJitter:
    """Color temperature of the light (kelvin): red and blue scaled as those of a black body.

    Source: Zini et al., "Planckian Jitter: countering the color-crippling effects of color jitter",
    2023. The coefficients are those of the authors' table, linear in between.
    """

    uniforms = 1

    def __init__(self, temperature: Any = (3_000, 15_000)) -> None:
        self.range = pair(
            (temperature,) * 2 if isinstance(temperature, int) else temperature, 3_000, 15_000
        )

    def __call__(self, frames: Tensor, u: Uniform) -> Tensor:
        """Warmer or colder frames; a camera without colour stays as it is."""
        if frames.shape[2] != 3:
            return frames
        kelvin = np.arange(3_000, 15_001, 500)
        table = np.array(_BLACK_BODY, np.float64)
        at = whole(self.range, u[:, 0])
        red, green, blue = (np.interp(at, kelvin, column) for column in table.T)
        scale = np.stack([red / green, np.ones_like(red), blue / green], axis=1)
        return (frames * on(frames, scale).reshape(len(u), 1, 3, 1, 1)).clamp_(0.0, 1.0)


_BLACK_BODY = (
    *(
        (0.6743, 0.4029, 0.0013),
        (0.6281, 0.4241, 0.1665),
        (0.5919, 0.4372, 0.2513),
        (0.5623, 0.4457, 0.3154),
    ),
    *(
        (0.5376, 0.4515, 0.3672),
        (0.5163, 0.4555, 0.4103),
        (0.4979, 0.4584, 0.4468),
        (0.4816, 0.4604, 0.4782),
    ),
    *(
        (0.4672, 0.4619, 0.5053),
        (0.4542, 0.4630, 0.5289),
        (0.4426, 0.4638, 0.5497),
        (0.4320, 0.4644, 0.5681),
    ),
    *(
        (0.4223, 0.4648, 0.5844),
        (0.4135, 0.4651, 0.5990),
        (0.4054, 0.4653, 0.6121),
        (0.3980, 0.4654, 0.6239),
    ),
    *(
        (0.3911, 0.4655, 0.6346),
        (0.3847, 0.4656, 0.6444),
        (0.3787, 0.4656, 0.6532),
        (0.3732, 0.4656, 0.6613),
    ),
    *(
        (0.3680, 0.4655, 0.6688),
        (0.3632, 0.4655, 0.6756),
        (0.3586, 0.4655, 0.6820),
        (0.3544, 0.4654, 0.6878),
    ),
    (0.3503, 0.4653, 0.6933),
)
"""Red, green and blue of a black body from 3,000 to 15,000 kelvin in steps of 500."""
