"""Options of VQ-BeT, with LeRobot's names and defaults. Torch-free."""

from __future__ import annotations

import dataclasses
import functools
import json
import operator
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, ClassVar

from kata.config import encode, option
from kata.optim.config import VQBeTSchedulerConfig
from kata.policies.config import AdamPolicyConfig
from kata.policies.observation_rules import (
    RESNET_WEIGHTS,
    RandomCropConfig,
    chunk_windows,
    resnet_rules,
    vector_rules,
)
from kata.policies.relative import RelativeConfig
from kata.policies.rules import Rule, refuse_broken_rules
from kata.spec import ACTION, STATE, Draw, FeatureType, NormMode, Windows, pad_key

LAYERS = 2
"""Residual codebooks: a primary and a secondary code."""

INPUTS = 2
"""Tokens of one observation: camera and state."""


def _modes() -> dict[str, NormMode]:
    ranged = {kind.value: NormMode.MIN_MAX for kind in (FeatureType.STATE, FeatureType.ACTION)}
    return {FeatureType.VISUAL.value: NormMode.IDENTITY, **ranged}


def padded_chunks(pad: Any, size: int) -> Any:
    """Return True for chunks of `size` actions with a padded one: bool (B, T) -> (B, T - size + 1).

    NumPy arrays and tensors both work.
    """
    count = pad.shape[1] - size + 1
    return functools.reduce(operator.or_, (pad[:, i : i + count] for i in range(size)))


@dataclass(frozen=True, kw_only=True)
class Config(RandomCropConfig, AdamPolicyConfig, RelativeConfig):
    """VQ-BeT's options. Impossible values raise PolicyError at once.

    The first n_vqvae_training_steps steps of a run learn codes for chunks of action_chunk_size
    actions; the others teach a GPT to predict them, for each of n_obs_steps observations and
    n_action_pred_token - 1 chunks further ahead. The chunk of the latest observation is executed.
    """

    type_name: ClassVar[str] = "vqbet"

    n_obs_steps: int = 5
    n_action_pred_token: int = option(
        3,
        "Chunks predicted from the latest observation: the one to execute and those further ahead.",
        least=1,
    )
    action_chunk_size: int = option(5, "Actions of a chunk; all are executed.", least=1)
    normalization_mapping: dict[str, NormMode] = field(default_factory=_modes)
    vision_backbone: str = option("resnet18", "Image encoder.", choices=tuple(RESNET_WEIGHTS))
    crop_shape: tuple[int, int] | None = (84, 84)
    crop_is_random: bool = True
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
    n_vqvae_training_steps: int = option(
        20_000, "First steps of a run, which learn codes of action chunks.", least=1
    )
    vqvae_n_embed: int = option(16, "Codes of each of the two codebooks.", least=1)
    vqvae_embedding_dim: int = option(256, "Size of a code's vector.", least=1)
    vqvae_enc_hidden_dim: int = option(128, "Width of the encoder and decoder of chunks.", least=1)
    gpt_block_size: int = option(500, "Tokens that the GPT can see.", least=1)
    gpt_input_dim: int = option(512, "Width of the GPT's input tokens.", least=1)
    gpt_output_dim: int = option(512, "Width of the GPT's outputs.", least=1)
    gpt_n_layer: int = option(8, "Layers of the GPT.", least=1)
    gpt_n_head: int = option(8, "Attention heads of the GPT.", least=1)
    gpt_hidden_dim: int = option(512, "Width of the GPT.", least=1)
    dropout: float = option(0.1, "Dropout of the GPT.", least=0, below=1)
    offset_loss_weight: float = option(
        10_000.0, "Weight of the loss of the actions' offsets from a code."
    )
    primary_code_loss_weight: float = option(5.0, "Weight of the loss of the first code.")
    secondary_code_loss_weight: float = option(0.5, "Weight of the loss of the second code.")
    bet_softmax_temperature: float = option(
        0.1, "Temperature of the choice of codes: the lower, the more often the likeliest.", above=0
    )
    sequentially_select: bool = option(
        False, "Predict the second code from the first, instead of both at once."
    )
    optimizer_vqvae_lr: float = option(1e-3, "Learning rate of the codes' network.", least=0)
    optimizer_vqvae_weight_decay: float = option(
        1e-4, "Weight decay of the codes' network.", least=0
    )
    scheduler_warmup_steps: int = option(
        500, "Warm-up steps of the preset, after the codes are learnt.", least=0
    )
    do_mask_loss_for_padding: bool = option(
        False, "Leave chunks that reach beyond the end of an episode out of the loss.", is_own=True
    )
    keep_unused_codes: bool = option(
        False,
        "Leave codes that no chunk is near where they are; LeRobot's become huge for the first "
        "steps.",
        is_own=True,
    )
    scheduler_decay_to_zero: bool = option(
        False,
        "Let the learning rate reach zero at the last step, which LeRobot's does not.",
        is_own=True,
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        rules = chain(
            self._share_rules(),
            resnet_rules(
                self.vision_backbone,
                self.pretrained_backbone_weights,
                group_norm=self.use_group_norm,
            ),
        )
        refuse_broken_rules(rules)

    def _share_rules(self) -> Iterator[Rule]:
        """Sizes that fit each other."""
        yield (
            self.gpt_hidden_dim % max(1, self.gpt_n_head) != 0,
            f"policy.gpt_hidden_dim={self.gpt_hidden_dim} with policy.gpt_n_head={self.gpt_n_head}",
            "a multiple of the heads: each takes an equal part",
            "--policy.gpt_n_head=8 with a multiple of 8",
        )
        tokens = self.n_obs_steps * (INPUTS + 1) + self.n_action_pred_token - 1
        yield (
            tokens > self.gpt_block_size,
            f"policy.gpt_block_size={self.gpt_block_size}",
            f"at least the {tokens} tokens that n_obs_steps={self.n_obs_steps} and "
            f"n_action_pred_token={self.n_action_pred_token} make",
            f"--policy.gpt_block_size={tokens}",
        )

    @property
    def chunks(self) -> int:
        """Chunks that are predicted: one for each observation, and those further ahead."""
        return self.n_obs_steps + self.n_action_pred_token - 1

    def windows(self) -> Windows:
        """n_obs_steps observations up to the anchor, and the actions of all chunks."""
        return chunk_windows(self, self.chunks + self.action_chunk_size - 1)

    def chunk_start(self) -> int:
        """The action of the anchor is the first that is executed."""
        return self.n_obs_steps - 1

    def draws(self) -> dict[str, Draw]:
        """Return the numbers that sample codes, and the place of the crop."""
        return {"noise": Draw("uniform", (self.chunks, LAYERS)), **self.crop_draws(1)}

    def act_draws(self) -> dict[str, Draw]:
        """Return the numbers that sample codes."""
        return {"noise": self.draws()["noise"]}

    def loss_weights(self, size: int, pads: Mapping[str, Any]) -> dict[str, float]:
        """The terms of both phases, over the chunks of the global batch; only those without padded
        actions where do_mask_loss_for_padding says so.
        """
        count = size * self.chunks
        if self.do_mask_loss_for_padding and pad_key(ACTION) in pads:
            count = max(
                1, int((~padded_chunks(pads[pad_key(ACTION)], self.action_chunk_size)).sum())
            )
        numbers = float(count * self.action_chunk_size * self.action.shape[0])
        return {
            "reconstruction_loss": numbers,
            "commitment_loss": float(count * self.vqvae_embedding_dim),
            "offset_loss": numbers,
            "decoded_error": numbers,
            **dict.fromkeys(("primary_code_loss", "secondary_code_loss"), float(count)),
            **dict.fromkeys(("primary_code_match", "secondary_code_match"), float(count)),
        }

    def without_downloads(self) -> Config:
        """Without ImageNet's backbone weights."""
        return dataclasses.replace(self, pretrained_backbone_weights=None)

    def validate_features(self) -> None:
        """Raise PolicyError unless there are one camera, the state, nothing else, and an action
        vector.
        """
        refuse_broken_rules(
            chain(
                self._input_rules(),
                vector_rules(self, "VQ-BeT"),
                self.crop_fits_rules(self.cameras),
            )
        )

    def _input_rules(self) -> Iterator[Rule]:
        cameras = list(self.cameras)
        pair = [*cameras[:1], STATE]
        kept = {key: encode(feature) for key, feature in self.input_features.items() if key in pair}
        yield (
            set(self.input_features) != set(pair) or not cameras,
            f"inputs of VQ-BeT: {', '.join(self.input_features) or 'none'}",
            f"one camera and '{STATE}', as in LeRobot: each observation is one token of either",
            f"--policy.input_features='{json.dumps(kept)}'"
            if len(kept) == INPUTS
            else "choose a dataset that has both, or another policy",
        )

    def loss_changes_after(self) -> int:
        """The first phase's length."""
        return self.n_vqvae_training_steps

    def validate_steps(self, steps: int) -> None:
        """Raise PolicyError when a run would end before the GPT is trained; a pretrained policy
        may have its codes.
        """
        refuse_broken_rules(
            [
                (
                    steps <= self.n_vqvae_training_steps and self.pretrained_path is None,
                    f"steps={steps} with "
                    f"policy.n_vqvae_training_steps={self.n_vqvae_training_steps}",
                    "the first n_vqvae_training_steps learn codes of actions, and only those "
                    "after them to act",
                    f"--policy.n_vqvae_training_steps={max(1, steps // 5)}, or more --steps",
                )
            ]
        )

    def scheduler_preset(self) -> VQBeTSchedulerConfig:
        """Constant for the codes, then warm-up and cosine for the GPT."""
        return VQBeTSchedulerConfig(
            num_warmup_steps=self.scheduler_warmup_steps,
            num_vqvae_training_steps=self.n_vqvae_training_steps,
            decay_to_zero=self.scheduler_decay_to_zero,
        )
