"""The blocks of GR00T's head: attention to given tokens or to each other, and a perceptron.

Names are those of diffusers, which NVIDIA's checkpoints have.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn
from torch.nn import functional as F

from kata.nn.attention import KeysValues, split_heads


@dataclass(frozen=True)
class BlockSizes:
    """Sizes of a stack of blocks.

    Attributes:
        dropout: after attention and in the perceptron.
        final_dropout: whether there is a second one behind both.
    """

    layers: int
    heads: int
    head_dim: int
    dropout: float
    final_dropout: bool

    @property
    def width(self) -> int:
        """Return the width of the tokens."""
        return self.heads * self.head_dim


class TimedNorm(nn.Module):
    """A norm whose scale and shift follow from the time."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, 2 * width)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        """Normalize x (B, T, width) by the embedded time (B, width)."""
        scale, shift = self.linear(F.silu(time)).chunk(2, dim=1)
        return F.layer_norm(x, x.shape[-1:]) * (1 + scale[:, None]) + shift[:, None]


class ContextAttention(nn.Module):
    """Attention of tokens to others, which may have another width."""

    def __init__(self, sizes: BlockSizes, context: int) -> None:
        super().__init__()
        width = sizes.width
        self.head_dim = sizes.head_dim
        self.to_q = nn.Linear(width, width)
        self.to_k = nn.Linear(context, width)
        self.to_v = nn.Linear(context, width)
        self.to_out = nn.ModuleList([nn.Linear(width, width), nn.Dropout(sizes.dropout)])

    def keys_values(self, context: Tensor) -> KeysValues:
        """Return keys and values of tokens (B, L, context)."""
        keys = split_heads(self.to_k(context), self.head_dim)
        return KeysValues(keys, split_heads(self.to_v(context), self.head_dim))

    def forward(self, x: Tensor, given: KeysValues, bias: Tensor | None) -> Tensor:
        """(B, T, width) -> (B, T, width). bias: of `score_bias`, None if all is seen."""
        query = split_heads(self.to_q(x), self.head_dim)
        bias = None if bias is None else bias.to(query.dtype)
        found = F.scaled_dot_product_attention(query, *given, attn_mask=bias)
        found = found.transpose(1, 2).flatten(2)
        for module in self.to_out:
            found = module(found)
        return found


class GeluProjection(nn.Module):
    """The first half of the perceptron."""

    def __init__(self, width: int, inner: int) -> None:
        super().__init__()
        self.proj = nn.Linear(width, inner)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width) -> (B, T, inner)."""
        return F.gelu(self.proj(x), approximate="tanh")


class GeluPerceptron(nn.Module):
    """The perceptron of a block."""

    def __init__(self, sizes: BlockSizes) -> None:
        super().__init__()
        width = sizes.width
        parts = [GeluProjection(width, 4 * width), nn.Dropout(sizes.dropout)]
        last = [nn.Dropout(sizes.dropout)] if sizes.final_dropout else []
        self.net = nn.ModuleList([*parts, nn.Linear(4 * width, width), *last])

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, width) -> (B, T, width)."""
        for module in self.net:
            x = module(x)
        return x


class HeadBlock(nn.Module):
    """Attention and a perceptron, each behind a norm.

    Args:
        sizes: of the stack.
        context: width of the tokens that are read; None if the block's tokens read each other.
        is_timed: whether the time steers the first norm, and neither norm has weights.
    """

    def __init__(self, sizes: BlockSizes, context: int | None, *, is_timed: bool) -> None:
        super().__init__()
        width = sizes.width
        self.norm1 = TimedNorm(width) if is_timed else nn.LayerNorm(width)
        self.attn1 = ContextAttention(sizes, context or width)
        self.norm3 = nn.LayerNorm(width, elementwise_affine=not is_timed)
        self.ff = GeluPerceptron(sizes)
        self.final_dropout = nn.Dropout(sizes.dropout if sizes.final_dropout else 0.0)
        self.reads_context = context is not None

    def forward(
        self,
        x: Tensor,
        time: Tensor | None = None,
        *,
        context: Tensor | None = None,
        given: KeysValues | None = None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, KeysValues | None]:
        """Return new tokens (B, T, width), and keys and values of the context.

        Args:
            x: tokens (B, T, width).
            time: embedded, (B, width), where the norm is timed.
            context: tokens that are read, (B, L, context), by a block that reads others.
            given: keys and values of the context, where another pass has computed them.
            bias: of `score_bias` over what is read; None if all is seen.
        """
        normed = self.norm1(x) if time is None else self.norm1(x, time)
        if self.reads_context and given is None:
            assert context is not None
            given = self.attn1.keys_values(context)
        read = self.attn1.keys_values(normed) if given is None else given
        x = x + self.final_dropout(self.attn1(normed, read, bias))
        return x + self.ff(self.norm3(x)), given
