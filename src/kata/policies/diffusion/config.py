"""Options of Diffusion Policy, with LeRobot's names and defaults. Torch-free."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar

from kata.errors import PolicyError, did_you_mean
from kata.optim.config import AdamConfig, DiffuserSchedulerConfig
from kata.policies.config import PolicyConfig, own
from kata.policies.frames import CropConfig, chunk_windows, same_size_rules, vector_rules
from kata.policies.resnets import resnet_rules
from kata.spec import ACTION, Draw, FeatureType, NormMode, Windows, pad_key

SCHEDULERS, PREDICTIONS = ("DDPM", "DDIM"), ("epsilon", "sample")
BETAS = ("squaredcos_cap_v2", "linear", "scaled_linear", "sigmoid")
SIZES = (
    *("n_obs_steps", "horizon", "n_action_steps", "spatial_softmax_num_keypoints", "kernel_size", "n_groups"),
    *("diffusion_step_embed_dim", "num_train_timesteps"),
)

BEFORE_0_6: dict[str, Any] = {
    "horizon": 16,
    "n_action_steps": 8,
    "drop_n_last_frames": 7,
    "crop_shape": [84, 84],
    "pretrained_backbone_weights": None,
    "use_group_norm": True,
    "use_separate_rgb_encoder_per_camera": False,
}
"""Defaults of LeRobot up to 0.5, for fields that a config of that time leaves out."""


def _modes() -> dict[str, NormMode]:
    ranged = {kind.value: NormMode.MIN_MAX for kind in (FeatureType.STATE, FeatureType.ACTION)}
    return {FeatureType.VISUAL.value: NormMode.MEAN_STD, **ranged}


@dataclass(frozen=True, kw_only=True)
class Config(CropConfig, PolicyConfig):
    """Diffusion's options. Impossible values raise PolicyError at once.

    Of `horizon` actions that are denoised together, counted from the first of n_obs_steps observations, n_action_steps
    are executed from the latest observation on. drop_n_last_frames of null is computed: frames so late that executed
    actions would lie beyond the episode are no anchors (LeRobot's default is 7 for any horizon). num_inference_steps of
    null denoises in num_train_timesteps; few steps want noise_scheduler_type=DDIM.
    """

    type_name: ClassVar[str] = "diffusion"

    n_obs_steps: int = 2
    horizon: int = 64
    n_action_steps: int = 32
    normalization_mapping: dict[str, NormMode] = field(default_factory=_modes)
    drop_n_last_frames: int | None = None
    vision_backbone: str = "resnet18"
    resize_shape: tuple[int, int] | None = None
    crop_ratio: float = 1.0
    crop_shape: tuple[int, int] | None = None
    crop_is_random: bool = True
    pretrained_backbone_weights: str | None = "ResNet18_Weights.IMAGENET1K_V1"
    use_group_norm: bool = False
    spatial_softmax_num_keypoints: int = 32
    use_separate_rgb_encoder_per_camera: bool = True
    down_dims: tuple[int, ...] = (512, 1024, 2048)
    kernel_size: int = 5
    n_groups: int = 8
    diffusion_step_embed_dim: int = 128
    use_film_scale_modulation: bool = True
    gradient_checkpointing: bool = False
    noise_scheduler_type: str = "DDPM"
    num_train_timesteps: int = 100
    beta_schedule: str = "squaredcos_cap_v2"
    beta_start: float = 0.0001
    beta_end: float = 0.02
    prediction_type: str = "epsilon"
    clip_sample: bool = True
    clip_sample_range: float = 1.0
    num_inference_steps: int | None = None
    compile_model: bool = False
    compile_mode: str = "reduce-overhead"
    do_mask_loss_for_padding: bool = False
    optimizer_lr: float = 1e-4
    optimizer_betas: tuple[float, float] = (0.95, 0.999)
    optimizer_eps: float = 1e-8
    optimizer_weight_decay: float = 1e-6
    scheduler_name: str = "cosine"
    scheduler_warmup_steps: int = 500
    crop_per_sample: bool = own(False)

    def __post_init__(self) -> None:
        for name in SIZES:
            value: int = getattr(self, name)
            if value < 1:
                raise PolicyError(
                    f"policy.{name}={value}", rule="at least 1", remedy=f"give --policy.{name} a positive number"
                )
        if self.resize_shape is not None:
            object.__setattr__(self, "crop_shape", self.crop_of_resized(self.resize_shape))
        if self.drop_n_last_frames is None:
            late = max(0, self.horizon - self.n_action_steps - self.n_obs_steps + 1)
            object.__setattr__(self, "drop_n_last_frames", late)
        rules = chain(
            self._time_rules(),
            self._choice_rules(),
            resnet_rules(self.vision_backbone, self.pretrained_backbone_weights, group_norm=self.use_group_norm),
            self.crop_rules(),
        )
        for broken, what, rule, remedy in rules:
            if broken:
                raise PolicyError(what, rule=rule, remedy=remedy)

    def _time_rules(self) -> Iterator[tuple[bool, str, str, str]]:
        """(broken, what, rule, remedy) of horizons, steps and the U-Net's widths."""
        halves = 2 ** len(self.down_dims)
        yield (
            not self.down_dims or self.horizon % halves != 0,
            f"policy.horizon={self.horizon} with {len(self.down_dims)} levels in policy.down_dims",
            f"a multiple of {halves}: each level of the U-Net halves the time",
            f"--policy.horizon={max(1, round(self.horizon / halves)) * halves}",
        )
        most = self.horizon - self.n_obs_steps + 1
        yield (
            self.n_action_steps > most,
            f"policy.n_action_steps={self.n_action_steps} with policy.horizon={self.horizon}",
            f"at most horizon - n_obs_steps + 1 = {most}: what is executed was denoised",
            f"--policy.n_action_steps={max(1, most)}",
        )
        yield (
            any(width < 1 or width % self.n_groups for width in self.down_dims) or self.down_dims[0] % 8 != 0,
            f"policy.down_dims={list(self.down_dims)} with policy.n_groups={self.n_groups}",
            "each width is a multiple of n_groups, the first one of 8 too",
            "choose multiples of 8, for example --policy.down_dims=[64,128]",
        )
        steps = self.num_inference_steps
        yield (
            steps is not None and not 1 <= steps <= self.num_train_timesteps,
            f"policy.num_inference_steps={steps}",
            f"between 1 and num_train_timesteps={self.num_train_timesteps}",
            "for example --policy.num_inference_steps=10 with --policy.noise_scheduler_type=DDIM",
        )

    def _choice_rules(self) -> Iterator[tuple[bool, str, str, str]]:
        """(broken, what, rule, remedy) of what is chosen by name."""
        for name, known in (
            ("noise_scheduler_type", SCHEDULERS),
            ("prediction_type", PREDICTIONS),
            ("beta_schedule", BETAS),
        ):
            value: str = getattr(self, name)
            wrong = value not in known
            yield (wrong, f"policy.{name}={value}", f"one of: {', '.join(known)}", did_you_mean(value, known))
        yield (
            self.diffusion_step_embed_dim % 2 != 0 or self.diffusion_step_embed_dim < 4,
            f"policy.diffusion_step_embed_dim={self.diffusion_step_embed_dim}",
            "an even number of at least 4: sines and cosines",
            "--policy.diffusion_step_embed_dim=128",
        )

    @classmethod
    def completed(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        """A config of LeRobot up to 0.5, which knows no resize_shape, with the defaults of that time."""
        return dict(raw) if "resize_shape" in raw else {**BEFORE_0_6, **raw}

    def windows(self) -> Windows:
        """n_obs_steps observations up to the anchor, and `horizon` actions from the first of them on."""
        return chunk_windows(self, self.horizon)

    def chunk_start(self) -> int:
        """The action of the anchor is the first that is executed."""
        return self.n_obs_steps - 1

    def draws(self) -> dict[str, Draw]:
        """The noise, the noising step, and where the crop lies."""
        shape = (self.horizon, self.action.shape[0])
        return {"noise": Draw("normal", shape), "time": Draw("uniform", (1,)), **self.crop_draws(len(self.cameras))}

    def drop_last_frames(self) -> int:
        """drop_n_last_frames."""
        assert self.drop_n_last_frames is not None
        return self.drop_n_last_frames

    def loss_weights(self, size: int, pads: Mapping[str, Any]) -> dict[str, float]:
        """Action numbers of the global batch; without the padded ones where do_mask_loss_for_padding says so."""
        pad = pads.get(pad_key(ACTION)) if self.do_mask_loss_for_padding else None
        valid = size * self.horizon - (0 if pad is None else int(pad.sum()))
        return {"denoising_loss": float(max(valid, 1) * self.action.shape[0])}

    def without_downloads(self) -> Config:
        """Without ImageNet's backbone weights."""
        return dataclasses.replace(self, pretrained_backbone_weights=None)

    def validate_features(self) -> None:
        """Raise PolicyError unless there is an action vector, and a camera or an environment state."""
        for broken, what, rule, remedy in chain(
            vector_rules(self, "Diffusion"), same_size_rules(self), self.crop_fits_rules(self.cameras)
        ):
            if broken:
                raise PolicyError(what, rule=rule, remedy=remedy)

    def optimizer_preset(self) -> AdamConfig:
        """Adam with the fields' rates."""
        return AdamConfig(
            lr=self.optimizer_lr,
            betas=self.optimizer_betas,
            eps=self.optimizer_eps,
            weight_decay=self.optimizer_weight_decay,
        )

    def scheduler_preset(self) -> DiffuserSchedulerConfig:
        """Warm-up, then cosine to zero."""
        return DiffuserSchedulerConfig(name=self.scheduler_name, num_warmup_steps=self.scheduler_warmup_steps)
