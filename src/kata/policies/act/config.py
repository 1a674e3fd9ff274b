"""Options of ACT, with LeRobot's names and defaults. Torch-free."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar

import numpy as np

from kata.errors import PolicyError, did_you_mean
from kata.optim.config import AdamWConfig
from kata.policies.config import PolicyConfig
from kata.policies.resnets import resnet_rules
from kata.spec import ACTION, Draw, FeatureType, NormMode, Windows, dim_pad_key, pad_key

UNDILATED = ("resnet18", "resnet34")
"""Their blocks know no dilation."""

ACTIVATIONS = ("relu", "gelu")
"""`glu`, which LeRobot also names, cannot run: it halves the width that the second linear layer expects."""

SIZES = (
    "chunk_size",
    "n_action_steps",
    "dim_model",
    "n_heads",
    "dim_feedforward",
    "n_encoder_layers",
    "n_decoder_layers",
    "latent_dim",
    "n_vae_encoder_layers",
)


def _mean_std() -> dict[str, NormMode]:
    return {
        kind.value: NormMode.MEAN_STD
        for kind in (FeatureType.VISUAL, FeatureType.STATE, FeatureType.ACTION)
    }


@dataclass(frozen=True, kw_only=True)
class Config(PolicyConfig):
    """ACT's options. Impossible values raise PolicyError at once.

    chunk_size actions are predicted at once and the first n_action_steps of them are executed. With
    temporal_ensemble_coeff (0.01 in the paper) every step predicts, and overlapping predictions are averaged
    with weights exp(-coeff * age rank), the oldest first. pretrained_backbone_weights is torchvision's name
    of ImageNet weights, or null. replace_final_stride_with_dilation keeps the last stage at stride 16.
    """

    type_name: ClassVar[str] = "act"
    masks_action_dims: ClassVar[bool] = True

    chunk_size: int = 100
    n_action_steps: int = 100
    normalization_mapping: dict[str, NormMode] = field(default_factory=_mean_std)
    vision_backbone: str = "resnet18"
    pretrained_backbone_weights: str | None = "ResNet18_Weights.IMAGENET1K_V1"
    replace_final_stride_with_dilation: int = (
        False  # 0 or 1: LeRobot's type, so that either spelling is read
    )
    pre_norm: bool = False
    dim_model: int = 512
    n_heads: int = 8
    dim_feedforward: int = 3200
    feedforward_activation: str = "relu"
    n_encoder_layers: int = 4
    # The authors' code builds seven decoder layers and uses the output of the first.
    n_decoder_layers: int = 1
    use_vae: bool = True
    latent_dim: int = 32
    n_vae_encoder_layers: int = 4
    temporal_ensemble_coeff: float | None = None
    dropout: float = 0.1
    kl_weight: float = 10.0
    optimizer_lr: float = 1e-5
    optimizer_weight_decay: float = 1e-4
    optimizer_lr_backbone: float = 1e-5

    def __post_init__(self) -> None:
        for name in SIZES:
            value: int = getattr(self, name)
            if value < 1:
                raise PolicyError(
                    f"policy.{name}={value}",
                    rule="at least 1",
                    remedy=f"give --policy.{name} a positive number",
                )
        for broken, what, rule, remedy in chain(
            self._acting_rules(), self._network_rules(), self._backbone_rules()
        ):
            if broken:
                raise PolicyError(what, rule=rule, remedy=remedy)

    def _acting_rules(self) -> Iterator[tuple[bool, str, str, str]]:
        """(broken, what, rule, remedy) of the steps seen and executed."""
        yield (
            self.n_obs_steps != 1,
            f"policy.n_obs_steps={self.n_obs_steps}",
            "ACT sees one observation step",
            "leave out --policy.n_obs_steps",
        )
        yield (
            self.n_action_steps > self.chunk_size,
            f"policy.n_action_steps={self.n_action_steps} with policy.chunk_size={self.chunk_size}",
            "no more actions are executed than a chunk holds",
            f"--policy.n_action_steps={self.chunk_size} or less",
        )
        coeff = self.temporal_ensemble_coeff
        yield (
            coeff is not None and self.n_action_steps != 1,
            f"policy.temporal_ensemble_coeff={coeff} with policy.n_action_steps={self.n_action_steps}",
            "temporal ensembling predicts at every step",
            "--policy.n_action_steps=1",
        )
        yield (
            coeff is not None and not math.isfinite(coeff),
            f"policy.temporal_ensemble_coeff={coeff}",
            "a finite number; 0 weighs all predictions alike, above 0 prefers older ones",
            "--policy.temporal_ensemble_coeff=0.01, the paper's",
        )

    def _network_rules(self) -> Iterator[tuple[bool, str, str, str]]:
        """(broken, what, rule, remedy) of the transformer and its loss."""
        yield (
            self.dim_model % self.n_heads != 0,
            f"policy.dim_model={self.dim_model} with policy.n_heads={self.n_heads}",
            "the heads share the width equally",
            "choose a dim_model that n_heads divides",
        )
        yield (
            self.feedforward_activation not in ACTIVATIONS,
            f"policy.feedforward_activation={self.feedforward_activation}",
            f"one of: {', '.join(ACTIVATIONS)}",
            did_you_mean(self.feedforward_activation, ACTIVATIONS),
        )
        yield (
            not 0 <= self.dropout < 1,
            f"policy.dropout={self.dropout}",
            "a share of at least 0 and below 1",
            "--policy.dropout=0.1",
        )
        yield (
            not 0 <= self.kl_weight < math.inf,
            f"policy.kl_weight={self.kl_weight}",
            "a finite number of at least 0",
            "--policy.kl_weight=10",
        )

    def _backbone_rules(self) -> Iterator[tuple[bool, str, str, str]]:
        """(broken, what, rule, remedy) of the backbone."""
        backbone, weights = self.vision_backbone, self.pretrained_backbone_weights
        yield from resnet_rules(backbone, weights)
        yield (
            self.replace_final_stride_with_dilation not in (0, 1),
            f"policy.replace_final_stride_with_dilation={self.replace_final_stride_with_dilation}",
            "true or false",
            "--policy.replace_final_stride_with_dilation=false",
        )
        yield (
            bool(self.replace_final_stride_with_dilation) and backbone in UNDILATED,
            f"policy.replace_final_stride_with_dilation=true with policy.vision_backbone={backbone}",
            f"the blocks of {' and '.join(UNDILATED)} know no dilation",
            "--policy.vision_backbone=resnet50, with --policy.pretrained_backbone_weights to suit",
        )

    def windows(self) -> Windows:
        """The chunk of actions that begins at the anchor; observations at the anchor alone."""
        return {ACTION: tuple(range(self.chunk_size))}

    def draws(self) -> dict[str, Draw]:
        """The noise of the latent, only with the VAE."""
        return {"noise": Draw("normal", (self.latent_dim,))} if self.use_vae else {}

    def loss_weights(self, size: int, pads: Mapping[str, Any]) -> dict[str, float]:
        """l1_loss: real action numbers of the global batch; kld_loss: its samples."""
        pad, dim_pad = pads.get(pad_key(ACTION)), pads.get(dim_pad_key(ACTION))
        steps = np.full(size, self.chunk_size) if pad is None else (~pad).sum(1)
        dims = np.full(size, self.action.shape[0]) if dim_pad is None else (~dim_pad).sum(1)
        weights = {"l1_loss": float(max(int((steps * dims).sum()), 1))}
        return {**weights, "kld_loss": float(size)} if self.use_vae else weights

    def without_downloads(self) -> Config:
        """Without ImageNet's backbone weights."""
        return dataclasses.replace(self, pretrained_backbone_weights=None)

    def validate_features(self) -> None:
        """Raise PolicyError unless there is an action vector and a camera or an environment state."""
        action = self.output_features.get(ACTION)
        if action is None or len(action.shape) != 1:
            raise PolicyError(
                f"outputs of ACT: {_listing(self.output_features)}",
                rule=f"'{ACTION}' is a vector",
                remedy="choose a dataset with an action column of shape [A]",
            )
        if not self.cameras and self.env_state is None:
            raise PolicyError(
                f"inputs of ACT: {_listing(self.input_features)}",
                rule="at least one camera or 'observation.environment_state'",
                remedy="choose a dataset with one, or keep one among the policy's inputs",
            )
        for key, feature in (("state", self.state), ("env_state", self.env_state)):
            if feature is not None and len(feature.shape) != 1:
                raise PolicyError(
                    f"{key}: shape {feature.shape}", rule="a vector", remedy="flatten the column"
                )
        for key, feature in self.cameras.items():
            if len(feature.shape) != 3 or feature.shape[0] != 3:
                raise PolicyError(
                    f"{key}: shape {feature.shape}",
                    rule="ACT's backbone takes colour images of shape (3, H, W)",
                    remedy="leave this camera out",
                )
        if self.cameras and self.dim_model % 4:
            raise PolicyError(
                f"policy.dim_model={self.dim_model}",
                rule="with cameras a multiple of 4: sine and cosine, for rows and for columns",
                remedy=f"--policy.dim_model={self.dim_model + 4 - self.dim_model % 4}",
            )

    def optimizer_preset(self) -> AdamWConfig:
        """AdamW with the rates of the fields; the backbone's own rate comes with its parameter group."""
        return AdamWConfig(
            lr=self.optimizer_lr, weight_decay=self.optimizer_weight_decay, grad_clip_norm=10.0
        )


def _listing(features: Mapping[str, Any]) -> str:
    """Feature names for a message."""
    return ", ".join(features) or "none"
