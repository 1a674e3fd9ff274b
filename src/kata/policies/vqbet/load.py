"""VQ-BeT's tensors bear LeRobot's names but for its codebooks, which lie one level deeper there."""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

from kata.policies.base import KeyMap
from kata.policies.vqbet.config import LAYERS, Config
from kata.policies.vqbet.gpt import causal_mask

_LAYER = "vqbet.action_head.vqvae_model.vq_layer.layers.{}."


def key_map(config: Config) -> KeyMap:
    """The table; LeRobot's files also hold masks, indices and marks that are the same in each."""
    books = [_LAYER.format(number) for number in range(LAYERS)]
    constants: dict[str, Callable[[], Tensor]] = {
        f"vqbet.policy.transformer.h.{number}.attn.bias": functools.partial(
            causal_mask, config.gpt_block_size
        )
        for number in range(config.gpt_n_layer)
    }
    constants |= {f"{book}_codebook.initted": functools.partial(torch.ones, 1) for book in books}
    constants["vqbet.select_target_actions_indices"] = functools.partial(_chunk_indices, config)
    return KeyMap(
        prefixes=tuple((book, f"{book}_codebook.") for book in books), constants=constants
    )


def _chunk_indices(config: Config) -> Tensor:
    """Return the indices in the window of each chunk's actions, (chunks, action_chunk_size)."""
    return torch.arange(config.chunks)[:, None] + torch.arange(config.action_chunk_size)
