"""Attention of queries to keys and values that may come from earlier tokens."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor
from torch.amp.autocast_mode import is_autocast_available
from torch.nn import functional as F

_ALIGNED = 8
"""Numbers whose multiples rows of a bias begin at, for CUDA's memory-efficient kernel
(aten/src/ATen/native/transformers/attention.cpp, preprocess_mask).
"""


class KeysValues(NamedTuple):
    """Keys and values of a run of tokens, each (B, key-value heads, L, D); keys are rotated."""

    keys: Tensor
    values: Tensor

    def followed_by(self, other: KeysValues) -> KeysValues:
        """Return these tokens and then the other ones."""
        keys = torch.cat((self.keys, other.keys), dim=2)
        return KeysValues(keys, torch.cat((self.values, other.values), dim=2))


def split_heads(x: Tensor, width: int) -> Tensor:
    """Return (B, L, heads * width) as (B, heads, L, width)."""
    return x.unflatten(-1, (-1, width)).transpose(1, 2)


def attend(query: Tensor, given: KeysValues, mask: Tensor) -> Tensor:
    """Return what queries collect from values, (B, T, heads * D).

    Neighboring query heads share a key-value head (grouped-query attention, arXiv 2305.13245).

    Args:
        query: (B, heads, T, D).
        given: keys and values, whose number of heads divides that of the queries.
        mask: that of `score_bias`, (B, 1, T or 1, L); or bool, True where a query sees a key, which
            torch converts in each call. Each row needs a key that it sees.
    """
    heads, steps = query.shape[1:3]
    shared = heads // given.keys.shape[1]
    keys, values = given
    if shared > 1 and shared == heads:
        # All heads read the same keys: their queries stand in one row, and nothing is copied.
        query = query.flatten(1, 2)[:, None]
        mask = mask.repeat(1, 1, heads, 1) if mask.shape[2] == steps > 1 else mask
    elif shared > 1:
        keys = keys.repeat_interleave(shared, dim=1)
        values = values.repeat_interleave(shared, dim=1)
    # Under autocast, keys are rotated in float32 and may differ from the values in dtype.
    query, keys = query.to(values.dtype), keys.to(values.dtype)
    mask = mask if mask.dtype == torch.bool else mask.to(values.dtype)
    found = F.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
    if found.shape[1] != heads:
        found = found[:, 0].unflatten(1, (heads, steps))
    return found.transpose(1, 2).flatten(2)


def score_bias(mask: Tensor, dtype: torch.dtype, *, heads: int = 1) -> Tensor:
    """Return a mask as numbers that all layers of a pass add to their scores: 0, or minus infinity.

    Fused attention takes numbers alone, so that a bool mask costs three kernels per layer, and a
    fourth where rows do not begin at multiples of eight numbers. Here they do.

    Args:
        mask: bool (B, 1, T or 1, L), True where a query sees a key.
        dtype: of the layers' weights; under autocast its own type counts.
        heads: query heads that share a single key-value head and stand in one row of queries.

    Returns:
        (B, 1, heads * T or 1, L).
    """
    kind = mask.device.type
    if is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
    if heads > 1 and mask.shape[2] > 1:
        mask = mask.repeat(1, 1, heads, 1)
    *lead, length = mask.shape
    room = torch.zeros(*lead, length + -length % _ALIGNED, dtype=dtype, device=mask.device)
    return room[..., :length].masked_fill_(~mask, float("-inf"))


def positions_of(valid: Tensor) -> Tensor:
    """Return the position of each token among the valid ones of its row, int64 (B, L).

    Padding repeats the position before it, so that it takes up no room.
    """
    return valid.long().cumsum(1) - 1


def seen_then_blocks(valid: Tensor, blocks: Sequence[int]) -> Tensor:
    """Return the mask of tokens that see a prefix, their own block and the blocks before it.

    Args:
        valid: bool (B, P), False for padding in the prefix.
        blocks: numbers of tokens in the blocks after the prefix, T in all.

    Returns:
        Bool (B, 1, T, P + T).
    """
    # Comparisons alone: a list that is copied to a GPU would let the host wait.
    place = torch.arange(sum(blocks), device=valid.device)
    number = torch.zeros_like(place)
    for start in itertools.accumulate(blocks[:-1]):
        number = number + (place >= start)
    return _seen_then(valid, number[:, None] >= number)


def seen_then_causal(valid: Tensor, steps: int) -> Tensor:
    """Return the mask of tokens that see a prefix and, of each other, those before them.

    Args:
        valid: bool (B, P), False for padding in the prefix.
        steps: number T of the tokens after the prefix.

    Returns:
        Bool (B, 1, T, P + T).
    """
    causal = torch.ones(steps, steps, dtype=torch.bool, device=valid.device).tril()
    return _seen_then(valid, causal)


def prefix_then_causal(valid: Tensor, steps: int) -> Tensor:
    """Return the mask of a prefix that sees itself alone, and of tokens that see it and, of each
    other, those before them.

    Args:
        valid: bool (B, P), False for padding in the prefix.
        steps: number T of the tokens after the prefix.

    Returns:
        Bool (B, 1, P + T, P + T).
    """
    by_prefix = F.pad(valid[:, None, None], (0, steps)).expand(-1, -1, valid.shape[1], -1)
    return torch.cat((by_prefix, seen_then_causal(valid, steps)), dim=2)


def seen_before(valid: Tensor) -> Tensor:
    """Return the mask of tokens (B, L) that see the valid ones up to themselves, (B, 1, L, L).

    The first token of each row is valid, so that each token sees one.
    """
    length = valid.shape[1]
    causal = torch.ones(length, length, dtype=torch.bool, device=valid.device).tril()
    return (causal & valid[:, None])[:, None]


def _seen_then(valid: Tensor, own: Tensor) -> Tensor:
    """Return the mask (B, 1, T, P + T) of a prefix (B, P), and of what tokens see of each other."""
    seen = valid[:, None].expand(-1, len(own), -1)
    return torch.cat((seen, own.expand(len(valid), -1, -1)), dim=2)[:, None]
