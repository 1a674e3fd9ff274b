"""Options of Multi-Task DiT, with LeRobot's names and defaults. Torch-free."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

from kata.config import encode
from kata.policies.config import own
from kata.policies.denoising import DenoisingConfig
from kata.policies.observation_rules import (
    crop_draws,
    fit_rule,
    same_size_rules,
    size_rule,
    vector_rules,
)
from kata.policies.rules import Rule, choice_rules, refuse, size_rules
from kata.spec import STATE, Draw

CHOICES: dict[str, tuple[str, ...]] = {
    "objective": ("diffusion", "flow_matching"),
    "integration_method": ("euler", "rk4"),
    "timestep_sampling_strategy": ("uniform", "beta"),
    "tokenizer_padding": ("max_length", "longest"),
    "tokenizer_padding_side": ("right", "left"),
}

SIZES = (
    *("num_integration_steps", "hidden_dim", "num_layers", "num_heads"),
    *("timestep_embed_dim", "tokenizer_max_length"),
)

CLIP = "openai/clip-vit-base-patch16"


@dataclass(frozen=True, kw_only=True)
class Config(DenoisingConfig):
    """Multi-Task DiT's options. Impossible values raise PolicyError at once.

    vision_encoder_name and text_encoder_name are Hub names or local folders of CLIP models. pretrained_encoders of
    false leaves their weights random and reads their config.json alone, for the default name nothing.
    """

    type_name: ClassVar[str] = "multi_task_dit"

    horizon: int = 32
    n_action_steps: int = 24
    objective: str = "diffusion"
    sigma_min: float = 0.0
    num_integration_steps: int = 100
    integration_method: str = "euler"
    timestep_sampling_strategy: str = "beta"
    timestep_sampling_s: float = 0.999
    timestep_sampling_alpha: float = 1.5
    timestep_sampling_beta: float = 1.0
    hidden_dim: int = 512
    num_layers: int = 6
    num_heads: int = 8
    dropout: float = 0.1
    use_positional_encoding: bool = False
    timestep_embed_dim: int = 256
    use_rope: bool = True
    rope_base: float = 10000.0
    vision_encoder_name: str = CLIP
    use_separate_rgb_encoder_per_camera: bool = False
    vision_encoder_lr_multiplier: float = 0.1
    image_resize_shape: tuple[int, int] | None = None
    image_crop_shape: tuple[int, int] | None = (224, 224)
    image_crop_is_random: bool = True
    text_encoder_name: str = CLIP
    tokenizer_max_length: int = 77
    tokenizer_padding: str = "max_length"
    tokenizer_padding_side: str = "right"
    tokenizer_truncation: bool = True
    optimizer_lr: float = 2e-5
    optimizer_weight_decay: float = 0.0
    scheduler_warmup_steps: int = 0
    crop_per_sample: bool = own(False)
    pretrained_encoders: bool = own(True)

    def __post_init__(self) -> None:
        super().__post_init__()
        rules = chain(
            size_rules(self, SIZES),
            self.denoising_rules(),
            self._width_rules(),
            self._choice_rules(),
            self._time_rules(),
            self._frame_rules(),
        )
        refuse(rules)

    def _width_rules(self) -> Iterator[Rule]:
        heads = max(1, self.num_heads)
        yield (
            self.hidden_dim % heads != 0 or (self.use_rope and self.hidden_dim // heads % 2 != 0),
            f"policy.hidden_dim={self.hidden_dim} with policy.num_heads={self.num_heads}",
            "each head takes an equal part, with rotary positions an even one",
            f"--policy.hidden_dim={max(1, round(self.hidden_dim / (2 * heads))) * 2 * heads}",
        )
        yield (
            self.timestep_embed_dim % 2 != 0 or self.timestep_embed_dim < 4,
            f"policy.timestep_embed_dim={self.timestep_embed_dim}",
            "an even number of at least 4: sines and cosines",
            "--policy.timestep_embed_dim=256",
        )
        yield (
            not 0 <= self.dropout < 1,
            f"policy.dropout={self.dropout}",
            "a share from 0 up to below 1",
            "--policy.dropout=0.1",
        )

    def _choice_rules(self) -> Iterator[Rule]:
        yield from choice_rules(self, CHOICES)
        for name in ("vision_encoder_name", "text_encoder_name"):
            value: str = getattr(self, name)
            yield (
                "clip" not in value.lower(),
                f"policy.{name}={value}",
                "a CLIP model; LeRobot, which is to load the checkpoint, wants 'clip' in the name",
                f"--policy.{name}={CLIP}, or a local folder with 'clip' in its path",
            )

    def _time_rules(self) -> Iterator[Rule]:
        for name, fine, rule in (
            ("beta_start", 0 <= self.beta_start <= self.beta_end, "from 0 up to beta_end"),
            ("beta_end", self.beta_end <= 1, "at most 1"),
            ("sigma_min", 0 <= self.sigma_min <= 1, "from 0 to 1"),
            ("timestep_sampling_s", 0 < self.timestep_sampling_s <= 1, "above 0 and up to 1"),
            ("timestep_sampling_alpha", self.timestep_sampling_alpha > 0, "above 0"),
            ("timestep_sampling_beta", self.timestep_sampling_beta > 0, "above 0"),
        ):
            yield (
                not fine,
                f"policy.{name}={getattr(self, name)}",
                rule,
                f"leave out --policy.{name}",
            )

    def _frame_rules(self) -> Iterator[Rule]:
        yield size_rule("image_resize_shape", self.image_resize_shape)
        yield size_rule("image_crop_shape", self.image_crop_shape)

    def draws(self) -> dict[str, Draw]:
        """The noise, a uniform number that the time follows from, and where the crop lies."""
        crops = (
            len(self.cameras)
            if self.image_crop_shape is not None and self.image_crop_is_random
            else 0
        )
        return {**self.noise_draws(), **crop_draws(crops, per_sample=self.crop_per_sample)}

    def act_draws(self) -> dict[str, Draw]:
        """What a chunk is made from; a flow draws nothing on its way."""
        found = super().act_draws()
        return found if self.objective == "diffusion" else {"noise": found["noise"]}

    def loss_weights(self, size: int, pads: Mapping[str, Any]) -> dict[str, float]:
        """Action numbers of the global batch."""
        return {f"{self.objective}_loss": self.numbers_learnt(size, pads)}

    def resizes_to(self) -> tuple[int, int] | None:
        """See PolicyConfig."""
        return self.image_resize_shape

    def tokenizer(self) -> dict[str, Any]:
        """CLIP's tokenizer."""
        return {
            "tokenizer_name": self.text_encoder_name,
            "max_length": self.tokenizer_max_length,
            "padding": self.tokenizer_padding,
            "padding_side": self.tokenizer_padding_side,
            "truncation": self.tokenizer_truncation,
        }

    def without_downloads(self) -> Config:
        """Without the encoders' weights; their config.json says how large they are, where they are not the default."""
        return dataclasses.replace(self, pretrained_encoders=False)

    def validate_features(self) -> None:
        """Raise PolicyError unless there are cameras of one size, a state, nothing else, and an action vector."""
        fits = (
            fit_rule(
                "image_crop_shape",
                self.image_crop_shape,
                key,
                self.image_resize_shape or feature.shape[1:],
            )
            for key, feature in self.cameras.items()
        )
        refuse(
            chain(
                vector_rules(self, "Multi-Task DiT"),
                self._input_rules(),
                same_size_rules(self),
                fits,
            )
        )

    def _input_rules(self) -> Iterator[Rule]:
        kept = {
            key: encode(f)
            for key, f in self.input_features.items()
            if key == STATE or key in self.cameras
        }
        yield (
            set(kept) != set(self.input_features) or STATE not in kept or not self.cameras,
            f"inputs of Multi-Task DiT: {', '.join(self.input_features) or 'none'}",
            f"'{STATE}' and cameras: nothing else is read",
            f"--policy.input_features='{json.dumps(kept)}'"
            if STATE in kept and self.cameras
            else "choose a dataset that has both, or another policy",
        )
