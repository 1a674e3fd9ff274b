"""Prompts of Qwen2.5-VL with images and a state among their words, as tokens in a batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from kata.processors.qwen.places import multimodal_places
from kata.spec import (
    IMAGE_TOKEN,
    LANGUAGE_MASK,
    LANGUAGE_PLACES,
    LANGUAGE_TOKENS,
    STATE_TOKEN,
    Batch,
    missing_key,
)

IMAGE = "<|vision_start|><|image_pad|><|vision_end|>"
"""Text of an image."""

IMAGE_MARK = "<|image_pad|>"
Grid = tuple[int, int]
"""Rows and columns of the tokens of an image."""


class PromptTokens(NamedTuple):
    """A prompt's tokens (L,), which of them are seen (L,), and their places (3, L)."""

    ids: NDArray[np.int64]
    seen: NDArray[np.bool_]
    places: NDArray[np.int64]


def prompt_tokens(
    words: Sequence[int], image: int, state_at: int, grids: Sequence[Grid], missing: Sequence[bool]
) -> PromptTokens:
    """Return the tokens of a prompt in which each image has all of its tokens.

    Images that a sample lacks stay among the tokens, since all samples of a batch have the same
    images; nothing sees them.

    Args:
        words: tokens of the text, one for each image that the sample has.
        image: the token that stands for an image; where it comes again, it is a word.
        state_at: index of the state among the words.
        grids: of all cameras, in their order.
        missing: which of them the sample lacks.
    """
    found: list[int] = []
    seen: list[bool] = []
    waiting = list(zip(grids, missing, strict=True))

    def hide_missing() -> None:
        while waiting and waiting[0][1]:
            rows, columns = waiting.pop(0)[0]
            found.extend([IMAGE_TOKEN] * (rows * columns))
            seen.extend([False] * (rows * columns))

    for at, word in enumerate(words):
        hide_missing()
        if word == image and waiting:
            rows, columns = waiting.pop(0)[0]
            found += [IMAGE_TOKEN] * (rows * columns)
        else:
            found.append(STATE_TOKEN if at == state_at else word)
        seen += [True] * (len(found) - len(seen))
    hide_missing()
    ids, mask = np.array(found, np.int64), np.array(seen, bool)
    places = np.zeros((3, len(ids)), np.int64)
    shown = [grid for grid, is_missing in zip(grids, missing, strict=True) if not is_missing]
    places[:, mask] = multimodal_places(ids[mask] == IMAGE_TOKEN, shown)
    return PromptTokens(ids, mask, places)


def in_batch(rows: Sequence[PromptTokens]) -> Batch:
    """Return tokens int64 (B, L), mask bool (B, L) and places int64 (B, 3, L), padded behind."""
    length = max(len(row.ids) for row in rows)
    tokens = torch.zeros(len(rows), length, dtype=torch.int64)
    mask = torch.zeros(len(rows), length, dtype=torch.bool)
    places = torch.zeros(len(rows), 3, length, dtype=torch.int64)
    for i, row in enumerate(rows):
        tokens[i, : len(row.ids)] = torch.from_numpy(row.ids)
        mask[i, : len(row.ids)] = torch.from_numpy(row.seen)
        places[i, :, : len(row.ids)] = torch.from_numpy(row.places)
    return {LANGUAGE_TOKENS: tokens, LANGUAGE_MASK: mask, LANGUAGE_PLACES: places}


def missing_images(batch: Batch, cameras: Sequence[str], size: int) -> list[tuple[bool, ...]]:
    """Return which of these cameras each of `size` samples lacks."""
    columns: list[list[bool]] = []
    for key in cameras:
        mask = batch.get(missing_key(key))
        columns.append([False] * size if mask is None else mask.tolist())
    return list(zip(*columns, strict=True))
