"""X-VLA's transformer: noisy actions, encoded observations and soft prompts in one sequence."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kata.nn.domains.linear import DomainLinearRows
from kata.policies.xvla.config import Config

DROPOUT = 0.1
LONGEST_PERIOD = 100.0
POSITION_STD = 0.02


def time_embedding(time: Tensor, width: int) -> Tensor:
    """Return an embedding (B, width) of times (B,): cosines, then sines, and a zero if odd."""
    half = width // 2
    steps = torch.arange(half, dtype=time.dtype, device=time.device)
    angle = time[:, None] * torch.exp(-math.log(LONGEST_PERIOD) * steps / half)
    return F.pad(torch.cat((angle.cos(), angle.sin()), dim=1), (0, width % 2))


class JoinedAttention(nn.Module):
    """Attention among all tokens, with one map for queries, keys and values."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.proj = nn.Linear(width, width)

    def forward(self, x: Tensor, first: int | None) -> Tensor:
        """Return what the first tokens of (B, L, width) collect from all; None for all."""
        split = self.qkv(x).unflatten(2, (3, self.heads, -1))
        query, keys, values = split.permute(2, 0, 3, 1, 4).unbind(0)
        rate = DROPOUT if self.training else 0.0
        found = F.scaled_dot_product_attention(query[:, :, :first], keys, values, dropout_p=rate)
        return self.proj(found.transpose(1, 2).flatten(2))


class DroppingPerceptron(nn.Module):
    """Two linear maps with GELU between them, and dropout after each."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.fc1 = nn.Linear(width, inner)
        self.fc2 = nn.Linear(inner, width)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, width) -> (B, L, width)."""
        hidden = F.dropout(F.gelu(self.fc1(x), approximate="tanh"), DROPOUT, self.training)
        return F.dropout(self.fc2(hidden), DROPOUT, self.training)


class JoinedBlock(nn.Module):
    """Attention and a perceptron, each after a layer norm."""

    def __init__(self, width: int, heads: int, inner: int) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(width)
        self.attn = JoinedAttention(width, heads)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = DroppingPerceptron(width, inner)

    def forward(self, x: Tensor, first: int | None = None) -> Tensor:
        """Return the first tokens of (B, L, width) after this block; None for all."""
        x = x[:, :first] + self.attn(self.norm1(x), first)
        return x + self.mlp(self.norm2(x))


class SoftPromptedTransformer(nn.Module):
    """Noisy actions to clean ones, under an encoded observation and the prompts of a domain."""

    def __init__(self, config: Config, encoded: int) -> None:
        super().__init__()
        width, domains = config.hidden_size, config.num_domains
        actions = config.mode.width
        self.time_width = config.dim_time
        self.has_prompts = config.len_soft_prompts > 0
        self.blocks = nn.ModuleList(
            JoinedBlock(width, config.num_heads, int(width * config.mlp_ratio))
            for _ in range(config.depth)
        )
        self.vlm_proj = self._projection(config, encoded)
        self.aux_visual_proj = self._projection(config, encoded)
        self.pos_emb = nn.Parameter(torch.empty(1, config.max_len_seq, width))
        self.norm = nn.LayerNorm(width)
        inputs = actions + config.dim_time + config.proprio_width
        self.action_encoder = DomainLinearRows(inputs, width, domains)
        self.action_decoder = DomainLinearRows(width, actions, domains)
        if self.has_prompts:
            self.soft_prompt_hub = nn.Embedding(domains, config.len_soft_prompts * width)
            nn.init.normal_(self.soft_prompt_hub.weight, std=POSITION_STD)
        nn.init.normal_(self.pos_emb, std=POSITION_STD)
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)

    @staticmethod
    def _projection(config: Config, encoded: int) -> nn.Linear | DomainLinearRows:
        if config.use_hetero_proj:
            return DomainLinearRows(encoded, config.hidden_size, config.num_domains)
        return nn.Linear(encoded, config.hidden_size)

    def context(self, encoded: Tensor, views: Tensor, domain: Tensor, steps: int) -> Tensor:
        """Return the tokens that follow those of `steps` actions, (B, L, width).

        They do not depend on the actions, so that acting computes them once per chunk.

        Args:
            encoded: the first view and the sentence, (B, P, encoded width).
            views: tokens of the other views, (B, Q, encoded width).
            domain: int64 (B,).
            steps: actions of a chunk.
        """
        parts: list[Tensor] = []
        for project, tokens in ((self.vlm_proj, encoded), (self.aux_visual_proj, views)):
            has_own = isinstance(project, DomainLinearRows)
            parts.append(project(tokens, domain) if has_own else project(tokens))
        seen = torch.cat(parts, dim=1)
        seen = seen + self.pos_emb[:, steps : steps + seen.shape[1]]
        if not self.has_prompts:
            return seen
        prompts = self.soft_prompt_hub(domain).unflatten(1, (-1, seen.shape[2]))
        return torch.cat((seen, prompts), dim=1)

    def forward(
        self, context: Tensor, noisy: Tensor, proprio: Tensor, time: Tensor, domain: Tensor
    ) -> Tensor:
        """Return the clean actions (B, T, A).

        Args:
            context: see `context`.
            noisy: noisy actions (B, T, A).
            proprio: state (B, D).
            time: float32 (B,); 1 for noise alone.
            domain: int64 (B,).
        """
        steps = noisy.shape[1]
        told = torch.cat((proprio, time_embedding(time, self.time_width).to(noisy.dtype)), dim=1)
        given = torch.cat((noisy, told[:, None].expand(-1, steps, -1)), dim=2)
        actions = self.action_encoder(given, domain) + self.pos_emb[:, :steps]
        x = torch.cat((actions, context), dim=1)
        last = len(self.blocks) - 1
        for number, block in enumerate(self.blocks):
            # Nothing reads what the last block makes of other tokens.
            x = block(x, steps if number == last else None)
        return self.action_decoder(self.norm(x[:, :steps]), domain)
