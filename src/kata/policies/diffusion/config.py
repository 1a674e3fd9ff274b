"""Options of Diffusion Policy, with LeRobot's names and defaults. Torch-free."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any, ClassVar

from kata.config import option
from kata.policies.denoising import DenoisingConfig
from kata.policies.observation_rules import (
    RESNET_WEIGHTS,
    CropConfig,
    resnet_rules,
    same_size_rules,
    vector_rules,
)
from kata.policies.rules import Rule, refuse_broken_rules
from kata.spec import Draw

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


@dataclass(frozen=True, kw_only=True)
class Config(CropConfig, DenoisingConfig):
    """Diffusion's options. Impossible values raise PolicyError at once.

    drop_n_last_frames is computed; LeRobot's default is 7 for any horizon.
    """

    type_name: ClassVar[str] = "diffusion"

    horizon: int = 64
    n_action_steps: int = 32
    vision_backbone: str = option("resnet18", "Image encoder.", choices=tuple(RESNET_WEIGHTS))
    pretrained_backbone_weights: str | None = option(
        "ResNet18_Weights.IMAGENET1K_V1",
        "Weights that the encoder starts from, by torchvision's name; null for random ones.",
    )
    use_group_norm: bool = option(
        False, "Group norm in the encoder instead of batch norm; needs random weights."
    )
    spatial_softmax_num_keypoints: int = option(
        32, "Keypoints that the encoder reduces a frame to.", least=1
    )
    use_separate_rgb_encoder_per_camera: bool = option(True, "An encoder for each camera.")
    down_dims: tuple[int, ...] = option(
        (512, 1024, 2048), "Width of each level of the U-Net over time."
    )
    kernel_size: int = option(5, "Kernel of the U-Net's convolutions, in action steps.", least=1)
    n_groups: int = option(8, "Groups of the U-Net's group norm.", least=1)
    diffusion_step_embed_dim: int = option(
        128, "Width of the embedding of the noise level.", least=1
    )
    use_film_scale_modulation: bool = option(
        True, "Condition the U-Net by scale and shift instead of shift alone."
    )
    gradient_checkpointing: bool = option(
        False, "Recompute the U-Net's blocks in the backward pass: less memory, more time."
    )
    compile_model: bool = option(False, "Put the U-Net through torch.compile.")
    compile_mode: str = option("reduce-overhead", "Mode of torch.compile, with compile_model.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.resize_shape is not None:
            object.__setattr__(self, "crop_shape", self.crop_of_resized(self.resize_shape))
        rules = chain(
            self.denoising_rules(),
            self._network_rules(),
            resnet_rules(
                self.vision_backbone,
                self.pretrained_backbone_weights,
                group_norm=self.use_group_norm,
            ),
        )
        refuse_broken_rules(rules)

    def _network_rules(self) -> Iterator[Rule]:
        """Yield rules on the sizes that the U-Net's levels can halve and group."""
        halves = 2 ** len(self.down_dims)
        yield (
            not self.down_dims or self.horizon % halves != 0,
            f"policy.horizon={self.horizon} with {len(self.down_dims)} levels in policy.down_dims",
            f"a multiple of {halves}: each level of the U-Net halves the time",
            f"--policy.horizon={max(1, round(self.horizon / halves)) * halves}",
        )
        yield (
            any(width < 1 or width % self.n_groups for width in self.down_dims)
            or self.down_dims[0] % 8 != 0,
            f"policy.down_dims={list(self.down_dims)} with policy.n_groups={self.n_groups}",
            "each width is a multiple of n_groups, the first one of 8 too",
            "choose multiples of 8, for example --policy.down_dims=[64,128]",
        )
        yield (
            self.diffusion_step_embed_dim % 2 != 0 or self.diffusion_step_embed_dim < 4,
            f"policy.diffusion_step_embed_dim={self.diffusion_step_embed_dim}",
            "an even number of at least 4: sines and cosines",
            "--policy.diffusion_step_embed_dim=128",
        )

    @classmethod
    def completed(cls, raw: Mapping[str, Any]) -> dict[str, Any]:
        """A config of LeRobot up to 0.5, which knows no resize_shape, with the defaults of that
        time.
        """
        return dict(raw) if "resize_shape" in raw else {**BEFORE_0_6, **raw}

    def draws(self) -> dict[str, Draw]:
        """The noise, the noising step, and where the crop lies."""
        return {**self.noise_draws(), **self.crop_draws(len(self.cameras))}

    def loss_weights(self, size: int, pads: Mapping[str, Any]) -> dict[str, float]:
        """Action numbers of the global batch."""
        return {"denoising_loss": self.numbers_learnt(size, pads)}

    def without_downloads(self) -> Config:
        """Without ImageNet's backbone weights."""
        return dataclasses.replace(self, pretrained_backbone_weights=None)

    def validate_features(self) -> None:
        """Raise PolicyError unless there is an action vector, and a camera or an environment
        state.
        """
        refuse_broken_rules(
            chain(
                vector_rules(self, "Diffusion"),
                same_size_rules(self),
                self.crop_fits_rules(self.cameras),
            )
        )
