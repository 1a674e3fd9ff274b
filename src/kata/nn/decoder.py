"""Layers of Llama decoders, which read keys and values of earlier tokens; LeRobot's names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kata.nn.attention import KeysValues, attend, split_heads
from kata.nn.rope import Rotation, rotate

INITIAL_STD = 0.02
"""Standard deviation of new weights, as Llama has it."""


@dataclass(frozen=True)
class DecoderSizes:
    """Widths of a decoder layer. `heads * head_dim` need not be `width`."""

    width: int
    mlp: int
    heads: int
    kv_heads: int
    head_dim: int
    eps: float = 1e-5


def divided_by_rms(x: Tensor, eps: float) -> Tensor:
    """Return (..., width) divided by its root mean square, in float32.

    CUDA has one kernel for it, which keeps the argument and a number per row.
    """
    return F.rms_norm(x.float(), x.shape[-1:], None, eps)


class RMSNorm(nn.Module):
    """Division by the root mean square, in float32 (arXiv 1910.07467)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Return the normalized input in its dtype."""
        return self.weight * divided_by_rms(x, self.eps).to(x.dtype)


class Attention(nn.Module):
    """The four linear maps of an attention layer."""

    def __init__(self, sizes: DecoderSizes, kv_input: int) -> None:
        super().__init__()
        inner = sizes.heads * sizes.head_dim
        self.q_proj = nn.Linear(sizes.width, inner, bias=False)
        self.k_proj = nn.Linear(kv_input, sizes.kv_heads * sizes.head_dim, bias=False)
        self.v_proj = nn.Linear(kv_input, sizes.kv_heads * sizes.head_dim, bias=False)
        self.o_proj = nn.Linear(inner, sizes.width, bias=False)


class GatedMLP(nn.Module):
    """SwiGLU (arXiv 2002.05202)."""

    def __init__(self, width: int, inner: int, *, bias: bool = False) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(width, inner, bias=bias)
        self.up_proj = nn.Linear(width, inner, bias=bias)
        self.down_proj = nn.Linear(inner, width, bias=bias)

    def activation(self, x: Tensor) -> Tensor:
        """Return what multiplies the other half."""
        return F.silu(x)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, width) -> (B, L, width)."""
        return self.down_proj(self.activation(self.gate_proj(x)) * self.up_proj(x))


class LlamaLayer(nn.Module):
    """A layer in which tokens see themselves and, before them, the tokens of `past`."""

    norm: ClassVar[type[nn.Module]] = RMSNorm
    perceptron: ClassVar[type[GatedMLP]] = GatedMLP

    def __init__(self, sizes: DecoderSizes, *, kv_input: int | None = None) -> None:
        super().__init__()
        self.head_dim = sizes.head_dim
        self.input_layernorm = self.norm(sizes.width, sizes.eps)
        self.self_attn = Attention(sizes, kv_input or sizes.width)
        self.post_attention_layernorm = self.norm(sizes.width, sizes.eps)
        self.mlp = self.perceptron(sizes.width, sizes.mlp)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=INITIAL_STD)

    def forward(
        self,
        x: Tensor,
        rotation: Rotation,
        mask: Tensor,
        past: KeysValues | None = None,
        *,
        is_last: bool = False,
    ) -> tuple[Tensor, KeysValues]:
        """Return new tokens (B, L, width), and keys and values of `past` and of these tokens.

        Args:
            x: tokens (B, L, width).
            rotation: of their positions.
            mask: see `attend`; over the tokens of `past`, then these.
            past: keys and values of tokens before these.
            is_last: True if only keys and values are wanted; `x` is returned as it is.
        """
        normed = self.input_layernorm(x)
        given = self.keys_values(normed, rotation, past)
        if is_last:
            return x, given
        return self._finished(x, normed, rotation, given, mask), given

    def keys_values(
        self, normed: Tensor, rotation: Rotation, past: KeysValues | None
    ) -> KeysValues:
        """Return keys and values of `past` and of normalized tokens (B, L, width)."""
        mine = KeysValues(
            rotate(split_heads(self.self_attn.k_proj(normed), self.head_dim), rotation),
            split_heads(self.self_attn.v_proj(normed), self.head_dim),
        )
        return mine if past is None else past.followed_by(mine)

    def collected(
        self, normed: Tensor, rotation: Rotation, given: KeysValues, mask: Tensor
    ) -> Tensor:
        """Return what normalized tokens collect by attention, (B, L, width)."""
        query = rotate(split_heads(self.self_attn.q_proj(normed), self.head_dim), rotation)
        return self.self_attn.o_proj(attend(query, given, mask))

    def _finished(
        self, x: Tensor, normed: Tensor, rotation: Rotation, given: KeysValues, mask: Tensor
    ) -> Tensor:
        x = x + self.collected(normed, rotation, given, mask)
        return x + self.mlp(self.post_attention_layernorm(x))


class CrossLayer(LlamaLayer):
    """A layer in which tokens see another decoder's keys and values alone, mapped linearly."""

    def __init__(self, sizes: DecoderSizes, *, kv_input: int) -> None:
        super().__init__(sizes, kv_input=kv_input)
        for linear in (self.self_attn.k_proj, self.self_attn.v_proj):
            linear.reset_parameters()

    def forward(
        self,
        x: Tensor,
        rotation: Rotation,
        mask: Tensor,
        past: KeysValues | None = None,
        *,
        is_last: bool = False,
    ) -> tuple[Tensor, KeysValues]:
        """Return new tokens, and the mapped keys and values of `past`; see `LlamaLayer`."""
        assert past is not None
        wide = self.self_attn.k_proj.weight.dtype  # the other decoder may compute in bfloat16
        keys = self.self_attn.k_proj(past.keys.transpose(1, 2).flatten(2).to(wide))
        values = self.self_attn.v_proj(past.values.transpose(1, 2).flatten(2).to(wide))
        given = KeysValues(split_heads(keys, self.head_dim), split_heads(values, self.head_dim))
        if is_last:
            return x, given
        return self._finished(x, self.input_layernorm(x), rotation, given, mask), given
