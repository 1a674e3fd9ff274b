"""Cross-entropy over a large vocabulary, without holding the scores of all tokens at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.autocast_mode import is_autocast_available
from torch.autograd import Function
from torch.nn import functional as F

from kata.nn.decoder import INITIAL_STD

PLACES = 32
"""Places whose scores are held at the same time, in all samples: the number of blocks does not
depend on the batch, and a step stays linear in it.
"""


class VocabularyHead(nn.Module):
    """A linear map to the scores of a vocabulary, without bias."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, width))
        nn.init.normal_(self.weight, std=INITIAL_STD)

    def forward(self, x: Tensor, target: Tensor | None = None) -> Tensor:
        """Return scores (B, L, V), or with targets the cross-entropy of each, float32 (B, L).

        Args:
            x: tokens (B, L, width).
            target: the token to predict at each place, int64 (B, L).
        """
        return _scored(self.weight, x, target)


class TokenTable(nn.Embedding):
    """A table of tokens, which is also the map to their scores."""

    def forward(self, input: Tensor, target: Tensor | None = None) -> Tensor:
        """Return the rows of tokens, int64 (...); or, of tokens as the last layer writes them,
        what `VocabularyHead` returns.
        """
        if input.is_floating_point():
            return _scored(self.weight, input, target)
        return super().forward(input)


def _scored(weight: Tensor, x: Tensor, target: Tensor | None) -> Tensor:
    """Return scores or cross-entropies; see `VocabularyHead.forward`."""
    if target is None:
        return F.linear(x.to(weight.dtype), weight)
    # Under autocast the product has its precision, as in a linear map.
    kind, dtype = x.device.type, weight.dtype
    if is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
    found = _CrossEntropy.apply(x, weight, target, dtype)
    assert isinstance(found, Tensor)
    return found


class _CrossEntropy(Function):
    """The cross-entropy at each place; its backward pass computes the scores again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, target: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(x, weight, target)
        ctx.dtype = dtype
        narrow, found = weight.to(dtype), x.new_empty(target.shape, dtype=torch.float32)
        for i in range(0, target.shape[1], PLACES):
            part = slice(i, i + PLACES)
            scores = F.linear(x[:, part].to(dtype), narrow).float().flatten(0, 1)
            wanted = target[:, part]
            each = F.cross_entropy(scores, wanted.flatten(), reduction="none")
            found[:, part] = each.view(wanted.shape)
        return found

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, target = ctx.saved_tensors
        narrow = weight.to(ctx.dtype)
        by_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        by_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for i in range(0, target.shape[1], PLACES):
            part = slice(i, i + PLACES)
            rows = x[:, part].to(ctx.dtype)
            # The derivative by the scores: shares, less one at the target.
            given = F.linear(rows, narrow).float().softmax(dim=2)
            wanted = target[:, part, None]
            given.scatter_add_(2, wanted, given.new_full((1, 1, 1), -1.0).expand_as(wanted))
            given = (given * upstream[0][:, part, None]).to(ctx.dtype)
            if by_x is not None:
                by_x[:, part] = (given @ narrow).to(x.dtype)
            if by_weight is not None:
                by_weight += (given.flatten(0, 1).t() @ rows.flatten(0, 1)).to(weight.dtype)
        return by_x, by_weight, None, None
