"""Rotary positions with three axes, time, row and column, as Qwen's language models have them, and
those of patches in a grid.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from kata.nn.rope import Rotation

TIME, ROW, COLUMN = range(3)


def sectioned_axes(sections: Sequence[int]) -> tuple[int, ...]:
    """Return the axis that each pair of numbers follows in Qwen2.5-VL: sections one after another.

    Args:
        sections: numbers of pairs that follow time, row and column; half a head in all.
    """
    found: list[int] = []
    for axis, size in enumerate(sections):
        found += [axis] * size
    return tuple(found)


def interleaved_axes(sections: Sequence[int]) -> tuple[int, ...]:
    """Return the axis that each pair of numbers follows in Qwen3-VL: axes take turns, and what is
    left at the end follows time.

    Args:
        sections: numbers of pairs that follow time, row and column; half a head in all.
    """
    found: list[int] = []
    for pair in range(sum(sections)):
        axis = pair % 3
        found.append(axis if pair < 3 * sections[axis] else TIME)
    return tuple(found)


def _frequencies(width: int, base: float, like: Tensor) -> Tensor:
    """Return 1 / base^(2 i / width) for the pairs of a head, float32, as transformers rounds it."""
    even = torch.arange(0, width, 2, dtype=torch.float32, device=like.device)
    return 1.0 / (base ** (even / width))


def multimodal_rotation(places: Tensor, axes: Sequence[int], base: float) -> Rotation:
    """Return the rotation of tokens at places in three axes (arXiv 2409.12191).

    Args:
        places: int64 (B, 3, L): time, row and column of each token.
        axes: the axis that each pair of a head's numbers follows.
        base: of the periods.
    """
    frequencies = _frequencies(2 * len(axes), base, places)
    parts: list[Tensor] = []
    first = 0
    for last in range(1, len(axes) + 1):
        if last == len(axes) or axes[last] != axes[first]:
            place = places[:, axes[first], :, None].float()
            parts.append(place * frequencies[first:last])
            first = last
    angles = torch.cat(parts, dim=-1)[:, None]
    return Rotation(angles.cos(), angles.sin())


def grid_angles(height: int, width: int, head: int, like: Tensor) -> Tensor:
    """Return the angles of patches in a grid, float32 (height, width, head / 2).

    The first half of the pairs follows the row, the second the column.

    Args:
        height: rows of patches.
        width: columns of patches.
        head: numbers of an attention head.
        like: a tensor on the wanted device.
    """
    frequencies = _frequencies(head // 2, 10_000.0, like)
    rows = torch.arange(height, device=like.device)[:, None] * frequencies
    columns = torch.arange(width, device=like.device)[:, None] * frequencies
    pair = (rows[:, None].expand(-1, width, -1), columns[None].expand(height, -1, -1))
    return torch.cat(pair, dim=-1)
