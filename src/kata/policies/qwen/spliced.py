"""Base class of policies whose actions stand behind a prompt in Qwen2.5-VL's sequence.

The prompt never sees the actions. In training both pass in one sequence; in acting the prompt
passes once, and the actions read its keys and values in each step.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from kata.nn.attention import (
    KeysValues,
    score_bias,
    seen_before,
    seen_then_blocks,
    seen_then_causal,
)
from kata.nn.cross_entropy import VocabularyHead
from kata.nn.qwen.text import QwenText
from kata.nn.qwen.vision import QwenVision
from kata.policies.qwen.backbone import load_qwen, vision_sizes
from kata.policies.vla import DenoisedConfig
from kata.policies.vla_policy import DenoisingPolicy, latest
from kata.spec import (
    IMAGE_TOKEN,
    LANGUAGE_MASK,
    LANGUAGE_PLACES,
    LANGUAGE_TOKENS,
    STATE_TOKEN,
    Batch,
)


class Prompted(NamedTuple):
    """A prompt, embedded or encoded.

    Attributes:
        tokens: (B, P, width), as the first layer reads them.
        valid: which of them are seen, bool (B, P).
        places: in three axes, (B, 3, P).
        real: which numbers of actions are not padding, bool (B, 1 or T, max_action_dim).
        layers: keys and values of each layer; empty if they were not computed.
    """

    tokens: Tensor
    valid: Tensor
    places: Tensor
    real: Tensor
    layers: list[KeysValues]


class SplicedPolicy(DenoisingPolicy[Prompted]):
    """A policy of prompt and actions in one sequence."""

    actions_see_later_ones: ClassVar[bool] = False
    """True if the actions of a chunk see each other, and not only those before them."""
    vlm: ClassVar[str]
    """Beginning of the vision-language model's names in LeRobot's files."""

    def __init__(self, config: DenoisedConfig, backbone: Mapping[str, Any], text: QwenText) -> None:
        super().__init__(config)
        self.text = text
        width = text.sizes.layer.width
        self.vision = QwenVision(vision_sizes(backbone, width))
        # Where the output map is not the table of tokens, LeRobot's files have it. Nothing reads it
        # unless actions are words.
        self.is_tied = bool(backbone.get("tie_word_embeddings"))
        if not self.is_tied:
            self.lm_head = VocabularyHead(width, text.sizes.vocabulary)

    @property
    def backbone(self) -> list[nn.Module]:
        """Return the parts of the vision-language model."""
        return [self.text, self.vision, *([] if self.is_tied else [self.lm_head])]

    @property
    def layers(self) -> list[nn.Module]:
        """Return the layers of the image encoder and of the language model."""
        return [*self.vision.blocks, *self.text.layers]

    @property
    def ends(self) -> list[nn.Module]:
        """Return what the model has before and behind its layers, but norms of tokens."""
        unread = [] if self.is_tied else [self.lm_head]
        return [self.vision.patch_embed, self.vision.merger, self.text.embed_tokens, *unread]

    def load_pretrained(self, name: str) -> None:
        """Fill the model, and what its files hold beside it, from a Hub name or a folder."""
        key_map, wanted = self.key_map(), dict[str, Tensor]()
        for own, tensor in self.state_dict().items():
            stored = key_map.to_lerobot(own)
            if stored.startswith(self.vlm):
                wanted[stored.removeprefix(self.vlm)] = tensor
        load_qwen(name, wanted)

    @abstractmethod
    def state_token(self, batch: Batch) -> Tensor:
        """Return the token of the state, (B, width)."""

    @abstractmethod
    def action_tokens(self, noisy: Tensor, time: Tensor, real: Tensor) -> Tensor:
        """Return tokens (B, T, width) of noisy actions at times (B,).

        Args:
            noisy: (B, T, max_action_dim).
            time: 1 for noise alone and 0 for none.
            real: see `Prompted`.
        """

    @abstractmethod
    def to_velocity(self, x: Tensor) -> Tensor:
        """Return the velocity of the last layer's tokens of actions (B, T, width), float32."""

    def seen_actions(self, batch: Batch, size: int, steps: int) -> Tensor:
        """Return which actions of a training batch others see, bool (B, T)."""
        del batch
        return torch.ones(
            size, steps, dtype=torch.bool, device=self.text.embed_tokens.weight.device
        )

    def embedded(self, batch: Batch) -> Prompted:
        """Return a prompt's tokens with images and the state in their places."""
        ids, valid = batch[LANGUAGE_TOKENS], batch[LANGUAGE_MASK]
        x = self.text.embed_tokens(ids.clamp(min=0))
        # Images of all cameras pass together. A camera that a sample lacks is not seen.
        frames = [latest(batch[key], 4) for key in self.present_cameras(batch)]
        images = torch.cat(self.vision(frames), dim=1)
        x = x.masked_scatter((ids == IMAGE_TOKEN)[..., None], images.to(x.dtype))
        state = self.state_token(batch)[:, None]
        x = torch.where((ids == STATE_TOKEN)[..., None], state.to(x.dtype), x)
        return Prompted(x, valid, batch[LANGUAGE_PLACES], self._real(batch, len(x)), [])

    def _real(self, batch: Batch, size: int) -> Tensor:
        """Return which numbers of actions are not padding, bool (B, 1 or T, max_action_dim)."""
        width, most = self.config.action.shape[0], self.options.max_action_dim
        device = self.text.embed_tokens.weight.device
        real = (torch.arange(most, device=device) < width).expand(size, 1, -1)
        absent = self.absent_numbers(batch)
        return real if absent is None else real & ~absent

    def encode(self, batch: Batch) -> Prompted:
        """Return a prompt's keys and values in each layer."""
        prompt = self.embedded(batch)
        x, rotation = prompt.tokens, self.text.rotation(prompt.places)
        bias = score_bias(seen_before(prompt.valid), x.dtype)
        layers: list[KeysValues] = []
        for layer in self.text.layers:
            x, given = layer(x, rotation, bias, is_last=layer is self.text.layers[-1])
            layers.append(given)
        return prompt._replace(layers=layers)

    def trained_velocity(self, batch: Batch, noisy: Tensor, time: Tensor) -> Tensor:
        """Return the velocity; prompt and actions pass in one sequence."""
        prompt, steps = self.embedded(batch), noisy.shape[1]
        actions = self.action_tokens(noisy, time, prompt.real)
        own = self.seen_actions(batch, len(actions), steps)
        return self.to_velocity(self.one_pass(prompt, actions, own, actions=steps))

    def one_pass(self, prompt: Prompted, behind: Tensor, own: Tensor, *, actions: int) -> Tensor:
        """Return what the last layer makes of tokens behind a prompt, (B, T, width).

        Args:
            prompt: see `embedded`.
            behind: tokens (B, T, width).
            own: which of them others see, bool (B, T).
            actions: how many of them are actions: T or 0.
        """
        steps = behind.shape[1]
        x = torch.cat((prompt.tokens, behind.to(prompt.tokens.dtype)), dim=1)
        places = torch.cat((prompt.places, self._following(prompt, steps)), dim=2)
        seen = seen_before(torch.cat((prompt.valid, own), dim=1))
        if actions and self.actions_see_later_ones:
            seen[..., -steps:, -steps:] = own[:, None, None]
        bias, rotation = score_bias(seen, x.dtype), self.text.rotation(places)
        for layer in self.text.layers:
            wanted = steps if layer is self.text.layers[-1] else 0
            x, _ = layer(x, rotation, bias, wanted=wanted, actions=actions)
        return x

    def velocity(self, prefix: Prompted, noisy: Tensor, time: Tensor) -> Tensor:
        """Return the velocity from a prompt's keys and values; see `DenoisingPolicy.velocity`."""
        steps = noisy.shape[1]
        x = self.action_tokens(noisy, time, prefix.real).to(prefix.tokens.dtype)
        rotation = self.text.rotation(self._following(prefix, steps))
        seen = seen_then_causal(prefix.valid, steps)
        if self.actions_see_later_ones:
            seen = seen_then_blocks(prefix.valid, (steps,))
        bias = score_bias(seen, x.dtype)
        for layer, past in zip(self.text.layers, prefix.layers, strict=True):
            x, _ = layer(x, rotation, bias, past, actions=steps)
        return self.to_velocity(x)

    @staticmethod
    def _following(prompt: Prompted, steps: int) -> Tensor:
        """Return the places of the tokens behind a prompt, (B, 3, steps)."""
        start = prompt.places.amax((1, 2)) + 1
        following = start[:, None] + torch.arange(steps, device=start.device)
        return following[:, None].expand(-1, 3, -1)

    def frozen_modules(self) -> list[nn.Module]:
        """Return what nothing reads."""
        return [] if self.is_tied else [self.lm_head]
