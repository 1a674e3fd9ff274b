"""Layers of Gemma decoders; LeRobot's names."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kata.nn.decoder import GatedMLP, LlamaLayer


class GemmaNorm(nn.Module):
    """Division by the root mean square, in float32; the scale is one more than the weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized input in its dtype."""
        wide = x.float()
        wide = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * (1.0 + self.weight.float())).to(x.dtype)


class GemmaMLP(GatedMLP):
    """GeGLU (arXiv 2002.05202), with the tangent in place of the error function."""

    def activation(self, x: Tensor) -> Tensor:
        """Return what multiplies the other half."""
        return F.gelu(x, approximate="tanh")


class GemmaLayer(LlamaLayer):
    """A layer with Gemma's norm and activation (arXiv 2403.08295)."""

    norm: ClassVar[type[nn.Module]] = GemmaNorm
    perceptron: ClassVar[type[GatedMLP]] = GemmaMLP
