"""Base class of π0 and π0.5: an action expert reads the keys and values of PaliGemma.

Cameras and the sentence form a prefix, which never sees the actions. It passes through PaliGemma
once; the expert then reads its keys and values, in training as in acting.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from kata.nn.attention import KeysValues, positions_of, seen_then_blocks
from kata.nn.decoder import INITIAL_STD, DecoderSizes
from kata.nn.flow import beta_quantile
from kata.nn.gemma import GemmaLayer
from kata.nn.images import resize_with_padding
from kata.nn.rope import Rotation, rotation_at
from kata.nn.siglip import SiglipSizes, SiglipVision
from kata.policies.base import KeyMap
from kata.policies.pi import PATCH, PiConfig
from kata.policies.vla_policy import DTYPES, VlaPolicy, latest
from kata.spec import LANGUAGE_MASK, LANGUAGE_TOKENS, STATE, Batch, missing_key, pad_key

ROPE_BASE = 10_000.0
VLM = "model.paligemma_with_expert.paligemma."
EXPERT = "model.paligemma_with_expert.gemma_expert."
"""Beginnings of LeRobot's names."""

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


class Observed(NamedTuple):
    """An encoded observation.

    Attributes:
        layers: PaliGemma's keys and values in each layer.
        valid: which of its tokens are real, bool (B, P).
        state: normalized state (B, D).
    """

    layers: list[KeysValues]
    valid: Tensor
    state: Tensor


class Suffix(NamedTuple):
    """The tokens that the action expert reads.

    Attributes:
        tokens: (B, T, width); the last are those of the actions.
        blocks: their numbers in blocks that see each other and the blocks before.
        condition: what the expert's norms follow, or None.
    """

    tokens: Tensor
    blocks: Sequence[int]
    condition: Tensor | None = None


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
        return self.layers[0].get_parameter("self_attn.q_proj.weight").dtype


class PiPolicy(VlaPolicy[Observed]):
    """π0 or π0.5 with its loss and acting. A subclass gives `suffix`."""

    expert_layer: ClassVar[type[GemmaLayer]] = GemmaLayer
    old_names: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Beginnings of names in older files, and what stands in their place today."""

    def __init__(self, config: PiConfig) -> None:
        super().__init__(config)
        self.options: PiConfig = config
        # 1. PaliGemma. Its output map is never read, and is not held.
        sizes, text = SIZES, SIZES.gemma[config.paligemma_variant]
        vision = {**vars(sizes.vision), "image": config.image_resolution[0]}
        self.vision = SiglipVision(SiglipSizes(**vision))
        self.projector = nn.Linear(sizes.vision.width, text.width)
        self.text = GemmaDecoder(text, sizes.layers, vocabulary=sizes.vocabulary)
        # 2. The expert, and the maps of actions.
        self.sizes = sizes.gemma[config.action_expert_variant]
        self.vocabulary = sizes.vocabulary
        self.expert = GemmaDecoder(self.sizes, sizes.layers, layer=self.expert_layer)
        self.action_in_proj = nn.Linear(config.max_action_dim, self.sizes.width)
        self.action_out_proj = nn.Linear(self.sizes.width, config.max_action_dim)
        # 3. Precision: LeRobot rounds the scale of the embeddings to the weights' precision.
        self._narrow(DTYPES[config.dtype])
        scale = torch.tensor(math.sqrt(text.width), dtype=DTYPES[config.dtype], device="cpu")
        self.scale = scale.item()
        for module in self.frozen_modules():
            module.requires_grad_(False)
            if config.frozen_dtype != "float32":
                module.to(DTYPES[config.frozen_dtype])
        # 4. What wraps the layers.
        for unit in self.layers:
            if config.gradient_checkpointing:
                vars(unit)["forward"] = _recomputed(unit, unit.forward)
            if config.compile_model:
                unit.compile(mode=config.compile_mode)

    @abstractmethod
    def suffix(self, observed: Observed, noisy: Tensor, time: Tensor) -> Suffix:
        """Return the tokens of noisy actions (B, T, max_action_dim) at times (B,)."""

    @property
    def layers(self) -> list[nn.Module]:
        """Return the layers of image encoder, language model and expert."""
        return [*self.vision.layers, *self.text.layers, *self.expert.layers]

    @property
    def norms(self) -> list[nn.Module]:
        """Return the norms of language model and expert."""
        found: list[nn.Module] = [self.text.norm, self.expert.norm]
        for layer in (*self.text.layers, *self.expert.layers):
            assert isinstance(layer, GemmaLayer)
            found += [layer.input_layernorm, layer.post_attention_layernorm]
        return found

    def _narrow(self, dtype: torch.dtype) -> None:
        """Cast language model and expert, but not their norms."""
        for module in (self.text, self.expert):
            module.to(dtype)
        for norm in self.norms:
            norm.float()

    def fitted(self, images: Tensor) -> Tensor:
        """Return frames padded on all sides; see `VlaPolicy.fitted`."""
        return resize_with_padding(images, self.options.image_resolution, is_centered=True)

    def training_time(self, share: Tensor) -> Tensor:
        """Return times from uniform numbers, by the options `time_sampling_*`."""
        config = self.options
        drawn = beta_quantile(
            share, config.time_sampling_beta_alpha, config.time_sampling_beta_beta
        )
        return config.time_sampling_offset + config.time_sampling_scale * drawn

    def encode(self, batch: Batch) -> Observed:
        """Return PaliGemma's keys and values of cameras and sentence."""
        # If all of PaliGemma is frozen, they are constants: no activation is kept for a backward
        # pass.
        with torch.no_grad() if self.options.train_expert_only else nullcontext():
            tokens, valid = self._context(batch)
            x = tokens.to(self.text.dtype)
            rotation = self._rotation(positions_of(valid))
            layers: list[KeysValues] = []
            for layer in self.text.layers:
                is_last = len(layers) + 1 == len(self.text.layers)
                x, given = layer(x, rotation, valid[:, None, None], is_last=is_last)
                layers.append(given)
        return Observed(layers, valid, latest(batch[STATE], 2))

    def _context(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Return the tokens of cameras and sentence (B, P, width), and which are real (B, P)."""
        # 1. All cameras in one pass. Nothing sees a camera that the batch lacks: it is left out.
        present, frames = self.camera_frames(batch)
        is_frozen = self.options.freeze_vision_encoder
        with torch.no_grad() if is_frozen else nullcontext():
            patches = self.vision(frames.to(self.vision.post_layernorm.weight.dtype))
        images = self.projector(patches.to(self.projector.weight.dtype))
        told = batch[LANGUAGE_MASK]
        parts = list(images.split(len(told)))
        valid: list[Tensor] = []
        for key, tokens in zip(present, parts, strict=True):
            valid.append(_camera_mask(batch, key, told)[:, None].expand(-1, tokens.shape[1]))
        # 2. The sentence.
        words = self.text.embed_tokens(batch[LANGUAGE_TOKENS]) * self.scale
        return torch.cat((*parts, words.to(images.dtype)), dim=1), torch.cat((*valid, told), dim=1)

    def velocity(self, prefix: Observed, noisy: Tensor, time: Tensor) -> Tensor:
        """Return the velocity; see `VlaPolicy.velocity`."""
        suffix = self.suffix(prefix, noisy, time)
        x = suffix.tokens.to(self.expert.dtype)
        steps = torch.arange(x.shape[1], device=x.device)[None]
        places = prefix.valid.sum(1, keepdim=True) + steps
        rotation = self._rotation(places)
        mask = seen_then_blocks(prefix.valid, suffix.blocks)
        given = {} if suffix.condition is None else {"condition": suffix.condition}
        for layer, past in zip(self.expert.layers, prefix.layers, strict=True):
            x, _ = layer(x, rotation, mask, past, **given)
        x = self.last_norm(x[:, -noisy.shape[1] :], suffix)
        return self.action_out_proj(x.float()).float()

    def _rotation(self, positions: Tensor) -> Rotation:
        return rotation_at(positions, self.sizes.head_dim, ROPE_BASE, rounds_frequency=True)

    def last_norm(self, x: Tensor, suffix: Suffix) -> Tensor:
        """Return the expert's tokens of actions after its last norm."""
        del suffix
        return self.expert.norm(x)

    def integration_steps(self) -> int:
        """Return `num_inference_steps`."""
        return self.options.num_inference_steps

    def frozen_modules(self) -> list[nn.Module]:
        """Return what the options keep as it is, and what nothing reads."""
        if self.options.train_expert_only:
            return [self.vision, self.projector, self.text]
        # The expert reads keys and values of the last layer, and nothing reads its tokens.
        last = self.text.layers[-1]
        assert isinstance(last, GemmaLayer)
        attention = [last.self_attn.q_proj, last.self_attn.o_proj]
        unread = [*attention, last.post_attention_layernorm, last.mlp, self.text.norm]
        return [self.vision, *unread] if self.options.freeze_vision_encoder else unread

    def shard_units(self) -> list[nn.Module]:
        """Return the layers. Norms and the table of tokens are apart if they differ in dtype."""
        if self.options.dtype == "float32":
            return self.layers
        return [*self.norms, *self.layers, self.text.embed_tokens]

    def recompute_units(self) -> list[nn.Module]:
        """Return the layers, unless they are recomputed already."""
        return [] if self.options.gradient_checkpointing else self.layers

    def key_map(self) -> KeyMap:
        """Return the adapter to LeRobot's names.

        LeRobot reads the table of tokens from the output map where a file has that alone. The
        expert's output map is in its files, and nothing reads it.
        """
        prefixes = (
            ("vision.", f"{VLM}model.vision_tower.vision_model."),
            ("projector.", f"{VLM}model.multi_modal_projector.linear."),
            ("text.", f"{VLM}model.language_model."),
            ("expert.", f"{EXPERT}model."),
            ("state_proj.", "model.state_proj."),
            ("action_", "model.action_"),
            ("time_", "model.time_"),
        )
        shape, dtype = (self.vocabulary, self.sizes.width), DTYPES[self.options.dtype]
        return KeyMap(
            prefixes,
            aliases={EMBEDDINGS: f"{VLM}lm_head.weight"},
            constants={f"{EXPERT}lm_head.weight": lambda: torch.zeros(shape, dtype=dtype)},
            old_names=(
                ("paligemma_with_expert.", "model.paligemma_with_expert."),
                *self.old_names,
            ),
        )


def _camera_mask(batch: Batch, key: str, like: Tensor) -> Tensor:
    """Return which samples have this camera, bool (B,)."""
    if missing_key(key) in batch:
        return ~batch[missing_key(key)].to(like.device)
    if pad_key(key) in batch:
        return ~latest(batch[pad_key(key)], 1).to(like.device)
    return torch.ones(len(like), dtype=torch.bool, device=like.device)


def _recomputed(unit: nn.Module, forward: Callable[..., Any]) -> Callable[..., Any]:
    """Return a forward pass that keeps nothing but its inputs for the backward pass."""

    def run(*args: Any, **kwargs: Any) -> Any:
        if unit.training and torch.is_grad_enabled():
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)
        return forward(*args, **kwargs)

    return run
