"""Qwen2.5-VL's image encoder (arXiv 2502.13923): most layers see windows of an image, few see all
of it. Module names are those of transformers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kata.nn.decoder import INITIAL_STD, GatedMLP, RMSNorm
from kata.nn.qwen.patches import PatchEmbedding, normalized, patches_of
from kata.nn.qwen.rope import grid_angles
from kata.nn.rope import Rotation, rotate

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
"""Mean and deviation of frames in [0, 1], which are those of CLIP."""

EPS = 1e-6


@dataclass(frozen=True)
class VisionSizes:
    """Sizes of the encoder.

    Attributes:
        out: width of a token of the language model.
        patch: side of a patch in pixels.
        merge: patches along a side that become one token.
        frames: frames that the first linear map takes together.
        window: side of a window in pixels.
        whole: layers whose patches see the whole image.
    """

    width: int
    mlp: int
    layers: int
    heads: int
    out: int
    whole: tuple[int, ...]
    patch: int = 14
    merge: int = 2
    frames: int = 2
    window: int = 112


class _Run(NamedTuple):
    """Images of one size, whose patches stand in a row, window by window.

    Attributes:
        images: their number.
        length: patches of an image.
        windows: number and patches of its windows of each size, one after another.
    """

    images: int
    length: int
    windows: list[tuple[int, int]]


def _blocks(rows: int, columns: int, side: int) -> list[tuple[slice, int, slice, int]]:
    """Return the blocks of a grid whose windows have one size: rows, window height, columns, width.

    Windows at the right and lower edges may be smaller.
    """
    found: list[tuple[slice, int, slice, int]] = []
    for down in _stretches(rows, side):
        for right in _stretches(columns, side):
            found.append((*down, *right))
    return found


def _stretches(length: int, side: int) -> list[tuple[slice, int]]:
    """Return the part of a side that whole windows cover, and the rest, each with its windows'."""
    covered = length // side * side
    parts = [(slice(0, covered), side), (slice(covered, length), length - covered)]
    return [part for part in parts if part[0].start < part[0].stop]


def _into_windows(grid: Tensor, side: int) -> Tensor:
    """Return (N, rows, columns, ...) as (N, rows * columns, ...), window by window."""
    parts: list[Tensor] = []
    for down, height, right, width in _blocks(grid.shape[1], grid.shape[2], side):
        block = grid[:, down, right]
        split = block.unflatten(1, (-1, height)).unflatten(3, (-1, width))
        parts.append(split.transpose(2, 3).flatten(1, 4))
    return torch.cat(parts, dim=1)


def _from_windows(tokens: Tensor, rows: int, columns: int, side: int) -> Tensor:
    """Return (N, rows * columns, D) in the order of rows: the inverse of `_into_windows`."""
    grid = tokens.new_empty(len(tokens), rows, columns, tokens.shape[2])
    first = 0
    for down, height, right, width in _blocks(rows, columns, side):
        high, wide = down.stop - down.start, right.stop - right.start
        block = tokens[:, first : first + high * wide]
        split = block.unflatten(1, (high // height, wide // width, height, width))
        grid[:, down, right] = split.transpose(2, 3).reshape(len(tokens), high, wide, -1)
        first += high * wide
    return grid.flatten(1, 2)


class _VisionAttention(nn.Module):
    """Attention among the patches of a window or of an image."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(
        self, x: Tensor, rotation: Rotation, runs: Sequence[_Run], *, is_whole: bool
    ) -> Tensor:
        """(S, width) -> (S, width), for the patches of all images in a row."""
        split = self.qkv(x).unflatten(1, (3, self.heads, -1)).permute(1, 2, 0, 3)
        query, keys = rotate(split[0], rotation), rotate(split[1], rotation)
        joined = torch.stack((query.to(split.dtype), keys.to(split.dtype), split[2]))
        parts: list[Tensor] = []
        first = 0
        for run in runs:
            last = first + run.images * run.length
            images = joined[:, :, first:last].unflatten(2, (run.images, run.length))
            parts.append(self._seen(images, [(1, run.length)] if is_whole else run.windows))
            first = last
        return self.proj(torch.cat(parts))

    def _seen(self, images: Tensor, windows: list[tuple[int, int]]) -> Tensor:
        """Return what patches of images (3, heads, N, L, D) collect in windows, (N * L, width)."""
        parts: list[Tensor] = []
        first = 0
        for count, length in windows:
            inside = images[:, :, :, first : first + count * length]
            split = inside.unflatten(3, (count, length)).permute(0, 2, 3, 1, 4, 5).flatten(1, 2)
            found = F.scaled_dot_product_attention(split[0], split[1], split[2])
            joined = found.transpose(1, 2).flatten(2)
            parts.append(joined.reshape(images.shape[2], count * length, -1))
            first += count * length
        return torch.cat(parts, dim=1).flatten(0, 1)


class VisionBlock(nn.Module):
    """A layer of the encoder; `is_whole` if its patches see the whole image."""

    def __init__(self, sizes: VisionSizes, *, is_whole: bool) -> None:
        super().__init__()
        self.is_whole = is_whole
        self.norm1 = RMSNorm(sizes.width, EPS)
        self.norm2 = RMSNorm(sizes.width, EPS)
        self.attn = _VisionAttention(sizes.width, sizes.heads)
        self.mlp = GatedMLP(sizes.width, sizes.mlp, bias=True)

    def forward(self, x: Tensor, rotation: Rotation, runs: Sequence[_Run]) -> Tensor:
        """(S, width) -> (S, width), for the patches of all images in a row."""
        x = x + self.attn(self.norm1(x), rotation, runs, is_whole=self.is_whole)
        return x + self.mlp(self.norm2(x))


class _Merger(nn.Module):
    """The map of neighboring patches to a token of the language model."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        inner = sizes.width * sizes.merge**2
        self.ln_q = RMSNorm(sizes.width, EPS)
        self.mlp = nn.Sequential(nn.Linear(inner, inner), nn.GELU(), nn.Linear(inner, sizes.out))
        self.together = sizes.merge**2

    def forward(self, x: Tensor) -> Tensor:
        """(S, width) -> (S / merge^2, out)."""
        return self.mlp(self.ln_q(x).unflatten(0, (-1, self.together)).flatten(1))


class QwenVision(nn.Module):
    """Frames to tokens of the language model."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.patch_embed = PatchEmbedding(sizes.width, sizes.patch, sizes.frames, bias=False)
        self.blocks = nn.ModuleList(
            VisionBlock(sizes, is_whole=i in sizes.whole) for i in range(sizes.layers)
        )
        self.merger = _Merger(sizes)
        for module in self.modules():
            if isinstance(module, nn.Linear | nn.Conv3d):
                nn.init.normal_(module.weight, std=INITIAL_STD)
            if isinstance(module, nn.Linear):
                nn.init.zeros_(module.bias)

    @property
    def side(self) -> int:
        """Return the side of a window in tokens."""
        return self.sizes.window // self.sizes.merge // self.sizes.patch

    def forward(self, cameras: Sequence[Tensor]) -> list[Tensor]:
        """Return the tokens of each camera's frames, (N, rows * columns, out).

        Args:
            cameras: frames (N, 3, H, W) in [0, 1]; cameras may differ in size, and
                `patch * merge` divides each height and width.
        """
        unit = self.sizes.patch * self.sizes.merge
        grids = [(one.shape[2] // unit, one.shape[3] // unit) for one in cameras]
        # 1. All patches in a row, window by window.
        x = self.patch_embed(torch.cat([self._patches(one) for one in cameras]))
        angles: list[Tensor] = []
        runs: list[_Run] = []
        for one, (rows, columns) in zip(cameras, grids, strict=True):
            angles.append(self._angles(rows, columns, one).repeat(len(one), 1))
            runs.append(self._run(len(one), rows, columns))
        turned = torch.cat(angles)
        rotation = Rotation(turned.cos(), turned.sin())
        # 2. The layers, and tokens in the order of rows.
        for block in self.blocks:
            x = block(x, rotation, runs)
        counts = [run.images * run.length // self.sizes.merge**2 for run in runs]
        tokens = self.merger(x).split(counts)
        found: list[Tensor] = []
        for own, one, (rows, columns) in zip(tokens, cameras, grids, strict=True):
            found.append(_from_windows(own.unflatten(0, (len(one), -1)), rows, columns, self.side))
        return found

    def _patches(self, frames: Tensor) -> Tensor:
        """Return the patches of frames in a row, (S, 3 * patch * patch)."""
        sizes = self.sizes
        unit = sizes.patch * sizes.merge
        grid = (frames.shape[2] // unit, frames.shape[3] // unit)
        split = patches_of(normalized(frames, MEAN, STD), sizes.patch, sizes.merge)
        tokens = split.unflatten(1, (*grid, sizes.merge**2))
        return _into_windows(tokens, self.side).flatten(0, 2)

    def _angles(self, rows: int, columns: int, like: Tensor) -> Tensor:
        """Return the angles of an image's patches in the order of `_patches`, (L, head / 2)."""
        merge, head = self.sizes.merge, self.sizes.width // self.sizes.heads
        angles = grid_angles(rows * merge, columns * merge, head, like)
        split = angles.unflatten(0, (rows, merge)).unflatten(2, (columns, merge))
        tokens = split.transpose(1, 2).flatten(2, 3)
        return _into_windows(tokens[None], self.side).flatten(0, 2)

    def _run(self, images: int, rows: int, columns: int) -> _Run:
        """Return where images of one size and their windows lie."""
        together = self.sizes.merge**2
        windows: list[tuple[int, int]] = []
        for down, height, right, width in _blocks(rows, columns, self.side):
            high, wide = down.stop - down.start, right.stop - right.start
            windows.append((high * wide // (height * width), height * width * together))
        return _Run(images, rows * columns * together, windows)
