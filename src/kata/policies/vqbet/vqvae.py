"""Chunks of actions as codes: encoder, residual codebooks, decoder. Module names are LeRobot's."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn

from kata.policies.vqbet.config import LAYERS, Config
from kata.policies.vqbet.quantize import Quantized, ResidualQuantizer


class VqVae(nn.Module):
    """Chunks of actions to codes and back.

    `discretized` says that the codes are learnt and fixed.
    """

    discretized: Tensor

    def __init__(self, config: Config) -> None:
        super().__init__()
        numbers = config.action_chunk_size * config.action.shape[0]
        hidden, width = config.vqvae_enc_hidden_dim, config.vqvae_embedding_dim
        self.register_buffer("discretized", torch.tensor(False))
        self.vq_layer = ResidualQuantizer(
            LAYERS, config.vqvae_n_embed, width, keep_unused=config.keep_unused_codes
        )
        self.encoder = mlp(numbers, hidden, hidden, width)
        self.decoder = mlp(width, hidden, hidden, numbers)
        self._known: bool | None = None
        self.register_load_state_dict_post_hook(VqVae._forget)

    def has_codes(self) -> bool:
        """`discretized` on the host. In training it is read from the device once, then followed;
        the average of the weights, which is given buffers without notice and is never trained,
        reads it each time.
        """
        if not self.training:
            return bool(self.discretized)
        if self._known is None:
            self._known = bool(self.discretized)
        return self._known

    def fix_codes(self) -> None:
        """The codes are learnt."""
        self._known = True
        self.discretized.fill_(True)
        self.vq_layer.freeze_codebook.fill_(True)

    def forward(self, chunks: Tensor, valid: Tensor | None) -> tuple[Tensor, Quantized]:
        """Return flat chunks (N, W * A) decoded from their codes, and the quantization.

        In training, codes are counted for the update of the codebooks.
        """
        quantized = self.vq_layer(self.encoder(chunks), learn=self.training, valid=valid)
        return self.decoder(quantized.value).float(), quantized

    @torch.no_grad()
    def codes(self, chunks: Tensor) -> Tensor:
        """Flat chunks (N, W * A) -> codes (N, LAYERS)."""
        return self.vq_layer(self.encoder(chunks)).codes

    @torch.no_grad()
    def decode(self, codes: Tensor) -> Tensor:
        """Codes (..., LAYERS) -> flat chunks (..., W * A)."""
        return self.decoder(self.vq_layer.entries(codes)).float()

    def _forget(self, keys: Any) -> None:
        """After loading, `discretized` has to be read again."""
        del keys
        self._known = None


def mlp(*widths: int) -> nn.Sequential:
    """Linear layers with ReLU between them."""
    layers: list[nn.Module] = []
    for given, made in pairwise(widths):
        layers += [nn.ReLU()] if layers else []
        layers.append(nn.Linear(given, made))
    return nn.Sequential(*layers)
