"""Qwen2.5-VL's language model: layers of Llama with biases, and positions in three axes."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from kata.nn.attention import KeysValues
from kata.nn.cross_entropy import TokenTable
from kata.nn.decoder import INITIAL_STD, DecoderSizes, LlamaLayer, RMSNorm
from kata.nn.qwen.rope import multimodal_rotation, sectioned_axes
from kata.nn.rope import Rotation


@dataclass(frozen=True)
class TextSizes:
    """Sizes of the language model.

    Attributes:
        layer: of a layer.
        sections: pairs of a head's numbers that follow time, row and column.
        base: of the periods of positions.
    """

    layer: DecoderSizes
    layers: int
    vocabulary: int
    sections: tuple[int, ...] = (16, 24, 24)
    base: float = 1e6


class QwenLayer(LlamaLayer):
    """A layer whose maps to queries, keys and values have biases."""

    def __init__(self, sizes: DecoderSizes) -> None:
        super().__init__(sizes)
        attention = self.self_attn
        for name in ("q_proj", "k_proj", "v_proj"):
            plain: nn.Linear = attention.get_submodule(name)  # type: ignore[assignment]
            plain.bias = nn.Parameter(torch.zeros(plain.out_features))

    def forward(
        self,
        x: Tensor,
        rotation: Rotation,
        mask: Tensor,
        past: KeysValues | None = None,
        *,
        is_last: bool = False,
        wanted: int = 0,
        actions: int = 0,
    ) -> tuple[Tensor, KeysValues]:
        """Return new tokens, and keys and values; see `LlamaLayer`.

        Args:
            x: tokens (B, L, width).
            rotation: of their places.
            mask: see `attend`; over the tokens of `past`, then these.
            past: keys and values of tokens before these.
            is_last: True if only keys and values are wanted; `x` is returned as it is.
            wanted: the number of tokens at the end that are wanted; 0 for all.
            actions: the number of tokens at the end that are actions.
        """
        normed = self.normed(self.input_layernorm, x)
        given = self.keys_values(normed, rotation, past)
        if is_last:
            return x, given
        if wanted:
            rotation = Rotation(rotation.cos[:, :, -wanted:], rotation.sin[:, :, -wanted:])
            x, normed = x[:, -wanted:], normed[:, -wanted:]
            mask = mask[:, :, -wanted:]
        x = x + self.collected(normed, rotation, given, mask)
        return x + self.perceived(self.normed(self.post_attention_layernorm, x), actions), given

    def normed(self, norm: nn.Module, x: Tensor) -> Tensor:
        """Return tokens after a norm, in the dtype of the linear maps."""
        return norm(x)

    def perceived(self, x: Tensor, actions: int) -> Tensor:
        """Return what the perceptron makes of tokens (B, L, width), the last of them actions."""
        del actions
        return self.mlp(x)


class QwenText(nn.Module):
    """The table of tokens, the layers and the last norm. A subclass may have other layers."""

    def __init__(self, sizes: TextSizes) -> None:
        super().__init__()
        width = sizes.layer.width
        self.sizes = sizes
        self.axes = sectioned_axes(sizes.sections)
        self.embed_tokens = TokenTable(sizes.vocabulary, width)
        nn.init.normal_(self.embed_tokens.weight, std=INITIAL_STD)
        self.layers = nn.ModuleList(self.made_layers())
        self.norm = RMSNorm(width, sizes.layer.eps)

    def made_layers(self) -> list[QwenLayer]:
        """Return new layers."""
        return [QwenLayer(self.sizes.layer) for _ in range(self.sizes.layers)]

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of tokens."""
        return self.embed_tokens.weight.dtype

    def rotation(self, places: Tensor) -> Rotation:
        """Return the rotation of tokens at places (B, 3, L): time, row and column."""
        return multimodal_rotation(places, self.axes, self.sizes.base)
