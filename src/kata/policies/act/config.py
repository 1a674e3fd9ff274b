"""Options of ACT, with LeRobot's names and defaults. Torch-free."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar

from kata.config import option
from kata.errors import PolicyError
from kata.optim.config import AdamWConfig
from kata.policies.observation_rules import RESNET_WEIGHTS, resnet_rules
from kata.policies.relative import RelativeConfig
from kata.policies.rules import Rule, refuse_broken_rules
from kata.spec import ACTION, Draw, FeatureType, NormMode, Windows, dim_pad_key, pad_key

UNDILATED = ("resnet18", "resnet34")
"""Their blocks know no dilation."""

ACTIVATIONS = ("relu", "gelu")
"""`glu`, which LeRobot also names, cannot run: it halves the width that the second linear layer
expects.
"""


def _mean_std() -> dict[str, NormMode]:
    return {
        kind.value: NormMode.MEAN_STD
        for kind in (FeatureType.VISUAL, FeatureType.STATE, FeatureType.ACTION)
    }


@dataclass(frozen=True, kw_only=True)
class Config(RelativeConfig):
    """ACT's options. Impossible values raise PolicyError at once."""

    type_name: ClassVar[str] = "act"
    masks_action_dims: ClassVar[bool] = True

    chunk_size: int = option(100, "Actions predicted at once.", least=1)
    n_action_steps: int = option(
        100, "Actions of a chunk that are executed before the next prediction.", least=1
    )
    normalization_mapping: dict[str, NormMode] = field(default_factory=_mean_std)
    vision_backbone: str = option(
        "resnet18", "Image encoder, one for all cameras.", choices=tuple(RESNET_WEIGHTS)
    )
    pretrained_backbone_weights: str | None = option(
        "ResNet18_Weights.IMAGENET1K_V1",
        "Weights that the encoder starts from, by torchvision's name; null for random ones.",
    )
    replace_final_stride_with_dilation: bool = option(
        False,
        "Keep the encoder's last stage at stride 16, with dilated convolutions (resnet50 and up).",
    )
    pre_norm: bool = option(False, "Normalize before each transformer block instead of after it.")
    dim_model: int = option(512, "Width of the transformer.", least=1)
    n_heads: int = option(8, "Attention heads.", least=1)
    dim_feedforward: int = option(3200, "Hidden width of the feed-forward layers.", least=1)
    feedforward_activation: str = option(
        "relu", "Activation of the feed-forward layers.", choices=ACTIVATIONS
    )
    n_encoder_layers: int = option(4, "Layers of the encoder.", least=1)
    # The authors' code builds seven decoder layers and uses the output of the first.
    n_decoder_layers: int = option(1, "Layers of the decoder.", least=1)
    use_vae: bool = option(True, "Train with a variational encoder of the action chunk.")
    latent_dim: int = option(32, "Size of the latent variable of that encoder.", least=1)
    n_vae_encoder_layers: int = option(4, "Layers of that encoder.", least=1)
    temporal_ensemble_coeff: float | None = option(
        None,
        "Average overlapping chunks with weights exp(-coefficient * age rank), the oldest first; "
        "0.01 in "
        "the paper. Needs n_action_steps=1. null executes chunks as they are.",
    )
    dropout: float = option(0.1, "Dropout of the transformer.", least=0, below=1)
    kl_weight: float = option(10.0, "Weight of the KL term beside the L1 loss.", least=0)
    optimizer_lr: float = option(1e-5, "Learning rate of ACT's preset, AdamW.", least=0)
    optimizer_weight_decay: float = option(1e-4, "Weight decay of the preset.", least=0)
    optimizer_lr_backbone: float = option(1e-5, "Learning rate of the image encoder.", least=0)

    def __post_init__(self) -> None:
        super().__post_init__()
        # LeRobot's type of this field is int: a checkpoint holds 0 or 1.
        dilation = int(self.replace_final_stride_with_dilation)
        object.__setattr__(self, "replace_final_stride_with_dilation", dilation)
        refuse_broken_rules(
            chain(self._acting_rules(), self._network_rules(), self._backbone_rules())
        )

    def _acting_rules(self) -> Iterator[Rule]:
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
            f"policy.temporal_ensemble_coeff={coeff} with "
            f"policy.n_action_steps={self.n_action_steps}",
            "temporal ensembling predicts at every step",
            "--policy.n_action_steps=1",
        )
        yield (
            coeff is not None and self.use_relative_actions,
            f"policy.temporal_ensemble_coeff={coeff} with policy.use_relative_actions=true",
            "chunks are averaged whose actions are relative to one state",
            "--policy.temporal_ensemble_coeff=null",
        )

    def _network_rules(self) -> Iterator[Rule]:
        """(broken, what, rule, remedy) of the transformer and its loss."""
        yield (
            self.dim_model % self.n_heads != 0,
            f"policy.dim_model={self.dim_model} with policy.n_heads={self.n_heads}",
            "the heads share the width equally",
            "choose a dim_model that n_heads divides",
        )

    def _backbone_rules(self) -> Iterator[Rule]:
        """(broken, what, rule, remedy) of the backbone."""
        backbone, weights = self.vision_backbone, self.pretrained_backbone_weights
        yield from resnet_rules(backbone, weights)
        yield (
            bool(self.replace_final_stride_with_dilation) and backbone in UNDILATED,
            "policy.replace_final_stride_with_dilation=true with "
            f"policy.vision_backbone={backbone}",
            f"the blocks of {' and '.join(UNDILATED)} know no dilation",
            "--policy.vision_backbone=resnet50, with --policy.pretrained_backbone_weights to suit",
        )

    def windows(self) -> Windows:
        """Return offsets of the chunk of actions, which begins at the anchor. Observations are read
        at the anchor.
        """
        return {ACTION: tuple(range(self.chunk_size))}

    def draws(self) -> dict[str, Draw]:
        """Return the noise of the latent; empty without the VAE."""
        return {"noise": Draw("normal", (self.latent_dim,))} if self.use_vae else {}

    def loss_weights(self, size: int, pads: Mapping[str, Any]) -> dict[str, float]:
        """Return the counts of real action values (`l1_loss`) and of samples (`kld_loss`).

        See `PolicyConfig.loss_weights`.
        """
        import numpy as np  # here, so that help need not import it

        pad, dim_pad = pads.get(pad_key(ACTION)), pads.get(dim_pad_key(ACTION))
        steps = np.full(size, self.chunk_size) if pad is None else (~pad).sum(1)
        dims = np.full(size, self.action.shape[0]) if dim_pad is None else (~dim_pad).sum(1)
        weights = {"l1_loss": float(max(int((steps * dims).sum()), 1))}
        return {**weights, "kld_loss": float(size)} if self.use_vae else weights

    def without_downloads(self) -> Config:
        """Return a copy without ImageNet weights of the backbone."""
        return dataclasses.replace(self, pretrained_backbone_weights=None)

    def validate_features(self) -> None:
        """Raise PolicyError unless there is an action vector and a camera or an environment
        state.
        """
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
        """AdamW with the rates of the fields; the backbone's own rate comes with its parameter
        group.
        """
        return AdamWConfig(
            lr=self.optimizer_lr, weight_decay=self.optimizer_weight_decay, grad_clip_norm=10.0
        )


def _listing(features: Mapping[str, Any]) -> str:
    """Feature names for a message."""
    return ", ".join(features) or "none"
