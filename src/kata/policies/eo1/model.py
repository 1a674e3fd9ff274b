"""EO-1: images, state, sentence and noisy actions are one causal sequence of Qwen2.5-VL.

The prompt never sees the actions. In training both pass in one sequence; in acting the prompt
passes once, and the actions read its keys and values in each step.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kata.nn.attention import KeysValues, score_bias, seen_before, seen_then_causal
from kata.nn.flow import time_sinusoid
from kata.nn.qwen.text import QwenText
from kata.nn.qwen.vision import QwenVision
from kata.nn.recompute import recompute_in_backward
from kata.policies.base import KeyMap
from kata.policies.eo1.config import Config
from kata.policies.qwen.backbone import load_qwen, text_sizes, vision_sizes
from kata.policies.qwen.vlm_config import stated_dtype
from kata.policies.vla_policy import DTYPES, DenoisingPolicy, latest, padded, sampled_times
from kata.spec import (
    ACTION,
    IMAGE_TOKEN,
    LANGUAGE_MASK,
    LANGUAGE_PLACES,
    LANGUAGE_TOKENS,
    STATE,
    STATE_TOKEN,
    Batch,
    pad_key,
)

VLM = "model.vlm_backbone."
"""Beginning of the vision-language model's names in LeRobot's files."""

PREFIXES = (
    ("vision.", f"{VLM}model.visual."),
    ("text.", f"{VLM}model.language_model."),
    ("lm_head.", f"{VLM}lm_head."),
    ("state_proj.", "model.state_proj."),
    ("action_", "model.action_"),
)
TIED = {f"{VLM}model.language_model.embed_tokens.weight": f"{VLM}lm_head.weight"}

FUNCTIONS: dict[str, type[nn.Module]] = {
    "linear": nn.Identity,
    "gelu": nn.GELU,
    "relu": nn.ReLU,
    "sigmoid": nn.Sigmoid,
    "silu": nn.SiLU,
    "swish": nn.SiLU,
    "tanh": nn.Tanh,
}


class Prompted(NamedTuple):
    """A prompt, embedded or encoded.

    Attributes:
        tokens: (B, P, width), as the first layer reads them.
        valid: which of them are seen, bool (B, P).
        places: in three axes, (B, 3, P).
        layers: keys and values of each layer; empty if they were not computed.
    """

    tokens: Tensor
    valid: Tensor
    places: Tensor
    layers: list[KeysValues]


def output_map(width: int, out: int, layers: int, function: str) -> nn.Sequential:
    """Return the map from tokens to actions: linear maps with a function between them."""
    parts: list[nn.Module] = []
    for _ in range(layers - 1):
        is_tanh = function == "gelu_pytorch_tanh"
        between = nn.GELU(approximate="tanh") if is_tanh else FUNCTIONS[function]()
        parts += [nn.Linear(width, width), between]
    return nn.Sequential(*parts, nn.Linear(width, out))


class Policy(DenoisingPolicy[Prompted]):
    """EO-1 with its loss and acting."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.options: Config = config
        backbone = config.backbone
        # 1. The vision-language model. Where its output map is not its table of tokens, LeRobot's
        # files have it, and nothing reads it.
        sizes = text_sizes(backbone)
        self.text = QwenText(sizes)
        width = sizes.layer.width
        self.vision = QwenVision(vision_sizes(backbone, width))
        self.is_tied = bool(backbone.get("tie_word_embeddings"))
        if not self.is_tied:
            self.lm_head = nn.Linear(width, sizes.vocabulary, bias=False)
        # 2. Its precision, and the maps of state, actions and time in float32.
        stated = stated_dtype(backbone) if config.dtype == "auto" else config.dtype
        self.narrow = DTYPES.get(stated, torch.float32)
        for module in self.backbone:
            module.to(self.narrow)
        self.state_proj = nn.Linear(config.max_state_dim, width)
        self.action_in_proj = nn.Linear(config.max_action_dim, width)
        self.action_out_proj = output_map(
            width, config.max_action_dim, config.num_action_layers, config.action_act
        )
        self.action_time_mlp_in = nn.Linear(2 * width, width)
        self.action_time_mlp_out = nn.Linear(width, width)
        # 3. What is frozen, what wraps the layers, and where the weights start from.
        for module in self.frozen_modules():
            module.requires_grad_(False)
        if config.gradient_checkpointing:
            for unit in self.layers:
                recompute_in_backward(unit)
        if config.load_vlm_weights:
            self._load_vlm()

    @property
    def backbone(self) -> list[nn.Module]:
        """Return the parts of the vision-language model."""
        return [self.text, self.vision, *([] if self.is_tied else [self.lm_head])]

    @property
    def layers(self) -> list[nn.Module]:
        """Return the layers of the image encoder and of the language model."""
        return [*self.vision.blocks, *self.text.layers]

    def _load_vlm(self) -> None:
        key_map, wanted = self.key_map(), dict[str, Tensor]()
        for name, tensor in self.state_dict().items():
            stored = key_map.to_lerobot(name)
            if stored.startswith(VLM):
                wanted[stored.removeprefix(VLM)] = tensor
        load_qwen(self.options.vlm_base, wanted)

    def _in_float32(self) -> AbstractContextManager[object]:
        """Return the context in which the maps of state, actions and time are computed."""
        if not self.options.force_fp32_autocast:
            return nullcontext()
        return torch.autocast(self.state_proj.weight.device.type, enabled=False)

    def training_time(self, share: Tensor) -> Tensor:
        """Return times from uniform numbers, by the options `time_sampling_*`."""
        return sampled_times(self.options, share)

    def embedded(self, batch: Batch) -> Prompted:
        """Return a prompt's tokens with images and the state in their places."""
        ids, valid = batch[LANGUAGE_TOKENS], batch[LANGUAGE_MASK]
        x = self.text.embed_tokens(ids.clamp(min=0))
        # 1. Images, all cameras in one pass. A camera that a sample lacks is not seen.
        frames = [latest(batch[key], 4) for key in self.present_cameras(batch)]
        images = torch.cat(self.vision(frames), dim=1)
        x = x.masked_scatter((ids == IMAGE_TOKEN)[..., None], images.to(x.dtype))
        # 2. The state.
        state = padded(latest(batch[STATE], 2), self.options.max_state_dim)
        with self._in_float32():
            token = self.state_proj(state.to(self.state_proj.weight.dtype))[:, None]
        x = torch.where((ids == STATE_TOKEN)[..., None], token.to(x.dtype), x)
        return Prompted(x, valid, batch[LANGUAGE_PLACES], [])

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
        prompt, actions = self.embedded(batch), self.action_tokens(noisy, time)
        steps = noisy.shape[1]
        x = torch.cat((prompt.tokens, actions.to(prompt.tokens.dtype)), dim=1)
        places = torch.cat((prompt.places, self._following(prompt, steps)), dim=2)
        seen = torch.ones(len(x), steps, dtype=torch.bool, device=x.device)
        if not self.options.supervise_padding_actions and pad_key(ACTION) in batch:
            seen = ~batch[pad_key(ACTION)]
        bias = score_bias(seen_before(torch.cat((prompt.valid, seen), dim=1)), x.dtype)
        rotation = self.text.rotation(places)
        for layer in self.text.layers:
            wanted = steps if layer is self.text.layers[-1] else 0
            x, _ = layer(x, rotation, bias, wanted=wanted)
        return self._to_velocity(x)

    def velocity(self, prefix: Prompted, noisy: Tensor, time: Tensor) -> Tensor:
        """Return the velocity from a prompt's keys and values; see `DenoisingPolicy.velocity`."""
        steps = noisy.shape[1]
        x = self.action_tokens(noisy, time).to(prefix.tokens.dtype)
        rotation = self.text.rotation(self._following(prefix, steps))
        bias = score_bias(seen_then_causal(prefix.valid, steps), x.dtype)
        for layer, past in zip(self.text.layers, prefix.layers, strict=True):
            x, _ = layer(x, rotation, bias, past)
        return self._to_velocity(x)

    def action_tokens(self, noisy: Tensor, time: Tensor) -> Tensor:
        """Return a token for each action (B, T, width), which holds the time (B,) as well."""
        config, width = self.options, self.text.sizes.layer.width
        with self._in_float32():
            action = self.action_in_proj(noisy.to(self.action_in_proj.weight.dtype))
            at = time_sinusoid(time, width, config.min_period, config.max_period)
            at = at.to(action.dtype)[:, None].expand_as(action)
            hidden = F.silu(self.action_time_mlp_in(torch.cat((action, at), dim=2)))
            return self.action_time_mlp_out(hidden)

    @staticmethod
    def _following(prompt: Prompted, steps: int) -> Tensor:
        """Return the places of the tokens behind a prompt, (B, 3, steps)."""
        start = prompt.places.amax((1, 2)) + 1
        following = start[:, None] + torch.arange(steps, device=start.device)
        return following[:, None].expand(-1, 3, -1)

    def _to_velocity(self, x: Tensor) -> Tensor:
        """Return the velocity of the last layer's tokens of actions (B, T, width), float32."""
        x = self.text.norm(x)
        with self._in_float32():
            return self.action_out_proj(x.to(self.state_proj.weight.dtype)).float()

    def integration_steps(self) -> int:
        """Return `num_denoise_steps`."""
        return self.options.num_denoise_steps

    def frozen_modules(self) -> list[nn.Module]:
        """Return what nothing reads."""
        return [] if self.is_tied else [self.lm_head]

    def shard_units(self) -> list[nn.Module]:
        """Return the layers. What else differs from the maps in dtype is apart, too."""
        if self.narrow == torch.float32:
            return self.layers
        ends = [self.vision.patch_embed, self.vision.merger, self.text.embed_tokens, self.text.norm]
        return [*ends, *self.layers, *self.frozen_modules()]

    def recompute_units(self) -> list[nn.Module]:
        """Return the layers, unless they are recomputed already."""
        return [] if self.options.gradient_checkpointing else self.layers

    def key_map(self) -> KeyMap:
        """Return the adapter to LeRobot's names."""
        return KeyMap(PREFIXES, aliases=TIED if self.is_tied else {})
