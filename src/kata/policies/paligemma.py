"""Base class of policies that read cameras and a sentence with PaliGemma (arXiv 2407.07726).

Cameras and the sentence form a prefix, whose tokens all see each other and nothing after them.
"""

from __future__ import annotations

import math
from contextlib import nullcontext
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from kata.nn.attention import KeysValues, positions_of, score_bias
from kata.nn.decoder import INITIAL_STD, DecoderSizes
from kata.nn.gemma import GemmaLayer
from kata.nn.images import resize_with_padding
from kata.nn.recompute import recompute_in_backward
from kata.nn.rope import Rotation, rotation_at
from kata.nn.siglip import SiglipSizes, SiglipVision
from kata.policies.pi import PATCH, PaliGemmaConfig
from kata.policies.vla_policy import (
    DTYPES,
    VlaPolicy,
    images_as_features,
    images_of_features,
    latest,
)
from kata.spec import LANGUAGE_MASK, LANGUAGE_TOKENS, Batch, missing_key, pad_key

ROPE_BASE = 10_000.0
VLM = "model.paligemma_with_expert.paligemma."
"""Beginning of LeRobot's names."""

EMBEDDINGS = f"{VLM}model.language_model.embed_tokens.weight"


@dataclass(frozen=True)
class PiSizes:
    """Sizes that follow from the names of variants. `vision.image` is the default resolution."""

    vision: SiglipSizes
    gemma: dict[str, DecoderSizes]
    layers: int
    vocabulary: int


SIZES = PiSizes(
    vision=SiglipSizes(width=1152, mlp=4304, layers=27, heads=16, image=224, patch=PATCH),
    gemma={
        "gemma_300m": DecoderSizes(1024, 4096, heads=8, kv_heads=1, head_dim=256, eps=1e-6),
        "gemma_2b": DecoderSizes(2048, 16384, heads=8, kv_heads=1, head_dim=256, eps=1e-6),
    },
    layers=18,
    vocabulary=257152,
)


class GemmaDecoder(nn.Module):
    """The layers of a Gemma and its last norm; with a vocabulary also its table of tokens."""

    def __init__(
        self,
        sizes: DecoderSizes,
        layers: int,
        *,
        vocabulary: int = 0,
        layer: type[GemmaLayer] = GemmaLayer,
    ) -> None:
        super().__init__()
        if vocabulary:
            self.embed_tokens = nn.Embedding(vocabulary, sizes.width, padding_idx=0)
            nn.init.normal_(self.embed_tokens.weight, std=INITIAL_STD)
        self.layers = nn.ModuleList(layer(sizes) for _ in range(layers))
        self.norm = layer.norm(sizes.width, sizes.eps)

    @property
    def dtype(self) -> torch.dtype:
        """Return the dtype of the layers' linear maps."""
        first = self.layers[0]
        assert isinstance(first, GemmaLayer)
        # A map in few bits has no parameter of this name.
        return first.self_attn.q_proj.weight.dtype


class Prefix(NamedTuple):
    """Cameras and a sentence, encoded.

    Attributes:
        tokens: PaliGemma's last tokens (B, P, width), before its last norm.
        layers: its keys and values in each layer.
        valid: which tokens are real, bool (B, P).
    """

    tokens: Tensor
    layers: list[KeysValues]
    valid: Tensor


class PaliGemmaPolicy(VlaPolicy):
    """A policy with PaliGemma. A subclass makes its other parts, and then calls `finish`."""

    def __init__(self, config: PaliGemmaConfig) -> None:
        super().__init__(config)
        self.options = config
        sizes, text = SIZES, SIZES.gemma[config.paligemma_variant]
        vision = {**vars(sizes.vision), "image": config.image_resolution[0]}
        self.vision = SiglipVision(SiglipSizes(**vision))
        self.projector = nn.Linear(sizes.vision.width, text.width)
        self.text = GemmaDecoder(text, sizes.layers, vocabulary=sizes.vocabulary)
        self.vocabulary = sizes.vocabulary
        self.head_dim = text.head_dim
        # LeRobot rounds the scale of the embeddings to the weights' precision.
        scale = torch.tensor(math.sqrt(text.width), dtype=DTYPES[config.dtype], device="cpu")
        self.scale = scale.item()

    def finish(self) -> None:
        """Set the precision, what is frozen, and what wraps the layers."""
        config = self.options
        for module in self.decoders:
            module.to(DTYPES[config.dtype])
        for norm in self.norms:
            norm.float()
        for module in self.frozen_modules():
            module.requires_grad_(False)
        for unit in self.layers:
            if config.gradient_checkpointing:
                recompute_in_backward(unit)
            if config.compile_model:
                unit.compile(mode=config.compile_mode)

    @property
    def decoders(self) -> list[GemmaDecoder]:
        """Return the language model, and the decoders beside it."""
        return [self.text]

    @property
    def layers(self) -> list[nn.Module]:
        """Return the layers of the image encoder and of the decoders."""
        found: list[nn.Module] = [*self.vision.layers]
        for decoder in self.decoders:
            found += decoder.layers
        return found

    @property
    def norms(self) -> list[nn.Module]:
        """Return the norms of the decoders."""
        found: list[nn.Module] = []
        for decoder in self.decoders:
            found.append(decoder.norm)
            for layer in decoder.layers:
                assert isinstance(layer, GemmaLayer)
                found += [layer.input_layernorm, layer.post_attention_layernorm]
        return found

    def fitted(self, images: Tensor) -> Tensor:
        """Return frames padded on all sides; see `VlaPolicy.fitted`."""
        return resize_with_padding(images, self.options.image_resolution, is_centered=True)

    def encode_prefix(self, batch: Batch, *, needs_tokens: bool = False) -> Prefix:
        """Return what PaliGemma makes of cameras and sentence.

        Args:
            batch: cameras, and the tokens of the sentence with their mask.
            needs_tokens: False leaves out what nothing but the last tokens depends on.
        """
        tokens, valid = self._context(batch)
        x = tokens.to(self.text.dtype)
        bias = score_bias(valid[:, None, None], x.dtype)
        rotation = self.rotation(positions_of(valid))
        layers: list[KeysValues] = []
        for layer in self.text.layers:
            is_last = not needs_tokens and len(layers) + 1 == len(self.text.layers)
            x, given = layer(x, rotation, bias, is_last=is_last)
            layers.append(given)
        return Prefix(x, layers, valid)

    def _context(self, batch: Batch, words: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the tokens of cameras and sentence (B, P, width), and which are real (B, P).

        Args:
            batch: cameras, and the tokens of the sentence with their mask.
            words: the sentence as `embedded` returns it, where the caller has it.
        """
        # 1. The cameras.
        patches, seen = images_of_features(batch) or self.camera_patches(batch)
        images = self.projector(patches.to(self.projector.weight.dtype))
        parts = images.split(len(seen))
        valid = seen.repeat_interleave(images.shape[1], dim=1)
        # 2. The sentence.
        words = self.embedded(batch[LANGUAGE_TOKENS]) if words is None else words
        tokens = torch.cat((*parts, words.to(images.dtype)), dim=1)
        return tokens, torch.cat((valid, batch[LANGUAGE_MASK]), dim=1)

    def camera_patches(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the patches of all cameras (cameras * B, L, width), and which cameras samples
        have (B, cameras).
        """
        # One pass for all. Nothing sees a camera that the batch lacks: it is left out.
        present, frames = self.camera_frames(batch)
        is_frozen = self.options.freeze_vision_encoder
        with torch.no_grad() if is_frozen else nullcontext():
            patches = self.vision(frames.to(self.vision.post_layernorm.weight.dtype))
        seen = [_camera_mask(batch, key, patches, len(batch[present[0]])) for key in present]
        return patches, torch.stack(seen, dim=1)

    def frozen_features(self, batch: Batch, kind: str) -> dict[str, Tensor]:
        """Return the patches of cameras; see `Policy.frozen_features`."""
        del kind
        with torch.no_grad():
            return images_as_features(*self.camera_patches(batch))

    def embedded(self, tokens: Tensor) -> Tensor:
        """Return the embeddings of tokens (B, L), as the first layer reads them."""
        return self.text.embed_tokens(tokens) * self.scale

    def rotation(self, positions: Tensor) -> Rotation:
        """Return the rotation of tokens at positions (B, L)."""
        return rotation_at(positions, self.head_dim, ROPE_BASE, rounds_frequency=True)

    def shard_units(self) -> list[nn.Module]:
        """Return the layers. Norms and the table of tokens are apart if they differ in dtype."""
        if self.options.dtype == "float32":
            return self.layers
        return [*self.norms, *self.layers, self.text.embed_tokens]

    def recompute_units(self) -> list[nn.Module]:
        """Return the layers, unless they are recomputed already."""
        return [] if self.options.gradient_checkpointing else self.layers

    def paligemma_prefixes(self) -> tuple[tuple[str, str], ...]:
        """Return the beginnings of PaliGemma's names, and LeRobot's."""
        return (
            ("vision.", f"{VLM}model.vision_tower.vision_model."),
            ("projector.", f"{VLM}model.multi_modal_projector.linear."),
            ("text.", f"{VLM}model.language_model."),
        )


def _camera_mask(batch: Batch, key: str, like: Tensor, size: int) -> Tensor:
    """Return which samples have this camera, bool (B,), on the device of another tensor."""
    if missing_key(key) in batch:
        return ~batch[missing_key(key)].to(like.device)
    if pad_key(key) in batch:
        return ~latest(batch[pad_key(key)], 1).to(like.device)
    return torch.ones(size, dtype=torch.bool, device=like.device)
