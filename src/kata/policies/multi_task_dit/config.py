"""Options of Multi-Task DiT, with LeRobot's names and defaults. Torch-free."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

from kata.config import option
from kata.policies.denoising import DenoisingConfig
from kata.policies.observation_rules import (
    crop_draws,
    fit_rule,
    same_size_rules,
    state_and_cameras_rules,
    vector_rules,
)
from kata.policies.rules import Rule, refuse_broken_rules
from kata.spec import Draw

CLIP = "openai/clip-vit-base-patch16"


@dataclass(frozen=True, kw_only=True)
class Config(DenoisingConfig):
    """Multi-Task DiT's options. Impossible values raise PolicyError at once.

    Without pretrained_encoders only the encoders' config.json is read, for the default name
    nothing.
    """

    type_name: ClassVar[str] = "multi_task_dit"

    horizon: int = 32
    n_action_steps: int = 24
    objective: str = option(
        "diffusion",
        "What is trained: denoising, or flow matching.",
        choices=("diffusion", "flow_matching"),
    )
    sigma_min: float = option(0.0, "Noise that is left at the end of a flow.", least=0, most=1)
    num_integration_steps: int = option(100, "Integration steps of a flow in acting.", least=1)
    integration_method: str = option("euler", "Integrator of a flow.", choices=("euler", "rk4"))
    timestep_sampling_strategy: str = option(
        "beta", "Distribution of a flow's times in training.", choices=("uniform", "beta")
    )
    timestep_sampling_s: float = option(0.999, "Largest time that 'beta' draws.", above=0, most=1)
    timestep_sampling_alpha: float = option(
        1.5, "First parameter of the beta distribution.", above=0
    )
    timestep_sampling_beta: float = option(
        1.0, "Second parameter of the beta distribution.", above=0
    )
    hidden_dim: int = option(512, "Width of the transformer.", least=1)
    num_layers: int = option(6, "Layers of the transformer.", least=1)
    num_heads: int = option(8, "Attention heads.", least=1)
    dropout: float = option(0.1, "Dropout of the transformer.", least=0, below=1)
    use_positional_encoding: bool = option(False, "Add learnt position embeddings to the actions.")
    timestep_embed_dim: int = option(256, "Width of the embedding of time or noise level.", least=1)
    use_rope: bool = option(True, "Rotary position embedding in attention.")
    rope_base: float = option(10000.0, "Base of the rotary embedding.", above=0)
    vision_encoder_name: str = option(
        CLIP, "CLIP image encoder: a Hub name or a folder.", is_pretrained=True
    )
    use_separate_rgb_encoder_per_camera: bool = option(False, "An encoder for each camera.")
    vision_encoder_lr_multiplier: float = option(
        0.1, "Learning rate of the image encoder as a multiple of the policy's.", least=0
    )
    image_resize_shape: tuple[int, int] | None = option(
        None,
        "Height and width that frames are resized to first, in pixels; null keeps them.",
        least=1,
    )
    image_crop_shape: tuple[int, int] | None = option(
        (224, 224), "Height and width of the crop that the encoder sees, in pixels.", least=1
    )
    image_crop_is_random: bool = option(
        True, "Crop at a random place in training; acting always crops in the middle."
    )
    text_encoder_name: str = option(
        CLIP, "CLIP text encoder: a Hub name or a folder.", is_pretrained=True
    )
    tokenizer_max_length: int = option(77, "Tokens of a task sentence.", least=1)
    tokenizer_padding: str = option(
        "max_length", "Length that sentences are padded to.", choices=("max_length", "longest")
    )
    tokenizer_padding_side: str = option(
        "right", "Side on which sentences are padded.", choices=("right", "left")
    )
    tokenizer_truncation: bool = option(True, "Cut longer sentences off.")
    optimizer_lr: float = 2e-5
    optimizer_weight_decay: float = 0.0
    scheduler_warmup_steps: int = 0
    crop_per_sample: bool = option(
        False, "Draw a random crop for each sample instead of one for the whole batch.", is_own=True
    )
    pretrained_encoders: bool = option(
        True, "Load CLIP's weights; false leaves both encoders random.", is_own=True
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        rules = chain(
            self.denoising_rules(),
            self._width_rules(),
            self._choice_rules(),
            self._time_rules(),
        )
        refuse_broken_rules(rules)

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

    def _choice_rules(self) -> Iterator[Rule]:
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
        ):
            yield (
                not fine,
                f"policy.{name}={getattr(self, name)}",
                rule,
                f"leave out --policy.{name}",
            )

    def draws(self) -> dict[str, Draw]:
        """The noise, a uniform number that the time follows from, and where the crop lies."""
        crops = (
            len(self.cameras)
            if self.image_crop_shape is not None and self.image_crop_is_random
            else 0
        )
        return {**self.noise_draws(), **crop_draws(crops, per_sample=self.crop_per_sample)}

    def act_draws(self) -> dict[str, Draw]:
        """Return the initial noise of a chunk; diffusion also needs the noise of its later
        steps.
        """
        found = super().act_draws()
        return found if self.objective == "diffusion" else {"noise": found["noise"]}

    def loss_weights(self, size: int, pads: Mapping[str, Any]) -> dict[str, float]:
        """Action numbers of the global batch."""
        return {f"{self.objective}_loss": self.numbers_learnt(size, pads)}

    def resized(self, size: tuple[int, int]) -> tuple[int, int]:
        """Return the size that frames are resized to; see `PolicyConfig.resized`."""
        return self.image_resize_shape or size

    @property
    def cuts_prompts(self) -> bool:
        """Return `tokenizer_truncation`."""
        return self.tokenizer_truncation

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
        """Without the encoders' weights; their config.json says how large they are, where they
        are not the default.
        """
        return dataclasses.replace(self, pretrained_encoders=False)

    def validate_features(self) -> None:
        """Raise PolicyError unless there are cameras of one size, a state, nothing else, and an
        action vector.
        """
        fits = (
            fit_rule(
                "image_crop_shape",
                self.image_crop_shape,
                key,
                self.image_resize_shape or feature.shape[1:],
            )
            for key, feature in self.cameras.items()
        )
        refuse_broken_rules(
            chain(
                vector_rules(self, "Multi-Task DiT"),
                state_and_cameras_rules(self, "Multi-Task DiT"),
                same_size_rules(self),
                fits,
            )
        )
