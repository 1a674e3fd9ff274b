"""DaViT, Florence-2's image encoder (arXiv 2204.03645), and the projector after it.

A block attends within windows of cells, and then among channels. Names are transformers'.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kata.nn.florence.sizes import DavitSizes, DavitStage

FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": F.gelu,
    "gelu_new": lambda x: F.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: F.gelu(x, approximate="tanh"),
    "relu": F.relu,
    "silu": F.silu,
}


class ConvEmbed(nn.Module):
    """A convolution that makes patches of pixels or cells, with a norm over channels."""

    def __init__(self, stage: DavitStage) -> None:
        super().__init__()
        self.norm_first = stage.norm_first
        self.conv = nn.Conv2d(
            stage.inputs, stage.width, stage.patch, stride=stage.stride, padding=stage.padding
        )
        self.norm = nn.LayerNorm(stage.inputs if stage.norm_first else stage.width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, C, H, W) -> (B, width, h, w)."""
        if self.norm_first:
            x = _over_channels(self.norm, x)
        x = self.conv(x)
        return x if self.norm_first else _over_channels(self.norm, x)


def _over_channels(norm: nn.Module, x: Tensor) -> Tensor:
    return norm(x.permute(0, 2, 3, 1)).permute(0, 3, 1, 2)


class Perceptron(nn.Module):
    """Two linear maps with a function between them."""

    def __init__(self, width: int, inner: int, activation: str) -> None:
        super().__init__()
        self.function = FUNCTIONS[activation]
        self.fc1 = nn.Linear(width, inner)
        self.fc2 = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, width) -> (B, L, width)."""
        return self.fc2(self.function(self.fc1(x)))


class WindowAttention(nn.Module):
    """Attention among the cells of a window. Zeros that fill up the last windows take part."""

    def __init__(self, width: int, heads: int, window: int, *, bias: bool) -> None:
        super().__init__()
        self.heads, self.window = heads, window
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, rows: int, columns: int) -> Tensor:
        """(B, rows * columns, width) -> the same."""
        side = self.window
        # 1. Cells in windows of one size, (B, windows down, side, windows across, side, width).
        right, below = -columns % side, -rows % side
        cells = F.pad(x.unflatten(1, (rows, columns)), (0, 0, 0, right, 0, below))
        cells = cells.unflatten(2, (-1, side)).unflatten(1, (-1, side)).transpose(2, 3)
        windows = cells.reshape(-1, side**2, x.shape[2])
        # 2. Attention in each of them.
        split = self.qkv(windows).unflatten(2, (3, self.heads, -1))
        query, keys, values = split.permute(2, 0, 3, 1, 4).unbind(0)
        found = F.scaled_dot_product_attention(query, keys, values)
        found = self.proj(found.transpose(1, 2).flatten(2)).view(cells.shape)
        # 3. Back to rows and columns.
        whole = found.transpose(2, 3).flatten(3, 4).flatten(1, 2)
        return whole[:, :rows, :columns].flatten(1, 2)


class ChannelAttention(nn.Module):
    """Attention among the channels of a group, whose features are all cells."""

    def __init__(self, width: int, groups: int, *, bias: bool) -> None:
        super().__init__()
        self.groups = groups
        self.qkv = nn.Linear(width, 3 * width, bias=bias)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, cells, width) -> the same."""
        split = self.qkv(x).unflatten(2, (3, self.groups, -1))
        query, keys, values = split.permute(2, 0, 3, 4, 1).unbind(0)
        # The scale is that of torch: one over the root of the number of features.
        found = F.scaled_dot_product_attention(query, keys, values)
        return self.proj(found.permute(0, 3, 1, 2).flatten(2))


class DavitHalf(nn.Module):
    """Half a block: attention and a perceptron, each after a convolution by channel."""

    def __init__(self, stage: DavitStage, sizes: DavitSizes, drop_path: float) -> None:
        super().__init__()
        width = stage.width
        self.drop_path = drop_path
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm1 = nn.LayerNorm(width)
        self.make_attention(stage, sizes)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, groups=width)
        self.norm2 = nn.LayerNorm(width)
        self.ffn = Perceptron(width, int(width * sizes.mlp_ratio), sizes.activation)

    @abstractmethod
    def make_attention(self, stage: DavitStage, sizes: DavitSizes) -> None:
        """Set the attribute that holds the attention."""

    @abstractmethod
    def attended(self, x: Tensor, rows: int, columns: int) -> Tensor:
        """Return what cells (B, rows * columns, width) collect from others."""

    def forward(self, x: Tensor) -> Tensor:
        """(B, width, rows, columns) -> the same."""
        rows, columns = x.shape[2:]
        cells = (self.conv1(x) + x).flatten(2).transpose(1, 2)
        cells = cells + self._kept(self.attended(self.norm1(cells), rows, columns))
        x = cells.transpose(1, 2).unflatten(2, (rows, columns))
        cells = (self.conv2(x) + x).flatten(2).transpose(1, 2)
        cells = cells + self._kept(self.ffn(self.norm2(cells)))
        return cells.transpose(1, 2).unflatten(2, (rows, columns))

    def _kept(self, branch: Tensor) -> Tensor:
        """Return a residual branch, without that of some images in training."""
        if self.drop_path == 0 or not self.training:
            return branch
        kept = 1 - self.drop_path
        chosen = torch.rand(len(branch), 1, 1, dtype=branch.dtype, device=branch.device) < kept
        return branch * chosen / kept


class SpatialHalf(DavitHalf):
    """The half of a block that attends within windows."""

    def make_attention(self, stage: DavitStage, sizes: DavitSizes) -> None:
        """See `DavitHalf`."""
        self.window_attn = WindowAttention(
            stage.width, stage.heads, sizes.window, bias=sizes.qkv_bias
        )

    def attended(self, x: Tensor, rows: int, columns: int) -> Tensor:
        """See `DavitHalf`."""
        return self.window_attn(x, rows, columns)


class ChannelHalf(DavitHalf):
    """The half of a block that attends among channels."""

    def make_attention(self, stage: DavitStage, sizes: DavitSizes) -> None:
        """See `DavitHalf`."""
        self.channel_attn = ChannelAttention(stage.width, stage.groups, bias=sizes.qkv_bias)

    def attended(self, x: Tensor, rows: int, columns: int) -> Tensor:
        """See `DavitHalf`."""
        return self.channel_attn(x)


class Davit(nn.Module):
    """Images (B, 3, H, W) to cells (B, width, h, w)."""

    def __init__(self, sizes: DavitSizes) -> None:
        super().__init__()
        self.convs = nn.ModuleList(ConvEmbed(stage) for stage in sizes.stages)
        # Later blocks drop more of their residual branches.
        halves = 2 * sum(stage.depth for stage in sizes.stages)
        rates = (sizes.drop_path * number / max(halves - 1, 1) for number in range(halves))
        self.blocks = nn.ModuleList()
        for stage in sizes.stages:
            blocks = nn.ModuleList()
            for _ in range(stage.depth):
                spatial = SpatialHalf(stage, sizes, next(rates))
                channel = ChannelHalf(stage, sizes, next(rates))
                blocks.append(nn.ModuleDict({"spatial_block": spatial, "channel_block": channel}))
            self.blocks.append(blocks)

    def stages(self) -> list[list[nn.Module]]:
        """Return the modules of each stage in the order in which images pass through them."""
        found: list[list[nn.Module]] = []
        for conv, blocks in zip(self.convs, self.blocks, strict=True):
            halves: list[nn.Module] = []
            for block in blocks.children():
                halves += block.children()
            found.append([conv, *halves])
        return found

    def forward(self, images: Tensor) -> Tensor:
        """Return the cells of the last stage."""
        x = images
        for modules in self.stages():
            for module in modules:
                x = module(x)
        return x


class GridPositions(nn.Module):
    """Learned positions: half of the numbers follow from the column, the others from the row."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.row_embeddings = nn.Embedding(count, width // 2)
        self.column_embeddings = nn.Embedding(count, width - width // 2)

    def forward(self, rows: int, columns: int) -> Tensor:
        """Return positions (rows * columns, width) in reading order."""
        across = self.column_embeddings.weight[:columns].expand(rows, -1, -1)
        down = self.row_embeddings.weight[:rows, None].expand(-1, columns, -1)
        return torch.cat((across, down), dim=2).flatten(0, 1)


class ImageProjector(nn.Module):
    """Cells of an image to tokens as wide as those of text; the first is the mean of all."""

    def __init__(self, sizes: DavitSizes) -> None:
        super().__init__()
        width = sizes.stages[-1].width
        self.image_projection = nn.Linear(width, sizes.projected, bias=False)
        self.image_proj_norm = nn.LayerNorm(sizes.projected)
        self.image_position_embed = GridPositions(sizes.positions, width)

    def forward(self, cells: Tensor) -> Tensor:
        """(B, width, h, w) -> (B, 1 + h * w, projected)."""
        rows, columns = cells.shape[2:]
        tokens = cells.flatten(2).transpose(1, 2) + self.image_position_embed(rows, columns)
        # An image is the first frame of a video: sines of its position are 0, and cosines 1.
        tokens = tokens + torch.arange(tokens.shape[2], device=tokens.device) % 2
        tokens = torch.cat((tokens.mean(1, keepdim=True), tokens), dim=1)
        return self.image_proj_norm(self.image_projection(tokens))


def frame_positions(frames: int, width: int) -> Tensor:
    """Return positions of frames (frames, width): sines at even places, cosines at odd ones."""
    half = width // 2
    frequency = torch.exp(torch.arange(half).float() * -(math.log(10000) / half))
    angle = torch.arange(frames).float()[:, None] * frequency
    return torch.stack((angle.sin(), angle.cos()), dim=2).flatten(1)
