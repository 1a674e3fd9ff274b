"""A one-dimensional U-Net over time with FiLM conditioning (arXiv 1709.07871); LeRobot's names."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint


class StepSinusoid(nn.Module):
    """Sinusoidal embedding of step numbers, with geometric periods from 2 pi to 20,000 pi."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, step: Tensor) -> Tensor:
        """Map step numbers (B,) to (B, width), sines first."""
        half = self.width // 2
        rates = torch.exp(torch.arange(half, device=step.device) * (-math.log(10_000) / (half - 1)))
        angle = step[:, None] * rates
        return torch.cat((angle.sin(), angle.cos()), dim=-1)


class ConvBlock(nn.Module):
    """Convolution over time, group norm, Mish."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int, groups: int) -> None:
        super().__init__()
        self.block = nn.Sequential(
            nn.Conv1d(channels_in, channels_out, kernel, padding=kernel // 2),
            nn.GroupNorm(groups, channels_out),
            nn.Mish(),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Map (B, channels_in, T) to (B, channels_out, T)."""
        return self.block(x)


@dataclass(frozen=True)
class UNetShape:
    """Widths of a U-Net: condition, levels, kernel; `scale` adds a factor to FiLM's shift."""

    channels: int
    condition: int
    levels: tuple[int, ...]
    kernel: int
    groups: int
    step_width: int
    scale: bool


class ConditionedBlock(nn.Module):
    """Two residual convolution blocks; the condition shifts (and scales) channels in between."""

    def __init__(self, channels_in: int, channels_out: int, shape: UNetShape) -> None:
        super().__init__()
        self.scale = shape.scale
        self.conv1 = ConvBlock(channels_in, channels_out, shape.kernel, shape.groups)
        width = channels_out * (2 if shape.scale else 1)
        self.cond_encoder = nn.Sequential(
            nn.Mish(), nn.Linear(shape.step_width + shape.condition, width)
        )
        self.conv2 = ConvBlock(channels_out, channels_out, shape.kernel, shape.groups)
        same = channels_in == channels_out
        self.residual_conv = nn.Identity() if same else nn.Conv1d(channels_in, channels_out, 1)

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        """Map (B, channels_in, T) under a condition (B, D) to (B, channels_out, T)."""
        out, condition = self.conv1(x), self.cond_encoder(condition)[..., None]
        if self.scale:
            factor, shift = condition.chunk(2, dim=1)
            out = factor * out + shift
        else:
            out = out + condition
        return self.conv2(out) + self.residual_conv(x)


class UNet1d(nn.Module):
    """Sequences (B, T, C) to sequences of the same shape, under a condition and a step number.

    T must be a multiple of 2 ** (levels - 1). recompute: blocks keep no activations while training.
    """

    def __init__(self, shape: UNetShape, *, recompute: bool = False) -> None:
        super().__init__()
        self.recompute = recompute
        width, levels = shape.step_width, shape.levels
        self.diffusion_step_encoder = nn.Sequential(
            StepSinusoid(width), nn.Linear(width, 4 * width), nn.Mish(), nn.Linear(4 * width, width)
        )
        # 1. Down: two blocks per level, then half the time steps, but for the last level.
        pairs = list(pairwise((shape.channels, *levels)))
        self.down_modules = nn.ModuleList(
            nn.ModuleList(
                (
                    ConditionedBlock(before, after, shape),
                    ConditionedBlock(after, after, shape),
                    nn.Conv1d(after, after, 3, 2, 1) if number < len(pairs) - 1 else nn.Identity(),
                )
            )
            for number, (before, after) in enumerate(pairs)
        )
        # 2. The middle has the width of the last level.
        self.mid_modules = nn.ModuleList(
            ConditionedBlock(levels[-1], levels[-1], shape) for _ in range(2)
        )
        # 3. Up: the skipped activations double the channels that a level's first block reads.
        self.up_modules = nn.ModuleList(
            nn.ModuleList(
                (
                    ConditionedBlock(2 * after, before, shape),
                    ConditionedBlock(before, before, shape),
                    nn.ConvTranspose1d(before, before, 4, 2, 1),
                )
            )
            for before, after in reversed(pairs[1:])
        )
        # 4. The output, with 8 groups whatever the configuration says, as in LeRobot.
        self.final_conv = nn.Sequential(
            ConvBlock(levels[0], levels[0], shape.kernel, 8),
            nn.Conv1d(levels[0], shape.channels, 1),
        )

    def forward(self, x: Tensor, step: Tensor, condition: Tensor) -> Tensor:
        """Map samples (B, T, C), step numbers (B,) and conditions (B, D) to (B, T, C)."""
        # One condition for all blocks, which each of them projects to its channels.
        condition = torch.cat((self.diffusion_step_encoder(step), condition), dim=-1)
        x = x.transpose(1, 2)
        # The way down keeps one activation per level until the way up has used it.
        skipped: list[Tensor] = []
        for first, second, half in _levels(self.down_modules):
            x = self._run((first, second), x, condition)
            skipped.append(x)
            x = half(x)
        x = self._run(tuple(self.mid_modules), x, condition)
        for first, second, double in _levels(self.up_modules):
            x = double(self._run((first, second), torch.cat((x, skipped.pop()), dim=1), condition))
        return self.final_conv(x).transpose(1, 2)

    def blocks(self) -> list[nn.Module]:
        """Return every conditioned block."""
        return [module for module in self.modules() if isinstance(module, ConditionedBlock)]

    def _run(self, blocks: Sequence[nn.Module], x: Tensor, condition: Tensor) -> Tensor:
        # Recomputing costs a second forward pass of each block, and saves its activations.
        for block in blocks:
            if self.recompute and self.training:
                done: Tensor | None = checkpoint(block, x, condition, use_reentrant=False)
            else:
                done = block(x, condition)
            assert done is not None  # as checkpoint's type has it
            x = done
        return x


def _levels(modules: nn.ModuleList) -> list[tuple[nn.Module, nn.Module, nn.Module]]:
    """Return the three modules of each level."""
    parts: list[tuple[nn.Module, nn.Module, nn.Module]] = []
    for level in modules:
        assert isinstance(level, nn.ModuleList)
        parts.append((level[0], level[1], level[2]))
    return parts
