"""SigLIP's vision transformer (arXiv 2303.15343) without its pooling head; LeRobot's names."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kata.nn.attention import split_heads


@dataclass(frozen=True)
class SiglipSizes:
    """Sizes of the tower; `image` is the side in pixels that the positions were trained for."""

    width: int
    mlp: int
    layers: int
    heads: int
    image: int
    patch: int
    eps: float = 1e-6


class PatchEmbeddings(nn.Module):
    """Patches of an image as tokens with learned positions."""

    def __init__(self, sizes: SiglipSizes) -> None:
        super().__init__()
        self.patch = sizes.patch
        self.side = sizes.image // sizes.patch
        self.patch_embedding = nn.Conv2d(3, sizes.width, sizes.patch, stride=sizes.patch)
        self.position_embedding = nn.Embedding(self.side**2, sizes.width)
        # SigLIP's own scale. Positions of torch's scale 1 would hide the pixels from a tower that
        # is trained from nothing.
        nn.init.normal_(self.position_embedding.weight, std=sizes.width**-0.5)

    def forward(self, images: Tensor) -> Tensor:
        """Map images (B, 3, H, W) to tokens (B, patches, width) in reading order."""
        tokens = self.patch_embedding(images)
        grid = tokens.shape[-2:]
        positions = self.position_embedding.weight
        if grid != (self.side, self.side):
            rows, columns = (self._nearest(count, positions.device) for count in grid)
            positions = positions[(rows[:, None] * self.side + columns).flatten()]
        # Else the channels of a token would stay far apart in all sums of the layers, and each norm
        # and each sum would copy.
        return tokens.flatten(2).transpose(1, 2).contiguous() + positions

    def _nearest(self, count: int, device: torch.device) -> Tensor:
        """Return, for `count` patches along a side, the trained position of each."""
        edges = torch.arange(1 / self.side, 1.0, 1 / self.side, device=device)
        places = torch.arange(count, dtype=torch.float32, device=device) * (1.0 / count)
        return torch.bucketize(places.clamp(max=1.0 - 1e-6), edges, right=True)


class VisionAttention(nn.Module):
    """Self-attention of all patches."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.head_dim = width // heads
        self.k_proj = nn.Linear(width, width)
        self.v_proj = nn.Linear(width, width)
        self.q_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, width) -> (B, L, width)."""
        query = split_heads(self.q_proj(x), self.head_dim)
        keys = split_heads(self.k_proj(x), self.head_dim)
        values = split_heads(self.v_proj(x), self.head_dim)
        found = F.scaled_dot_product_attention(query, keys, values)
        return self.out_proj(found.transpose(1, 2).flatten(2))


class VisionMLP(nn.Module):
    """Two linear maps with GELU between them."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, inner)
        self.fc2 = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, width) -> (B, L, width)."""
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class VisionLayer(nn.Module):
    """Attention and a perceptron, each after a layer norm."""

    def __init__(self, sizes: SiglipSizes) -> None:
        super().__init__()
        self.layer_norm1 = nn.LayerNorm(sizes.width, eps=sizes.eps)
        self.self_attn = VisionAttention(sizes.width, sizes.heads)
        self.layer_norm2 = nn.LayerNorm(sizes.width, eps=sizes.eps)
        self.mlp = VisionMLP(sizes.width, sizes.mlp)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, width) -> (B, L, width)."""
        x = x + self.self_attn(self.layer_norm1(x))
        return x + self.mlp(self.layer_norm2(x))


class SiglipVision(nn.Module):
    """Images (B, 3, H, W) in [-1, 1] to tokens (B, patches, width)."""

    def __init__(self, sizes: SiglipSizes) -> None:
        super().__init__()
        self.embeddings = PatchEmbeddings(sizes)
        layers = nn.ModuleList(VisionLayer(sizes) for _ in range(sizes.layers))
        self.encoder = nn.ModuleDict({"layers": layers})
        self.post_layernorm = nn.LayerNorm(sizes.width, eps=sizes.eps)

    @property
    def layers(self) -> list[nn.Module]:
        """Return the layers in order."""
        return list(self.encoder["layers"].children())

    def forward(self, images: Tensor) -> Tensor:
        """Return tokens of all patches after the last norm."""
        x = self.embeddings(images)
        for layer in self.layers:
            x = layer(x)
        return self.post_layernorm(x)


def pixel_shuffle(tokens: Tensor, factor: int) -> Tensor:
    """Join each square of factor x factor patches of a square image to one wider token.

    Args:
        tokens: (B, side * side, width) in reading order.
        factor: divides the side.

    Returns:
        (B, (side / factor)^2, width * factor^2); within a token, rows come before columns.
    """
    size, count, width = tokens.shape
    side = round(count**0.5)
    cells = tokens.reshape(size, side // factor, factor, side // factor, factor * width)
    return cells.transpose(2, 3).reshape(size, (side // factor) ** 2, factor**2 * width)
