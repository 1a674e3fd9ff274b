"""Transformer layers of ACT, batch first, with the parameter names and shapes of LeRobot's layers.

x + position goes into queries and keys, x alone into values (as in DETR, arXiv 2005.12872).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from kata.policies.act.config import Config

ACTIVATION_OF: dict[str, Callable[[Tensor], Tensor]] = {"relu": F.relu, "gelu": F.gelu}


class MultiHeadAttention(nn.Module):
    """Multi-head attention with the packed parameters of nn.MultiheadAttention.

    It returns no attention weights, so the fused kernels serve it. nn.MultiheadAttention would form
    the whole matrix in some cases.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.dim_model
        self.width = width
        self.heads = config.n_heads
        self.dropout = config.dropout
        self.in_proj_weight = nn.Parameter(nn.init.xavier_uniform_(torch.empty(3 * width, width)))
        self.in_proj_bias = nn.Parameter(torch.zeros(3 * width))
        self.out_proj = nn.Linear(width, width)
        nn.init.zeros_(self.out_proj.bias)

    def _heads(self, tokens_btd: Tensor) -> Tensor:
        """(B, T, D) -> (B, heads, T, D / heads)."""
        return tokens_btd.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def forward(
        self, query: Tensor, key: Tensor | None, value: Tensor, allowed: Tensor | None = None
    ) -> Tensor:
        """Attend from `query` (B, Q, D) over `key` and `value` (B, K, D); a key of None is the
        query.

        allowed: bool (B, K), False where a key is padding; None where there is no padding.
        """
        width = self.width
        if key is None:
            weight_qk, weight_v = self.in_proj_weight.split((2 * width, width))
            bias_qk, bias_v = self.in_proj_bias.split((2 * width, width))
            q, k = F.linear(query, weight_qk, bias_qk).chunk(2, dim=-1)
        else:
            weight_q, weight_k, weight_v = self.in_proj_weight.chunk(3)
            bias_q, bias_k, bias_v = self.in_proj_bias.chunk(3)
            q, k = F.linear(query, weight_q, bias_q), F.linear(key, weight_k, bias_k)
        mixed = F.scaled_dot_product_attention(
            self._heads(q),
            self._heads(k),
            self._heads(F.linear(value, weight_v, bias_v)),
            attn_mask=None if allowed is None else allowed[:, None, None, :],
            dropout_p=self.dropout if self.training else 0.0,
        )
        return self.out_proj(mixed.transpose(1, 2).flatten(2))


class Layer(nn.Module):
    """The parts of both kinds of layer: self-attention, a perceptron and norms.

    Norms follow each part; with `pre_norm` they precede it.
    """

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.self_attn = MultiHeadAttention(config)
        self.linear1 = nn.Linear(config.dim_model, config.dim_feedforward)
        self.linear2 = nn.Linear(config.dim_feedforward, config.dim_model)
        self.norm1 = nn.LayerNorm(config.dim_model)
        self.norm2 = nn.LayerNorm(config.dim_model)
        self.dropout = nn.Dropout(config.dropout)
        self.activation = ACTIVATION_OF[config.feedforward_activation]
        self.pre_norm = config.pre_norm

    def perceptron(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        return self.linear2(self.dropout(self.activation(self.linear1(x))))


class EncoderLayer(Layer):
    """Self-attention, then the perceptron, each with a skip."""

    def forward(self, x: Tensor, position: Tensor, allowed: Tensor | None = None) -> Tensor:
        """Tokens (B, S, D) with positions (1, S, D) -> (B, S, D); `allowed` as in Attention."""
        if self.pre_norm:
            normed = self.norm1(x)
            x = x + self.dropout(self.self_attn(normed + position, None, normed, allowed))
            return x + self.dropout(self.perceptron(self.norm2(x)))
        x = self.norm1(x + self.dropout(self.self_attn(x + position, None, x, allowed)))
        return self.norm2(x + self.dropout(self.perceptron(x)))


class DecoderLayer(Layer):
    """Self-attention, attention over the encoder's output, then the perceptron, each with a
    skip.
    """

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.multihead_attn = MultiHeadAttention(config)
        self.norm3 = nn.LayerNorm(config.dim_model)

    def forward(self, x: Tensor, position: Tensor, memory: Tensor, memory_key: Tensor) -> Tensor:
        """Queries (B, T, D) with positions (1, T, D) over `memory` (B, S, D) -> (B, T, D).

        memory_key: the memory with its position added.
        """
        if self.pre_norm:
            normed = self.norm1(x)
            x = x + self.dropout(self.self_attn(normed + position, None, normed))
            x = x + self.dropout(self.multihead_attn(self.norm2(x) + position, memory_key, memory))
            return x + self.dropout(self.perceptron(self.norm3(x)))
        x = self.norm1(x + self.dropout(self.self_attn(x + position, None, x)))
        x = self.norm2(x + self.dropout(self.multihead_attn(x + position, memory_key, memory)))
        return self.norm3(x + self.dropout(self.perceptron(x)))


class TransformerEncoder(nn.Module):
    """A stack of encoder layers; pre_norm adds a norm at its end."""

    def __init__(self, config: Config, depth: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(EncoderLayer(config) for _ in range(depth))
        self.norm = nn.LayerNorm(config.dim_model) if config.pre_norm else nn.Identity()

    def forward(self, x: Tensor, position: Tensor, allowed: Tensor | None = None) -> Tensor:
        """As EncoderLayer."""
        for layer in self.layers:
            x = layer(x, position, allowed)
        return self.norm(x)


class TransformerDecoder(nn.Module):
    """A stack of decoder layers with a norm at its end."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.layers = nn.ModuleList(DecoderLayer(config) for _ in range(config.n_decoder_layers))
        self.norm = nn.LayerNorm(config.dim_model)

    def forward(
        self, x: Tensor, position: Tensor, memory: Tensor, memory_position: Tensor
    ) -> Tensor:
        """As DecoderLayer, with the position of the memory (1, S, D) not yet added."""
        memory_key = memory + memory_position
        for layer in self.layers:
            x = layer(x, position, memory, memory_key)
        return self.norm(x)


def line_sinusoid(positions: int, width: int) -> Tensor:
    """Sinusoids (positions, width) of 'Attention is all you need' (arXiv 1706.03762, section
    3.5).
    """
    channel = torch.arange(width, dtype=torch.float64)
    angle = torch.arange(positions, dtype=torch.float64)[:, None] / 10000 ** (
        2 * (channel // 2) / width
    )
    return torch.where(channel % 2 == 0, angle.sin(), angle.cos()).float()


def map_sinusoid(height: int, width: int, dim: int, device: torch.device) -> Tensor:
    """Positions (height * width, dim) of a feature map, row by row: half the channels for y, then
    half for x.

    Rows and columns count from 1 and are scaled so that the last is 2 pi; sine and cosine alternate
    (DETR).
    """
    pairs = torch.arange(0, dim // 2, 2, dtype=torch.float32, device=device)
    period = 10000 ** (pairs / (dim // 2))

    def axis(size: int) -> Tensor:
        count = torch.arange(1, size + 1, dtype=torch.float32, device=device)
        angle = (count / (count[-1:] + 1e-6) * (2 * torch.pi))[:, None] / period
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(1)

    y, x = axis(height)[:, None].expand(-1, width, -1), axis(width)[None].expand(height, -1, -1)
    return torch.cat((y, x), dim=-1).flatten(0, 1)
