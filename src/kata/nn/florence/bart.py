"""BART's encoder (arXiv 1910.13461), which Florence-2 reads image tokens and text with.

Norms come after residual connections. Names are transformers'.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kata.nn.attention import split_heads
from kata.nn.florence.davit import FUNCTIONS
from kata.nn.florence.sizes import BartSizes

OFFSET = 2
"""Rows of the table of positions that no token has."""


class BartAttention(nn.Module):
    """Self-attention of all tokens."""

    def __init__(self, sizes: BartSizes) -> None:
        super().__init__()
        self.head_dim = sizes.width // sizes.heads
        self.dropout = sizes.attention_dropout
        self.k_proj = nn.Linear(sizes.width, sizes.width)
        self.v_proj = nn.Linear(sizes.width, sizes.width)
        self.q_proj = nn.Linear(sizes.width, sizes.width)
        self.out_proj = nn.Linear(sizes.width, sizes.width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, width) -> (B, L, width)."""
        query = split_heads(self.q_proj(x), self.head_dim)
        keys = split_heads(self.k_proj(x), self.head_dim)
        values = split_heads(self.v_proj(x), self.head_dim)
        rate = self.dropout if self.training else 0.0
        found = F.scaled_dot_product_attention(query, keys, values, dropout_p=rate)
        return self.out_proj(found.transpose(1, 2).flatten(2))


class BartLayer(nn.Module):
    """Attention and a perceptron, each with a norm after it."""

    def __init__(self, sizes: BartSizes) -> None:
        super().__init__()
        self.rates = (sizes.dropout, sizes.activation_dropout)
        self.function = FUNCTIONS[sizes.activation]
        self.self_attn = BartAttention(sizes)
        self.self_attn_layer_norm = nn.LayerNorm(sizes.width)
        self.fc1 = nn.Linear(sizes.width, sizes.mlp)
        self.fc2 = nn.Linear(sizes.mlp, sizes.width)
        self.final_layer_norm = nn.LayerNorm(sizes.width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, width) -> (B, L, width)."""
        outer, inner = self.rates
        found = F.dropout(self.self_attn(x), outer, self.training)
        x = self.self_attn_layer_norm(x + found)
        hidden = F.dropout(self.function(self.fc1(x)), inner, self.training)
        return self.final_layer_norm(x + F.dropout(self.fc2(hidden), outer, self.training))


class BartEncoder(nn.Module):
    """Embeddings (B, L, width) to encoded tokens of the same shape."""

    def __init__(self, sizes: BartSizes) -> None:
        super().__init__()
        self.dropout = sizes.dropout
        self.scale = math.sqrt(sizes.width) if sizes.scales else 1.0
        self.embed_tokens = nn.Embedding(sizes.vocabulary, sizes.width, padding_idx=sizes.pad)
        self.embed_positions = nn.Embedding(sizes.positions + OFFSET, sizes.width)
        self.layers = nn.ModuleList(BartLayer(sizes) for _ in range(sizes.layers))
        self.layernorm_embedding = nn.LayerNorm(sizes.width)

    def words(self, tokens: Tensor) -> Tensor:
        """Return the embeddings (B, L, width) of tokens, int64 (B, L)."""
        return self.embed_tokens(tokens) * self.scale

    def forward(self, embeddings: Tensor) -> Tensor:
        """Return the tokens after the last layer. All see each other, padding included."""
        places = torch.arange(embeddings.shape[1], device=embeddings.device) + OFFSET
        x = self.layernorm_embedding(embeddings + self.embed_positions(places))
        x = F.dropout(x, self.dropout, self.training)
        for layer in self.layers:
            x = layer(x)
        return x
