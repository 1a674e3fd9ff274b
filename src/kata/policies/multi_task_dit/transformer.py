"""The diffusion transformer: attention over a chunk of actions, steered by adaptive layer norms
(arXiv 2212.09748).

Module names are LeRobot's.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kata.nn.unet1d import StepSinusoid
from kata.policies.multi_task_dit.config import Config


class StepRotation(NamedTuple):
    """Cosines and sines (T, width / 2) of rotary positions (arXiv 2104.09864)."""

    cos: Tensor
    sin: Tensor


def rotation(steps: int, width: int, base: float, device: torch.device) -> StepRotation:
    """Return the rotation of each step and pair of a head of this width. All blocks share it."""
    half = width // 2
    rates = 1.0 / base ** (torch.arange(half, device=device) / half)
    angle = torch.arange(steps, device=device)[:, None] * rates
    return StepRotation(angle.cos(), angle.sin())


def rotated(x: Tensor, by: StepRotation) -> Tensor:
    """Rotate x (..., T, width); pairs are halves apart."""
    half = x.shape[-1] // 2
    cos, sin = by.cos.to(x.dtype), by.sin.to(x.dtype)
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


class RotaryAttention(nn.Module):
    """Self-attention that sees how far apart two steps are."""

    def __init__(self, config: Config) -> None:
        super().__init__()
        self.heads = config.num_heads
        self.dropout = config.dropout
        self.qkv_proj = nn.Linear(config.hidden_dim, 3 * config.hidden_dim)
        self.out_proj = nn.Linear(config.hidden_dim, config.hidden_dim)

    def forward(self, x: Tensor, by: StepRotation) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        qkv = self.qkv_proj(x).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        q, k = rotated(qkv[:2], by).unbind(0)
        v = qkv[2]
        return self.out_proj(
            F.scaled_dot_product_attention(q, k, v, dropout_p=dropout).transpose(1, 2).flatten(2)
        )


class DiTBlock(nn.Module):
    """Attention and a perceptron; the condition shifts, scales and gates both. At first its
    gates are shut.
    """

    def __init__(self, config: Config, condition: int) -> None:
        super().__init__()
        width = config.hidden_dim
        if config.use_rope:
            self.attn = RotaryAttention(config)
        else:
            self.multihead_attn = nn.MultiheadAttention(
                width, config.num_heads, dropout=config.dropout, batch_first=True
            )
        self.norm1 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.norm2 = nn.LayerNorm(width, elementwise_affine=False, eps=1e-6)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(approximate="tanh"), nn.Linear(4 * width, width)
        )
        modulation = nn.Linear(condition, 6 * width)
        nn.init.zeros_(modulation.weight)
        nn.init.zeros_(modulation.bias)
        self.adaLN_modulation = nn.Sequential(nn.SiLU(), modulation)

    def forward(self, x: Tensor, condition: Tensor, by: StepRotation | None) -> Tensor:
        """x: (B, T, D). condition: (B, C). by: None without rotary positions."""
        shift, scale, gate, shift2, scale2, gate2 = self.adaLN_modulation(condition)[:, None].chunk(
            6, dim=-1
        )
        seen = self.norm1(x) * (1 + scale) + shift
        x = x + gate * (
            self.multihead_attn(seen, seen, seen)[0] if by is None else self.attn(seen, by)
        )
        return x + gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)


class ActionTransformer(nn.Module):
    """Noisy actions, time and condition -> noise, clean actions or velocity."""

    pos_embedding: nn.Parameter | None

    def __init__(self, config: Config, condition: int) -> None:
        super().__init__()
        actions = config.action.shape[0]
        width = config.hidden_dim
        times = config.timestep_embed_dim
        self.rotary_base = config.rope_base if config.use_rope else None
        self.head_width = width // config.num_heads
        self.time_mlp = nn.Sequential(
            StepSinusoid(times),
            nn.Linear(times, 2 * times),
            nn.GELU(),
            nn.Linear(2 * times, times),
            nn.GELU(),
        )
        self.input_proj = nn.Linear(actions, width)
        learned = (
            nn.Parameter(0.02 * torch.randn(1, config.horizon, width))
            if config.use_positional_encoding
            else None
        )
        self.register_parameter("pos_embedding", learned)
        self.transformer_blocks = nn.ModuleList(
            DiTBlock(config, times + condition) for _ in range(config.num_layers)
        )
        self.output_proj = nn.Linear(width, actions)

    def forward(self, actions: Tensor, time: Tensor, condition: Tensor) -> Tensor:
        """actions: (B, horizon, A). time: (B,), noising steps or times of a flow. condition: (B,
        C).
        """
        steered = torch.cat((self.time_mlp(time), condition), dim=-1)
        x = self.input_proj(actions)
        if self.pos_embedding is not None:
            x = x + self.pos_embedding
        by = None
        if self.rotary_base is not None:
            by = rotation(x.shape[1], self.head_width, self.rotary_base, x.device)
        for block in self.transformer_blocks:
            x = block(x, steered, by)
        return self.output_proj(x)
