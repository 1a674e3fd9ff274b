"""Places of text and image tokens in a sentence, as Qwen3-VL counts them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Split(NamedTuple):
    """Indices of image tokens, int64 (B, I), and of the others, (B, L - I), each in order."""

    images: Tensor
    others: Tensor


def image_split(is_image: Tensor, count: int) -> Split:
    """Return where image tokens are; the host need not wait for the device.

    Args:
        is_image: bool (B, L), True `count` times in each row.
        count: number of image tokens.
    """
    order = torch.argsort((~is_image).to(torch.uint8), dim=1, stable=True)
    return Split(order[:, :count], order[:, count:])


def token_places(is_image: Tensor, valid: Tensor, grids: Sequence[tuple[int, int]]) -> Tensor:
    """Return time, row and column of each token, int64 (B, 3, L).

    A word follows the token before it. The tokens of an image share their time and count rows and
    columns from there; what follows comes after the longer side.

    Args:
        is_image: bool (B, L).
        valid: False for padding, which takes up no room, bool (B, L).
        grids: rows and columns of tokens of each image in a sentence.
    """
    device = is_image.device
    advance: list[Tensor] = []
    places: list[Tensor] = []
    for rows, columns in grids:
        number = torch.arange(rows * columns, device=device)
        advance.append((number == rows * columns - 1) * max(rows, columns))
        places.append(torch.stack((number * 0, number // columns, number % columns)))
    inside, steps = torch.cat(places, dim=1), torch.cat(advance)
    which = (is_image.long().cumsum(1) - 1).clamp(0, len(steps) - 1)
    step = torch.where(is_image, steps[which], 1) * valid
    start = step.cumsum(1) - step
    return start[:, None] + inside[:, which].transpose(0, 1) * is_image[:, None]
