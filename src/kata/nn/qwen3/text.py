"""Qwen3-VL's language model, of which policies read the tokens of a layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kata.nn.attention import KeysValues, attend, score_bias, split_heads
from kata.nn.decoder import INITIAL_STD, Attention, DecoderSizes, GatedMLP, RMSNorm
from kata.nn.qwen.rope import interleaved_axes, multimodal_rotation
from kata.nn.rope import Rotation, rotate


@dataclass(frozen=True)
class Qwen3TextSizes:
    """Sizes of the language model.

    Attributes:
        sections: pairs of a head's numbers that follow time, row and column.
        base: of the rotary periods.
    """

    decoder: DecoderSizes
    layers: int
    vocabulary: int
    base: float
    sections: tuple[int, ...]


class NormedAttention(Attention):
    """The linear maps of an attention layer, and norms of queries and keys."""

    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__(sizes, sizes.width)
        self.q_norm = RMSNorm(sizes.head_dim, sizes.eps)
        self.k_norm = RMSNorm(sizes.head_dim, sizes.eps)


class Qwen3Layer(nn.Module):
    """A layer of the language model."""

    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__()
        self.head_dim = sizes.head_dim
        self.self_attn = NormedAttention(sizes)
        self.mlp = GatedMLP(sizes.width, sizes.mlp)
        self.input_layernorm = RMSNorm(sizes.width, sizes.eps)
        self.post_attention_layernorm = RMSNorm(sizes.width, sizes.eps)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=INITIAL_STD)

    def forward(self, x: Tensor, rotation: Rotation, bias: Tensor, sees: Tensor | None) -> Tensor:
        """(B, L, width) -> (B, L, width).

        Args:
            x: tokens.
            rotation: of their places.
            bias: of `score_bias`.
            sees: (B, L, 1), 0 for tokens that collect nothing, else 1; None if all collect.
        """
        normed, maps = self.input_layernorm(x), self.self_attn
        query = maps.q_norm(split_heads(maps.q_proj(normed), self.head_dim))
        keys = maps.k_norm(split_heads(maps.k_proj(normed), self.head_dim))
        values = split_heads(maps.v_proj(normed), self.head_dim)
        given = KeysValues(rotate(keys, rotation), values)
        found = attend(rotate(query, rotation), given, bias)
        x = x + maps.o_proj(found if sees is None else found * sees)
        return x + self.mlp(self.post_attention_layernorm(x))


class Qwen3Text(nn.Module):
    """The language model without its output map."""

    def __init__(self, sizes: Qwen3TextSizes, layers: int) -> None:
        super().__init__()
        self.sizes = sizes
        self.embed_tokens = nn.Embedding(sizes.vocabulary, sizes.decoder.width)
        nn.init.normal_(self.embed_tokens.weight, std=INITIAL_STD)
        self.layers = nn.ModuleList(Qwen3Layer(sizes.decoder) for _ in range(layers))
        self.norm = RMSNorm(sizes.decoder.width, sizes.decoder.eps)

    def forward(
        self,
        x: Tensor,
        places: Tensor,
        valid: Tensor,
        *,
        images: Tensor,
        deep: Sequence[Tensor],
        sees: Tensor | None = None,
    ) -> Tensor:
        """Return the tokens of the last layer before the last norm, (B, L, width).

        Args:
            x: embedded words with image tokens in their places, (B, L, width).
            places: time, row and column of each token, int64 (B, 3, L).
            valid: False for tokens that no other sees, bool (B, L).
            images: where image tokens are, int64 (B, I).
            deep: what is added to the image tokens after each of the first layers, (B, I, width).
            sees: see `Qwen3Layer`.
        """
        length = x.shape[1]
        causal = torch.ones(length, length, dtype=torch.bool, device=x.device).tril()
        # Each token sees itself, so that no row of scores is empty.
        itself = torch.eye(length, dtype=torch.bool, device=x.device)
        bias = score_bias((causal & valid[:, None] | itself)[:, None], x.dtype)
        axes = interleaved_axes(self.sizes.sections)
        rotation = multimodal_rotation(places, axes, self.sizes.base)
        where = images[..., None].expand(-1, -1, x.shape[2])
        for number, layer in enumerate(self.layers):
            x = layer(x, rotation, bias, sees)
            if number < len(deep):
                x = x.scatter_add(1, where, deep[number].to(x.dtype))
        return x
