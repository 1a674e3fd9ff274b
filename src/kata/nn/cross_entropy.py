"""Cross-entropy over a large vocabulary, without holding the scores of all tokens at once."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd import Function
from torch.nn import functional as F

from kata.nn.decoder import INITIAL_STD

ROWS = 128
"""Tokens whose scores are held at the same time."""


class VocabularyHead(nn.Module):
    """A linear map to the scores of a vocabulary, without bias."""

    def __init__(self, width: int, vocabulary: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocabulary, width))
        nn.init.normal_(self.weight, std=INITIAL_STD)

    def forward(self, x: Tensor, target: Tensor | None = None) -> Tensor:
        """Return scores (..., V), or with targets the cross-entropy of each token, float32.

        Args:
            x: tokens (..., width).
            target: the token to predict at each place, int64 (...).
        """
        if target is None:
            return F.linear(x.to(self.weight.dtype), self.weight)
        # Under autocast the product has its precision, as in a linear map.
        kind, dtype = x.device.type, self.weight.dtype
        if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
            dtype = torch.get_autocast_dtype(kind)
        found = _CrossEntropy.apply(x.flatten(0, -2), self.weight, target.flatten(), dtype)
        assert isinstance(found, Tensor)
        return found.view(target.shape)


class _CrossEntropy(Function):
    """The cross-entropy of rows; its backward pass computes the scores again."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, target: Tensor, dtype: torch.dtype) -> Tensor:
        ctx.save_for_backward(x, weight, target)
        ctx.dtype = dtype
        map_to, found = weight.to(dtype).t(), x.new_empty(len(x), dtype=torch.float32)
        for i in range(0, len(x), ROWS):
            part = slice(i, i + ROWS)
            scores = (x[part].to(dtype) @ map_to).float()
            found[part] = F.cross_entropy(scores, target[part], reduction="none")
        return found

    @staticmethod
    def backward(ctx: Any, *upstream: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, target = ctx.saved_tensors
        narrow = weight.to(ctx.dtype)
        by_x = torch.empty_like(x) if ctx.needs_input_grad[0] else None
        by_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        for i in range(0, len(x), ROWS):
            part = slice(i, i + ROWS)
            rows = x[part].to(ctx.dtype)
            # The derivative by the scores: shares, less one at the target.
            given = (rows @ narrow.t()).float().softmax(dim=1)
            given.scatter_add_(1, target[part, None], given.new_full((len(rows), 1), -1.0))
            given = (given * upstream[0][part, None]).to(ctx.dtype)
            if by_x is not None:
                by_x[part] = (given @ narrow).to(x.dtype)
            if by_weight is not None:
                by_weight += (given.t() @ rows).to(weight.dtype)
        return by_x, by_weight, None, None
