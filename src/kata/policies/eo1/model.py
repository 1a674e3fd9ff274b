"""EO-1: images, state, sentence and noisy actions are one causal sequence of Qwen2.5-VL."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kata.nn.flow import time_sinusoid
from kata.nn.qwen.text import QwenText
from kata.nn.recompute import recompute_in_backward
from kata.policies.base import KeyMap
from kata.policies.eo1.config import Config
from kata.policies.qwen.backbone import text_sizes
from kata.policies.qwen.spliced import SplicedPolicy
from kata.policies.qwen.vlm_config import UNIT, stated_dtype, token_side
from kata.policies.rules import Rule, refuse_broken_rules
from kata.policies.vla_policy import DTYPES, latest, padded, sampled_times
from kata.spec import ACTION, STATE, Batch, pad_key

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


def output_map(width: int, out: int, layers: int, function: str) -> nn.Sequential:
    """Return the map from tokens to actions: linear maps with a function between them."""
    parts: list[nn.Module] = []
    for _ in range(layers - 1):
        is_tanh = function == "gelu_pytorch_tanh"
        between = nn.GELU(approximate="tanh") if is_tanh else FUNCTIONS[function]()
        parts += [nn.Linear(width, width), between]
    return nn.Sequential(*parts, nn.Linear(width, out))


class Policy(SplicedPolicy):
    """EO-1 with its loss and acting."""

    vlm = VLM

    def __init__(self, config: Config) -> None:
        backbone = config.backbone
        super().__init__(config, backbone, QwenText(text_sizes(backbone)))
        side = token_side(backbone)
        rule: Rule = (
            side != UNIT,
            f"an image encoder whose tokens have {side} pixels",
            f"tokens of {UNIT} pixels, which frames are resized for",
            "a Qwen2.5-VL",
        )
        refuse_broken_rules([rule])
        self.options: Config = config
        width = self.text.sizes.layer.width
        # 1. The model's precision, and the maps of state, actions and time in float32.
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
        # 2. What is frozen, what wraps the layers, and where the weights start from.
        for module in self.frozen_modules():
            module.requires_grad_(False)
        if config.gradient_checkpointing:
            for unit in self.layers:
                recompute_in_backward(unit)
        if config.load_vlm_weights:
            self.load_pretrained(config.vlm_base)

    def _in_float32(self) -> AbstractContextManager[object]:
        """Return the context in which the maps of state, actions and time are computed."""
        if not self.options.force_fp32_autocast:
            return nullcontext()
        return torch.autocast(self.state_proj.weight.device.type, enabled=False)

    def training_time(self, share: Tensor) -> Tensor:
        """Return times from uniform numbers, by the options `time_sampling_*`."""
        return sampled_times(self.options, share)

    def state_token(self, batch: Batch) -> Tensor:
        """Return the token of the state, (B, width)."""
        state = padded(latest(batch[STATE], 2), self.options.max_state_dim)
        with self._in_float32():
            return self.state_proj(state.to(self.state_proj.weight.dtype))

    def seen_actions(self, batch: Batch, size: int, steps: int) -> Tensor:
        """Return all actions, or those that the loss counts; see `SplicedPolicy.seen_actions`."""
        if not self.options.supervise_padding_actions and pad_key(ACTION) in batch:
            return ~batch[pad_key(ACTION)]
        return super().seen_actions(batch, size, steps)

    def action_tokens(self, noisy: Tensor, time: Tensor, real: Tensor) -> Tensor:
        """Return a token for each action, which holds the time as well."""
        del real
        config, width = self.options, self.text.sizes.layer.width
        with self._in_float32():
            action = self.action_in_proj(noisy.to(self.action_in_proj.weight.dtype))
            at = time_sinusoid(time, width, config.min_period, config.max_period)
            at = at.to(action.dtype)[:, None].expand_as(action)
            hidden = F.silu(self.action_time_mlp_in(torch.cat((action, at), dim=2)))
            return self.action_time_mlp_out(hidden)

    def to_velocity(self, x: Tensor) -> Tensor:
        """Return the velocity; see `SplicedPolicy.to_velocity`."""
        x = self.text.norm(x)
        with self._in_float32():
            return self.action_out_proj(x.to(self.state_proj.weight.dtype)).float()

    def integration_steps(self) -> int:
        """Return `num_denoise_steps`."""
        return self.options.num_denoise_steps

    def shard_units(self) -> list[nn.Module]:
        """Return the layers. What else differs from the maps in dtype is apart, too."""
        if self.narrow == torch.float32:
            return self.layers
        return [*self.ends, self.text.norm, *self.layers]

    def recompute_units(self) -> list[nn.Module]:
        """Return the layers, unless they are recomputed already."""
        return [] if self.options.gradient_checkpointing else self.layers

    def key_map(self) -> KeyMap:
        """Return the adapter to LeRobot's names."""
        return KeyMap(PREFIXES, aliases=TIED if self.is_tied else {})
