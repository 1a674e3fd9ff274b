"""ACT: cases, and what LeRobot and kata compute for them. `peer` needs LeRobot, `own` needs
kata.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from checkpoint_cases import RELATIVE
from numbers_of import fill, tensor
from sides import (
    BATCH_SIZE,
    own_actions,
    own_features,
    own_gradients,
    peer_actions,
    peer_features,
    peer_gradients,
)
from torch import Tensor

ACT_STEPS = 6
"""Calls of `act` in a row, each with observations of its own."""

TINY: dict[str, Any] = {
    "dim_model": 32,
    "dim_feedforward": 32,
    "n_heads": 2,
    "chunk_size": 4,
    "n_action_steps": 2,
    "n_encoder_layers": 2,
    "n_vae_encoder_layers": 2,
    "latent_dim": 4,
    "dropout": 0.0,
    "pretrained_backbone_weights": None,
}

STATE, ENV, CAMERA = "observation.state", "observation.environment_state", "observation.images.top"


@dataclass(frozen=True)
class Case:
    """Input shapes by key, the action's width, and options."""

    inputs: dict[str, tuple[int, ...]] = field(
        default_factory=lambda: {STATE: (5,), CAMERA: (3, 64, 64)}
    )
    action_dim: int = 3
    options: dict[str, Any] = field(default_factory=dict)
    base: dict[str, Any] = field(default_factory=lambda: TINY)

    @property
    def config(self) -> dict[str, Any]:
        return {**self.base, **self.options}


GOLDEN: dict[str, Case] = {
    "tiny": Case(),
    "two_cameras": Case(
        {STATE: (5,), CAMERA: (3, 64, 64), "observation.images.wrist": (3, 32, 96)}
    ),
    "no_vae": Case(options={"use_vae": False}),
    "env_state": Case({STATE: (5,), ENV: (7,), CAMERA: (3, 64, 64)}),
    "no_camera": Case({STATE: (5,), ENV: (7,)}),
    "pre_norm": Case(options={"pre_norm": True}),
    "gelu": Case(options={"feedforward_activation": "gelu", "n_decoder_layers": 2}),
    "ensemble": Case(options={"temporal_ensemble_coeff": 0.01, "n_action_steps": 1}),
}

CHECKPOINT = Case({STATE: (5,), CAMERA: (3, 48, 64), "observation.images.wrist": (3, 64, 64)})
"""What a checkpoint is written of and acted from, both ways."""
VARIANTS = {"relative": Case(CHECKPOINT.inputs, options=RELATIVE)}
"""Another case, which kata alone writes."""

DEFAULT: dict[str, Any] = {"dropout": 0.0, "pretrained_backbone_weights": None}

LIVE: dict[str, Case] = {
    **GOLDEN,
    "dilated_resnet50": Case(
        options={"vision_backbone": "resnet50", "replace_final_stride_with_dilation": True}
    ),
    "default_96x96": Case({STATE: (14,), CAMERA: (3, 96, 96)}, 14, base=DEFAULT),
}

FIXED = ("vae_encoder_pos_enc",)
"""The position table follows from its size."""


def observation(case: Case, step: int) -> dict[str, Tensor]:
    """Normalised observations of one step for BATCH_SIZE rollouts."""
    return {
        key: tensor(f"{key} {step}", (BATCH_SIZE, *shape)) for key, shape in case.inputs.items()
    }


def batch(case: Case, chunk_size: int) -> dict[str, Tensor]:
    """A training batch; the chunks of all but the first sample reach over the episode's end."""
    lengths = torch.tensor([chunk_size, max(1, chunk_size // 2), 1])[:, None]
    return {
        **observation(case, 0),
        "action": tensor("action", (BATCH_SIZE, chunk_size, case.action_dim)),
        "action_is_pad": torch.arange(chunk_size)[None] >= lengths,
    }


def steady() -> AbstractContextManager[None]:
    """Both sides act alike inside: ACT draws nothing when it acts."""
    return nullcontext()


def noise(latent_dim: int) -> Tensor:
    """The latent's noise."""
    return 1.7 * tensor("noise", (BATCH_SIZE, latent_dim))


def build_peer(case: Case) -> Any:
    """LeRobot's policy of a case, with the weights of the formula, in training mode."""
    from lerobot.policies.act.configuration_act import ACTConfig
    from lerobot.policies.act.modeling_act import ACTPolicy

    config = ACTConfig(
        device="cpu",
        **peer_features(case.inputs, case.action_dim),
        **case.config,
    )
    policy = ACTPolicy(config)
    fill(policy, FIXED)
    return policy.train()


def peer(case: Case) -> dict[str, Tensor]:
    policy = build_peer(case)
    given = batch(case, policy.config.chunk_size)
    with mock.patch("torch.randn_like", lambda mean: noise(policy.config.latent_dim).to(mean)):
        loss, terms = policy(given)
    loss.backward()
    out = {name: torch.tensor(value, dtype=torch.float64) for name, value in terms.items()}
    out["loss"] = loss.detach()
    out.update(peer_gradients(policy))
    policy.eval()
    with torch.no_grad():
        out["eval_loss"] = policy(given)[0]
    out["chunk"] = policy.predict_action_chunk(observation(case, 0))
    policy.reset()
    out["actions"] = peer_actions(policy, functools.partial(observation, case), ACT_STEPS)
    return out


def build_own(case: Case) -> Any:
    """kata's policy of a case, with the weights of the formula, in training mode."""
    from kata.policies.act.config import Config
    from kata.policies.act.model import Policy

    config = Config(
        **own_features(case.inputs, case.action_dim),
        **case.config,
    )
    policy = Policy(config)
    fill(policy, FIXED)
    return policy.train()


def losses(policy: Any, given: dict[str, Tensor], start: Tensor | None) -> dict[str, Tensor]:
    """The loss and its terms as means over the batch."""
    counts = policy.config.loss_weights(
        BATCH_SIZE, {"action_is_pad": given["action_is_pad"].numpy()}
    )
    terms = policy(given, noise=start).terms
    out = {name: term.total / counts[name] for name, term in terms.items()}
    out["loss"] = sum((terms[name].scale * mean for name, mean in out.items()), torch.zeros(()))
    return out


def own(case: Case) -> dict[str, Tensor]:
    policy = build_own(case)
    given = batch(case, policy.config.chunk_size)
    out = losses(policy, given, noise(policy.config.latent_dim))
    out["loss"].backward()
    out.update(own_gradients(policy))
    policy.eval()
    with torch.no_grad():
        out["eval_loss"] = losses(policy, given, None)["loss"]
    out["chunk"] = policy.predict_chunk(observation(case, 0))
    out["actions"] = own_actions(policy, functools.partial(observation, case), ACT_STEPS)
    return {name: value.detach() for name, value in out.items()}
