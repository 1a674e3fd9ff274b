"""A GPT over continuous tokens, with the layout and initialisation of GPT-2.

Module names are LeRobot's.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kata.policies.vqbet.config import Config

STD = 0.02


class CausalSelfAttention(nn.Module):
    """Causal self-attention."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.gpt_hidden_dim
        self.heads, self.dropout = config.gpt_n_head, config.dropout
        self.c_attn = nn.Linear(width, 3 * width)
        self.c_proj = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        query, key, value = (
            self.c_attn(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).unbind(0)
        )
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        return F.dropout(self.c_proj(mixed.transpose(1, 2).flatten(2)), self.dropout, self.training)


class GPTBlock(nn.Module):
    """Attention and an MLP, each after a norm and added to its input."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        width = config.gpt_hidden_dim
        self.ln_1 = nn.LayerNorm(width)
        self.attn = CausalSelfAttention(config)
        self.ln_2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(),
            nn.Linear(4 * width, width),
            nn.Dropout(config.dropout),
        )

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class Transformer(nn.Module):
    """Embedding, blocks and the last norm."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.wte = nn.Linear(config.gpt_input_dim, config.gpt_hidden_dim)
        self.wpe = nn.Embedding(config.gpt_block_size, config.gpt_hidden_dim)
        self.drop = nn.Dropout(config.dropout)
        self.h = nn.ModuleList(GPTBlock(config) for _ in range(config.gpt_n_layer))
        self.ln_f = nn.LayerNorm(config.gpt_hidden_dim)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T, gpt_input_dim) -> (B, T, gpt_hidden_dim)."""
        x = self.drop(self.wte(tokens) + self.wpe.weight[: tokens.shape[1]])
        for block in self.h:
            x = block(x)
        return self.ln_f(x)


class GPT(nn.Module):
    """The transformer and a projection."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.transformer = Transformer(config)
        self.lm_head = nn.Linear(config.gpt_hidden_dim, config.gpt_output_dim, bias=False)
        for name, parameter in self.named_parameters():
            if name.endswith("bias"):
                nn.init.zeros_(parameter)
            elif name.endswith("c_proj.weight"):
                nn.init.normal_(parameter, std=STD / math.sqrt(2 * config.gpt_n_layer))
            elif ".ln_" not in name:
                nn.init.normal_(parameter, std=STD)

    def forward(self, tokens: Tensor) -> Tensor:
        """(B, T, gpt_input_dim) -> (B, T, gpt_output_dim)."""
        return self.lm_head(self.transformer(tokens))

    def groups(self) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """Parameters that decay, the linear layers' weights, and those that do not, each in
        order of their names.
        """
        linear = {
            f"{name}.weight"
            for name, module in self.named_modules()
            if isinstance(module, nn.Linear)
        }
        named = sorted(self.named_parameters())
        return [p for name, p in named if name in linear], [
            p for name, p in named if name not in linear
        ]


def causal_mask(size: int) -> Tensor:
    """The mask (1, 1, size, size) that each block has in LeRobot's files."""
    return torch.ones(size, size).tril()[None, None]
