"""Base class of π0 and π0.5: an action expert reads the keys and values of PaliGemma.

Cameras and the sentence form a prefix, which never sees the actions. It passes through PaliGemma
once; the expert then reads its keys and values, in training as in acting.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from contextlib import nullcontext
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from kata.nn.attention import KeysValues, score_bias, seen_then_blocks
from kata.nn.gemma import GemmaLayer
from kata.policies import paligemma
from kata.policies.base import KeyMap
from kata.policies.paligemma import EMBEDDINGS, VLM, GemmaDecoder, PaliGemmaPolicy
from kata.policies.pi import PiConfig
from kata.policies.vla_policy import (
    DTYPES,
    FlowVlaPolicy,
    latest,
    layers_as_features,
    layers_of_features,
    sampled_times,
)
from kata.spec import STATE, Batch

EXPERT = "model.paligemma_with_expert.gemma_expert."
"""Beginning of LeRobot's names."""


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


class PiPolicy(PaliGemmaPolicy, FlowVlaPolicy[Observed]):
    """π0 or π0.5 with its loss and acting. A subclass gives `suffix`."""

    expert_layer: ClassVar[type[GemmaLayer]] = GemmaLayer
    old_names: ClassVar[tuple[tuple[str, str], ...]] = ()
    """Beginnings of names in older files, and what stands in their place today."""

    def __init__(self, config: PiConfig) -> None:
        super().__init__(config)
        self.options: PiConfig = config
        # PaliGemma's output map is never read, and is not held.
        self.sizes = paligemma.SIZES.gemma[config.action_expert_variant]
        layers = paligemma.SIZES.layers
        self.expert = GemmaDecoder(self.sizes, layers, layer=self.expert_layer)
        self.action_in_proj = nn.Linear(config.max_action_dim, self.sizes.width)
        self.action_out_proj = nn.Linear(self.sizes.width, config.max_action_dim)
        self.finish()
        for module in self.frozen_modules():
            if config.frozen_dtype != "float32":
                module.to(DTYPES[config.frozen_dtype])

    @property
    def decoders(self) -> list[GemmaDecoder]:
        """Return the language model and the expert."""
        return [self.text, self.expert]

    @abstractmethod
    def suffix(self, observed: Observed, noisy: Tensor, time: Tensor) -> Suffix:
        """Return the tokens of noisy actions (B, T, max_action_dim) at times (B,)."""

    def training_time(self, share: Tensor) -> Tensor:
        """Return times from uniform numbers, by the options `time_sampling_*`."""
        return sampled_times(self.options, share)

    def encode(self, batch: Batch) -> Observed:
        """Return PaliGemma's keys and values of cameras and sentence."""
        state = latest(batch[STATE], 2)
        known = layers_of_features(batch)
        if known is not None:
            return Observed(*known, state)
        # If all of PaliGemma is frozen, they are constants: no activation is kept for a backward
        # pass.
        with torch.no_grad() if self.options.train_expert_only else nullcontext():
            prefix = self.encode_prefix(batch)
        return Observed(prefix.layers, prefix.valid, state)

    def frozen_features(self, batch: Batch, kind: str) -> dict[str, Tensor]:
        """Return keys and values of the prefix, or the patches of cameras; see
        `Policy.frozen_features`.
        """
        if kind != "prefix":
            return super().frozen_features(batch, kind)
        with torch.no_grad():
            prefix = self.encode_prefix(batch)
        return layers_as_features(prefix.layers, prefix.valid)

    def velocity(self, prefix: Observed, noisy: Tensor, time: Tensor) -> Tensor:
        """Return the velocity; see `FlowVlaPolicy.velocity`."""
        suffix = self.suffix(prefix, noisy, time)
        x = suffix.tokens.to(self.expert.dtype)
        steps = torch.arange(x.shape[1], device=x.device)[None]
        places = prefix.valid.sum(1, keepdim=True) + steps
        rotation = self.rotation(places)
        seen = seen_then_blocks(prefix.valid, suffix.blocks)
        rows = self.sizes.heads if self.sizes.kv_heads == 1 else 1
        bias = score_bias(seen, x.dtype, heads=rows)
        given = {} if suffix.condition is None else {"condition": suffix.condition}
        for layer, past in zip(self.expert.layers, prefix.layers, strict=True):
            x, _ = layer(x, rotation, bias, past, **given)
        x = self.last_norm(x[:, -noisy.shape[1] :], suffix)
        return self.action_out_proj(x.float()).float()

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

    def key_map(self) -> KeyMap:
        """Return the adapter to LeRobot's names.

        LeRobot reads the table of tokens from the output map where a file has that alone. The
        expert's output map is in its files, and nothing reads it.
        """
        prefixes = (
            *self.paligemma_prefixes(),
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
