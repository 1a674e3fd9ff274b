"""Qwen3-VL's image encoder, which hands features of several depths to the language model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kata.nn.decoder import INITIAL_STD
from kata.nn.qwen.patches import PatchEmbedding, patches_of
from kata.nn.qwen.rope import grid_angles
from kata.nn.rope import Rotation, rotate

EPS = 1e-6


@dataclass(frozen=True)
class Qwen3VisionSizes:
    """Sizes of the encoder.

    Attributes:
        output: width of the language model.
        patch: side of a patch in pixels.
        merge: patches along a side that become one token.
        frames: frames that a patch spans.
        side: positions along a side of the trained table.
        deepstack: layers whose output the language model reads as well.
    """

    width: int
    mlp: int
    layers: int
    heads: int
    output: int
    patch: int
    merge: int
    frames: int
    side: int
    deepstack: tuple[int, ...]


class ImageTokens(NamedTuple):
    """Tokens of images, (N, L, output), and as many for each layer of `deepstack`."""

    tokens: Tensor
    deep: list[Tensor]


class PatchAttention(nn.Module):
    """Attention of the patches of an image to each other."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        """(N, P, width) -> (N, P, width)."""
        query, keys, values = self.qkv(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        query, keys = rotate(query, rotation), rotate(keys, rotation)
        found = F.scaled_dot_product_attention(query, keys, values)
        return self.proj(found.transpose(1, 2).flatten(2))


class PatchMLP(nn.Module):
    """The perceptron of a layer."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(width, inner)
        self.linear_fc2 = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """(N, P, width) -> (N, P, width)."""
        return self.linear_fc2(F.gelu(self.linear_fc1(x), approximate="tanh"))


class PatchLayer(nn.Module):
    """A layer of the encoder."""

    def __init__(self, sizes: Qwen3VisionSizes) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(sizes.width, eps=EPS)
        self.norm2 = nn.LayerNorm(sizes.width, eps=EPS)
        self.attn = PatchAttention(sizes.width, sizes.heads)
        self.mlp = PatchMLP(sizes.width, sizes.mlp)

    def forward(self, x: Tensor, rotation: Rotation) -> Tensor:
        """(N, P, width) -> (N, P, width)."""
        x = x + self.attn(self.norm1(x), rotation)
        return x + self.mlp(self.norm2(x))


class PatchJoin(nn.Module):
    """The map of neighboring patches to one token of the language model."""

    def __init__(self, sizes: Qwen3VisionSizes, *, joins_first: bool) -> None:
        super().__init__()
        self.joined = sizes.merge**2
        self.joins_first = joins_first
        inner = sizes.width * self.joined
        self.norm = nn.LayerNorm(inner if joins_first else sizes.width, eps=EPS)
        self.linear_fc1 = nn.Linear(inner, inner)
        self.linear_fc2 = nn.Linear(inner, sizes.output)

    def forward(self, x: Tensor) -> Tensor:
        """(N, P, width) -> (N, P / merge^2, output)."""
        count, patches, width = x.shape
        shape = (count, patches // self.joined, width * self.joined)
        x = self.norm(x.reshape(shape)) if self.joins_first else self.norm(x).reshape(shape)
        return self.linear_fc2(F.gelu(self.linear_fc1(x)))


class Qwen3Vision(nn.Module):
    """The encoder."""

    def __init__(self, sizes: Qwen3VisionSizes) -> None:
        super().__init__()
        self.sizes = sizes
        self.patch_embed = PatchEmbedding(sizes.width, sizes.patch, sizes.frames, bias=True)
        self.pos_embed = nn.Embedding(sizes.side**2, sizes.width)
        nn.init.normal_(self.pos_embed.weight, std=INITIAL_STD)
        self.blocks = nn.ModuleList(PatchLayer(sizes) for _ in range(sizes.layers))
        self.merger = PatchJoin(sizes, joins_first=False)
        self.deepstack_merger_list = nn.ModuleList(
            PatchJoin(sizes, joins_first=True) for _ in sizes.deepstack
        )

    def forward(self, frames: Tensor) -> ImageTokens:
        """Return the tokens of frames (N, 3, H, W), normalized, in reading order.

        Height and width are multiples of `patch * merge` pixels.
        """
        sizes = self.sizes
        rows, columns = frames.shape[2] // sizes.patch, frames.shape[3] // sizes.patch
        x = self.patch_embed(patches_of(frames, sizes.patch, sizes.merge))
        x = x + _by_token(self._positions(rows, columns), sizes.merge)
        angles = grid_angles(rows, columns, sizes.width // sizes.heads, frames)
        angles = _by_token(angles, sizes.merge)[None, None]
        rotation = Rotation(angles.cos(), angles.sin())
        deep: list[Tensor] = []
        for number, block in enumerate(self.blocks):
            x = block(x, rotation)
            if number in sizes.deepstack:
                deep.append(self.deepstack_merger_list[sizes.deepstack.index(number)](x))
        return ImageTokens(self.merger(x), deep)

    def _positions(self, rows: int, columns: int) -> Tensor:
        """Return learned positions (rows, columns, width), interpolated in the trained table."""
        side, table = self.sizes.side, self.pos_embed.weight
        table = table.unflatten(0, (side, side))
        for axis, count in enumerate((rows, columns)):
            place = torch.linspace(0, side - 1, count, device=table.device)
            before = place.long()
            share = (place - before).to(table.dtype)
            share = share[:, None, None] if axis == 0 else share[None, :, None]
            after = (before + 1).clamp(max=side - 1)
            low, high = table.index_select(axis, before), table.index_select(axis, after)
            table = low * (1 - share) + high * share
        return table


def _by_token(grid: Tensor, merge: int) -> Tensor:
    """Return values of a grid (rows, columns, D) in the order of `patches_of`, (L, D)."""
    rows, columns, width = grid.shape
    split = grid.reshape(rows // merge, merge, columns // merge, merge, width)
    return split.transpose(1, 2).reshape(rows * columns, width)
