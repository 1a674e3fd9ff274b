"""Wall-X: a prompt and noisy actions in Qwen2.5-VL's sequence; actions see each other."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kata.nn.flow import beta_quantile
from kata.nn.unet1d import StepSinusoid
from kata.policies.base import KeyMap, Loss
from kata.policies.qwen.backbone import text_sizes
from kata.policies.qwen.vlm_config import text_config
from kata.policies.rules import Rule, refuse_broken_rules
from kata.policies.vla_policy import DTYPES, latest, padded
from kata.policies.wall_x.config import Config
from kata.policies.wall_x.experts import RoutedText, expert_sizes
from kata.policies.wall_x.words import SpeakingPolicy
from kata.processors.counted_warning import CountedWarning
from kata.spec import ACTION, STATE, Batch

STEPS = 10
"""Integration steps of a chunk; LeRobot has no option for them."""

PREFIXES = (
    ("vision.", "model.visual."),
    ("text.", "model.model."),
    ("lm_head.", "model.lm_head."),
    ("head.", "model.action_preprocessor."),
)
TIED = {"model.model.embed_tokens.weight": "model.lm_head.weight"}


class _ActionHead(nn.Module):
    """The maps of state, actions and time, and that to actions. Names are LeRobot's."""

    def __init__(self, width: int, state: int, action: int) -> None:
        super().__init__()
        self.w1 = nn.Linear(2 * action, width, bias=False)
        self.w2 = nn.Linear(2 * width, width, bias=False)
        self.w3 = nn.Linear(width, width, bias=False)
        self.action_proj_back = nn.Linear(width, action, bias=False)
        self.propri_proj = nn.Linear(2 * state, width, bias=False)


class Policy(SpeakingPolicy):
    """Wall-X with its loss and acting."""

    actions_see_later_ones = True
    vlm = "model."

    def __init__(self, config: Config) -> None:
        base = config.base
        text = RoutedText(text_sizes(base), expert_sizes(base))
        super().__init__(config, base, text)
        self.options: Config = config
        self.unfinished = CountedWarning(
            "%d of %d chunks have too few or too many words; zeros stand for what is absent"
        )
        refuse_broken_rules(self._width_rules(base))
        # 1. The precision: norms of tokens, and the maps of state, actions and time, are float32.
        width = text.sizes.layer.width
        for module in self.backbone:
            module.to(DTYPES[config.dtype])
        for norm in self.norms:
            norm.float()
        self.head = _ActionHead(width, config.max_state_dim, config.max_action_dim)
        self.time_embed = StepSinusoid(width)
        # 2. What is frozen, and where the weights start from.
        for module in self.frozen_modules():
            module.requires_grad_(False)
        if config.load_base_weights:
            self.load_pretrained(config.pretrained_name_or_path)

    def _width_rules(self, base: Mapping[str, Any]) -> Iterator[Rule]:
        """Yield rules on the widths of state and action, which the model's config states."""
        parts = {**base, **text_config(base)}
        for name, option, most in (
            ("dof_config", "max_action_dim", self.options.max_action_dim),
            ("agent_pos_config", "max_state_dim", self.options.max_state_dim),
        ):
            total = sum(int(numbers) for numbers in (parts.get(name) or {}).values())
            yield (
                total != most,
                f"policy.{option}={most} with {name} of {total} numbers in the model's config",
                "both are equal",
                f"--policy.{option}={total}",
            )

    def forward(
        self,
        batch: Batch,
        *,
        noise: Tensor | None = None,
        time: Tensor | None = None,
        given: Tensor | None = None,
        **draws: Tensor,
    ) -> Loss:
        """Compute the sum of the words' cross-entropies, or that of `DenoisingPolicy.forward`."""
        if self.options.writes_words:
            return self.words_loss(batch)
        return super().forward(batch, noise=noise, time=time, given=given, **draws)

    @torch.no_grad()
    def predict_chunk(
        self, batch: Batch, *, noise: Tensor | None = None, **draws: Tensor
    ) -> Tensor:
        """Return a chunk of actions (B, T, A), written or denoised; see `DenoisingPolicy`."""
        if self.options.writes_words:
            return self.spoken_chunk(batch)
        return super().predict_chunk(batch, noise=noise, **draws)

    @property
    def norms(self) -> list[nn.Module]:
        """Return the norms of the language model."""
        found: list[nn.Module] = [self.text.norm]
        for layer in self.text.layers:
            found += [layer.get_submodule("input_layernorm")]
            found += [layer.get_submodule("post_attention_layernorm")]
        return found

    def training_time(self, share: Tensor) -> Tensor:
        """Return shares of the noise in (0, 1] from uniform numbers; most are near the noise."""
        return 1 - (1 - beta_quantile(share, 1.5, 1.0)) * 0.999

    def absent_numbers(self, batch: Batch) -> Tensor | None:
        """Return which numbers are not known, NaN included; see `DenoisingPolicy`."""
        absent = super().absent_numbers(batch)
        if ACTION not in batch:  # in acting
            return absent
        unknown = padded(batch[ACTION].isnan(), self.options.max_action_dim)
        return unknown if absent is None else absent | unknown

    def state_token(self, batch: Batch) -> Tensor:
        """Return the token of the state, (B, width); numbers that are not known are zeros."""
        state = latest(batch[STATE], 2)
        is_known = ~state.isnan()
        both = (torch.where(is_known, state, torch.zeros_like(state)), is_known.to(state.dtype))
        joined = torch.cat([padded(half, self.options.max_state_dim) for half in both], dim=1)
        return self.head.propri_proj(joined.to(self.head.propri_proj.weight.dtype))

    def action_tokens(self, noisy: Tensor, time: Tensor, real: Tensor) -> Tensor:
        """Return a token for each action, which holds the time and which numbers are real."""
        head = self.head
        given = torch.cat((noisy, real.expand_as(noisy).to(noisy.dtype)), dim=2)
        action = head.w1(given.to(head.w1.weight.dtype))
        at = self.time_embed(1 - time).to(action.dtype)[:, None].expand_as(action)
        return head.w3(F.silu(head.w2(torch.cat((action, at), dim=2))))

    def to_velocity(self, x: Tensor) -> Tensor:
        """Return the velocity towards the noise; the model predicts that towards the actions."""
        x = self.text.norm(x.to(self.text.norm.weight.dtype))
        # LeRobot rounds the last tokens to the precision of the output map before the head.
        x = x.to(self.text.dtype).float()
        return -self.head.action_proj_back(x).float()

    def integration_steps(self) -> int:
        """Return the number of steps, which LeRobot does not let one choose."""
        return STEPS

    def frozen_modules(self) -> list[nn.Module]:
        """Return what nothing reads."""
        assert isinstance(self.text, RoutedText)
        if not self.options.writes_words:
            return [*super().frozen_modules(), *self.text.unread()]
        head = self.head
        return [head.w1, head.w2, head.w3, head.action_proj_back, *self.text.action_experts()]

    def shard_units(self) -> list[nn.Module]:
        """Return the layers. Norms and ends are apart if they differ in dtype."""
        if self.options.dtype == "float32":
            return self.layers
        return [*self.norms, *self.ends, *self.layers]

    def recompute_units(self) -> list[nn.Module]:
        """Return the layers."""
        return self.layers

    def key_map(self) -> KeyMap:
        """Return the adapter to LeRobot's names."""
        return KeyMap(PREFIXES, aliases=TIED if self.is_tied else {})
