"""Layers of Gemma decoders, plain and modulated by a condition; LeRobot's names."""

from __future__ import annotations

from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kata.nn.attention import KeysValues
from kata.nn.decoder import GatedMLP, LlamaLayer, divided_by_rms
from kata.nn.rope import Rotation


class GemmaNorm(nn.Module):
    """Division by the root mean square, in float32; the scale is one more than the weight."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized input in its dtype."""
        return (divided_by_rms(x, self.eps) * (1.0 + self.weight.float())).to(x.dtype)


class AdaptiveNorm(nn.Module):
    """The same division, then a scale and a shift that follow from a condition."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.dense = nn.Linear(width, 3 * width)
        nn.init.zeros_(self.dense.weight)
        self.eps = eps

    def forward(self, x: Tensor, condition: Tensor) -> tuple[Tensor, Tensor]:
        """Return the modulated input (B, L, width), and a gate (B, 1 or L, width), in its dtype.

        Args:
            x: tokens (B, L, width).
            condition: (B, width), or (B, L, width) if each token has its own.
        """
        each = condition if condition.ndim == x.ndim else condition[:, None]
        scale, shift, gate = self.dense(each).chunk(3, dim=-1)
        wide = divided_by_rms(x, self.eps) * (1 + scale.float()) + shift.float()
        return wide.to(x.dtype), gate.to(x.dtype)


class GemmaMLP(GatedMLP):
    """GeGLU (arXiv 2002.05202), with the tangent in place of the error function."""

    def activation(self, x: Tensor) -> Tensor:
        """Return what multiplies the other half."""
        return F.gelu(x, approximate="tanh")


class GemmaLayer(LlamaLayer):
    """A layer with Gemma's norm and activation (arXiv 2403.08295)."""

    norm: ClassVar[type[nn.Module]] = GemmaNorm
    perceptron: ClassVar[type[GatedMLP]] = GemmaMLP


class AdaptiveLayer(GemmaLayer):
    """A layer whose norms and residuals follow from a condition (arXiv 2504.16054)."""

    norm: ClassVar[type[nn.Module]] = AdaptiveNorm

    def forward(
        self,
        x: Tensor,
        rotation: Rotation,
        mask: Tensor,
        past: KeysValues | None = None,
        *,
        is_last: bool = False,
        condition: Tensor | None = None,
    ) -> tuple[Tensor, KeysValues]:
        """Return new tokens, keys and values; see `LlamaLayer`. `condition` is the norms'."""
        normed, gate = self.input_layernorm(x, condition)
        given = self.keys_values(normed, rotation, past)
        if is_last:
            return x, given
        x = x + self.collected(normed, rotation, given, mask) * gate
        normed, gate = self.post_attention_layernorm(x, condition)
        return x + self.mlp(normed) * gate, given
