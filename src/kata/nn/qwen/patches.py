"""Patches of frames in the order of Qwen's image encoders, and their first linear map."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F


def patches_of(frames: Tensor, patch: int, merge: int) -> Tensor:
    """Return the patches of frames, (N, rows * columns, 3 * patch * patch).

    Patches that become one token are neighbors: the order is rows and columns of tokens, and rows
    and columns of patches within a token. A patch has its numbers by color, row and column.

    Args:
        frames: (N, 3, H, W), normalized; `patch * merge` divides height and width.
        patch: side of a patch in pixels.
        merge: patches along a side that become one token.
    """
    count, colors, height, width = frames.shape
    rows, columns = height // (patch * merge), width // (patch * merge)
    split = frames.reshape(count, colors, rows, merge, patch, columns, merge, patch)
    ordered = split.permute(0, 2, 5, 3, 6, 1, 4, 7)
    return ordered.reshape(count, rows * columns * merge * merge, colors * patch * patch)


class PatchEmbedding(nn.Module):
    """The first linear map of patches. It was trained on pairs of frames, and an image is a pair of
    equal frames: the two halves of its weights are added before they meet the pixels.
    """

    def __init__(self, width: int, patch: int, frames: int, *, bias: bool) -> None:
        super().__init__()
        size = (frames, patch, patch)
        self.proj = nn.Conv3d(3, width, kernel_size=size, stride=size, bias=bias)

    def forward(self, patches: Tensor) -> Tensor:
        """(..., 3 * patch * patch) -> (..., width), in the dtype of the weights."""
        weight = self.proj.weight
        return F.linear(patches.to(weight.dtype), weight.sum(2).flatten(1), self.proj.bias)


def normalized(frames: Tensor, mean: tuple[float, ...], std: tuple[float, ...]) -> Tensor:
    """Return frames (N, 3, H, W) in [0, 1] minus a mean, divided by a deviation, by color."""
    # Numbers, not tensors: a list that is copied to a GPU would let the host wait.
    colors = zip(frames.unbind(1), mean, std, strict=True)
    return torch.stack([(color - shift) / spread for color, shift, spread in colors], dim=1)
