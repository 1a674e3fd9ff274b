"""Tokens that a language model writes one after the other."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor


def written_tokens(
    scores: Tensor,
    following: Callable[[Tensor], Tensor],
    choose: Callable[[Tensor, int], Tensor],
    *,
    end: int,
    most: int,
    goes_on: bool,
) -> Iterator[Tensor]:
    """Yield tokens (B, 1) until all samples have written their last one.

    Args:
        scores: of the first token, (B, V).
        following: returns the scores of the token behind tokens (B, 1).
        choose: returns tokens (B, 1) from scores, and from their number.
        end: the token that is the last one of a sample.
        most: tokens at most.
        goes_on: True to write `most` tokens, whatever they are.
    """
    is_done = torch.zeros(len(scores), 1, dtype=torch.bool, device=scores.device)
    for step in range(most):
        token = choose(scores, step)
        yield token
        is_done |= token == end
        if step + 1 == most or (not goes_on and is_done.all()):
            return
        scores = following(token)
