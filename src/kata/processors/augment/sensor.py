"""Camera noise, blur, compression and light for many samples at once, each with its parameters.

Every class takes LeRobot's arguments. It is called with frames (n, T, C, H, W), float in [0, 1],
and `uniforms` random numbers per sample (n, uniforms) in (0, 1).
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from torchvision.io import decode_image, encode_jpeg

from kata.processors.augment.ranges import Uniform, on, pair, uniform_between, whole


class GaussianNoise:
    """Sensor noise: its standard deviation is drawn from `std`, on the scale 0 to 255."""

    uniforms = 3

    def __init__(self, std: Any = (5.0, 25.0)) -> None:
        self.range = pair((0.0, std) if isinstance(std, (int, float)) else std, 0.0, 255.0)

    def __call__(self, frames: Tensor, u: Uniform) -> Tensor:
        """Return noisy frames; each sample's noise has a separate seed."""
        noise = torch.empty_like(frames)
        for one, (high, low) in zip(noise, u[:, 1:], strict=True):
            seed = (int(high * 2**24) << 24) | int(low * 2**24)
            one.normal_(generator=torch.Generator(frames.device).manual_seed(seed))
        return (frames + noise * on(frames, uniform_between(self.range, u[:, 0]) / 255.0)).clamp_(
            0.0, 1.0
        )


class MotionBlur:
    """The mean along a line of random direction, of an odd length within `kernel_size`."""

    uniforms = 2

    def __init__(self, kernel_size: Any = (3, 11)) -> None:
        low, high = pair(
            (kernel_size,) * 2 if isinstance(kernel_size, int) else kernel_size, 1, 999
        )
        self.radius = ((int(low)) // 2, (int(high) - 1) // 2)
        if self.radius[0] > self.radius[1]:
            raise ValueError(f"kernel_size={kernel_size} holds no odd number")

    def __call__(self, frames: Tensor, u: Uniform) -> Tensor:
        """Blurred frames; edge pixels count as going on outside."""
        radius, angle = whole(self.radius, u[:, 0]), 2 * np.pi * u[:, 1].astype(np.float64)
        most = int(radius.max())
        kernels = np.zeros((len(u), 2 * most + 1, 2 * most + 1), np.float32)
        for kernel, r, turned in zip(kernels, radius, angle, strict=True):
            along = np.arange(-r, r + 1)
            kernel[
                np.rint(along * np.sin(turned)).astype(int) + most,
                np.rint(along * np.cos(turned)).astype(int) + most,
            ] = 1
            kernel /= kernel.sum()
        n, steps, channels, height, width = frames.shape
        flat = F.pad(frames.reshape(1, -1, height, width), (most,) * 4, mode="replicate")
        weight = (
            torch.from_numpy(kernels)
            .to(frames.device, frames.dtype)
            .repeat_interleave(steps * channels, 0)
        )
        return (
            F.conv2d(flat, weight.unsqueeze(1), groups=n * steps * channels)
            .reshape(frames.shape)
            .clamp_(0.0, 1.0)
        )


class JPEGCompression:
    """JPEG artifacts at a quality drawn from the range; runs on the host, frame by frame."""

    uniforms = 1

    def __init__(self, quality: Any = (15, 75)) -> None:
        self.range = pair((quality,) * 2 if isinstance(quality, int) else quality, 1, 100)

    def __call__(self, frames: Tensor, u: Uniform) -> Tensor:
        """Return the frames after encoding as JPEG and decoding."""
        host = (frames.clamp(0.0, 1.0) * 255.0).round().to(torch.uint8).cpu()
        done: list[Tensor] = []
        for sample, quality in zip(host, whole(self.range, u[:, 0]), strict=True):
            frames_of_sample = [_through_jpeg(frame, int(quality)) for frame in sample]
            done.append(torch.stack(frames_of_sample))
        return torch.stack(done).to(frames.device, frames.dtype) / 255.0


def _through_jpeg(frame: Tensor, quality: int) -> Tensor:
    encoded = encode_jpeg(frame, quality=quality)
    assert isinstance(encoded, Tensor)  # a list comes only from a list
    return decode_image(encoded)


class GaussianPatchBrightness:
    """Soft spots of light and shade, with random number, width (share of size) and factor."""

    def __init__(
        self,
        num_patches: Any = (1, 4),
        sigma_range: Any = (0.05, 0.25),
        factor_range: Any = (0.4, 1.6),
    ):
        self.count = pair(
            (num_patches,) * 2 if isinstance(num_patches, int) else num_patches, 1, 999
        )
        self.sigma, self.factor = (
            pair(sigma_range, 1e-6, math.inf),
            pair(factor_range, 0.0, math.inf),
        )
        self.uniforms = 1 + 4 * int(self.count[1])

    def __call__(self, frames: Tensor, u: Uniform) -> Tensor:
        """Frames under uneven light."""
        count = whole(self.count, u[:, 0])
        cy, cx, us, uf = np.split(u[:, 1:], 4, axis=1)
        sigma = uniform_between(self.sigma, us)
        factor = np.where(
            np.arange(us.shape[1]) < count[:, None], uniform_between(self.factor, uf), 1.0
        )
        y = torch.linspace(0, 1, frames.shape[-2], device=frames.device)[:, None]
        x = torch.linspace(0, 1, frames.shape[-1], device=frames.device)
        light = torch.ones_like(frames[:, :1, :1])
        for n in range(us.shape[1]):
            far = (y - on(frames, cy[:, n])) ** 2 + (x - on(frames, cx[:, n])) ** 2
            light = light * (
                1.0
                + on(frames, factor[:, n] - 1.0)
                * torch.exp(far * on(frames, -0.5 / sigma[:, n] ** 2))
            )
        return (frames * light).clamp_(0.0, 1.0)


class RandomShadow:
    """A darker or brighter upright band, a third to two thirds of the width, with soft edges."""

    uniforms = 4

    def __init__(self, opacity: Any = (0.3, 0.6)) -> None:
        self.opacity = pair(
            (opacity,) * 2 if isinstance(opacity, (int, float)) else opacity, 0.0, 1.0
        )

    def __call__(self, frames: Tensor, u: Uniform) -> Tensor:
        """Frames with a band of other brightness."""
        height, width = frames.shape[-2:]
        band = np.clip(np.rint(uniform_between((1 / 3, 2 / 3), u[:, 2]) * width), 1, width)
        start = np.rint(u[:, 1] * (width - band))
        change = uniform_between(self.opacity, u[:, 0]) * np.where(u[:, 3] < 0.5, -1.0, 1.0)
        x = torch.arange(width, device=frames.device)
        inside = (x >= on(frames, start)) & (x < on(frames, start + band))
        mask = 1.0 + inside * on(frames, change).expand(-1, 1, 1, height, width)
        size = min(8, height, width)
        if size > 1:
            small = F.avg_pool2d(mask[:, 0], size, stride=size)
            mask = F.interpolate(
                small, size=(height, width), mode="bilinear", align_corners=False
            ).unsqueeze(1)
        return (frames * mask).clamp_(0.0, 1.0)


class CoarseDropout:
    """Up to `max_holes` rectangles of at most the given shares of the size, filled evenly."""

    def __init__(
        self,
        max_holes: int = 8,
        max_height_frac: float = 0.07,
        max_width_frac: float = 0.07,
        fill_value: float = 0.0,
    ) -> None:
        if max_holes != int(max_holes) or max_holes < 1:
            raise ValueError(f"max_holes={max_holes} is not a whole number of at least 1")
        if not (
            0.0 < max_height_frac <= 1.0
            and 0.0 < max_width_frac <= 1.0
            and 0.0 <= fill_value <= 1.0
        ):
            raise ValueError("shares lie above 0 and up to 1, fill_value between 0 and 1")
        self.holes = max_holes
        self.most = (max_height_frac, max_width_frac)
        self.fill = fill_value
        self.uniforms = 1 + 4 * max_holes

    def __call__(self, frames: Tensor, u: Uniform) -> Tensor:
        """Frames with holes."""
        count = whole((1, self.holes), u[:, 0])
        hole = np.zeros((len(u), 1, 1, 1, 1), bool)
        hidden = torch.from_numpy(hole).to(frames.device).expand(-1, 1, 1, *frames.shape[-2:])
        for n in range(self.holes):
            v = u[:, 1 + 4 * n : 5 + 4 * n].astype(np.float64)
            inside = torch.from_numpy((n < count).reshape(-1, 1, 1, 1, 1)).to(frames.device)
            for axis, (side, most) in enumerate(zip(frames.shape[-2:], self.most, strict=True)):
                size = np.clip(np.rint(v[:, axis] * most * side), 1, side)
                start = np.rint(v[:, 2 + axis] * (side - size))
                place = torch.arange(side, device=frames.device).reshape(
                    (-1, 1) if axis == 0 else (1, -1)
                )
                inside = inside & (place >= on(frames, start)) & (place < on(frames, start + size))
            hidden = hidden | inside
        return torch.where(hidden, torch.full_like(frames, self.fill), frames)
