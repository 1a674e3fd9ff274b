"""Diffusion: cases, and what LeRobot and kata compute for them. `peer` needs LeRobot, `own`
needs kata.
"""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import torch
from checkpoint_cases import RELATIVE
from numbers_of import drawn, fill, tensor
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

ACT_STEPS = 5
STATE, ENV, CAMERA, WRIST = (
    "observation.state", "observation.environment_state", "observation.images.top", "observation.images.wrist",  # noqa: E501
)  # fmt: skip
FIXED = ("pos_grid",)

TINY: dict[str, Any] = {
    "down_dims": (16, 32),
    "horizon": 8,
    "n_action_steps": 4,
    "n_groups": 4,
    "diffusion_step_embed_dim": 8,
    "num_train_timesteps": 10,
    "spatial_softmax_num_keypoints": 4,
    "pretrained_backbone_weights": None,
    "drop_n_last_frames": 7,
}


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


OLD = {"use_group_norm": True, "use_separate_rgb_encoder_per_camera": False, "crop_shape": (40, 48)}

GOLDEN: dict[str, Case] = {
    "tiny": Case(),
    "random_crop": Case({STATE: (5,), CAMERA: (3, 64, 64), WRIST: (3, 64, 64)}, options={"crop_shape": (48, 40)}),  # noqa: E501
    "as_before_0_6": Case({STATE: (5,), CAMERA: (3, 64, 64), WRIST: (3, 64, 64)}, options=OLD),
    "env_state": Case({STATE: (5,), ENV: (7,)}, options={"n_obs_steps": 3, "use_film_scale_modulation": False}),  # noqa: E501
    "masked_ddim": Case(
        options={
            "do_mask_loss_for_padding": True, "noise_scheduler_type": "DDIM", "num_inference_steps": 5,  # noqa: E501
            "resize_shape": (56, 50), "crop_ratio": 0.8, "crop_is_random": False,
        }
    ),
    "predicts_sample": Case(
        {STATE: (5,), ENV: (7,)},
        options={
            "prediction_type": "sample", "clip_sample": False, "beta_schedule": "linear", "num_inference_steps": 5,  # noqa: E501
        },
    ),
}  # fmt: skip

CHECKPOINT = Case(options={"num_inference_steps": 5, "crop_shape": (56, 50)})
"""What a checkpoint is written of and acted from, both ways."""
VARIANTS = {"relative": Case(options={**CHECKPOINT.options, **RELATIVE})}
"""Another case, which kata alone writes."""

DEFAULT = {"pretrained_backbone_weights": None, "drop_n_last_frames": 7, "num_inference_steps": 5}
LIVE: dict[str, Case] = {
    **GOLDEN,
    "default_96x96": Case({STATE: (2,), CAMERA: (3, 96, 96)}, 2, base=DEFAULT),
}


def observation(case: Case, step: int) -> dict[str, Tensor]:
    return {
        key: tensor(f"{key} {step}", (BATCH_SIZE, *shape)) for key, shape in case.inputs.items()
    }


def batch(case: Case, config: Any) -> dict[str, Tensor]:
    """A training batch; the actions of all but the first sample reach over the episode's end."""
    lengths = torch.tensor([config.horizon, max(1, config.horizon // 2), 1])[:, None]
    steps = [observation(case, step) for step in range(config.n_obs_steps)]
    return {
        **{key: torch.stack([step[key] for step in steps], 1) for key in case.inputs},
        "action": tensor("action", (BATCH_SIZE, config.horizon, case.action_dim)),
        "action_is_pad": torch.arange(config.horizon)[None] >= lengths,
    }


def noise(config: Any, case: Case) -> Tensor:
    return 1.7 * tensor("noise", (BATCH_SIZE, config.horizon, case.action_dim))


def steady() -> AbstractContextManager[None]:
    """Both sides act alike inside."""
    return drawn("checkpoint")


TIMES = (0.15, 0.55, 0.97)
PLACE = (0.3, 0.8)
"""The crop lies there, as a share of the way, rows first."""


def build_peer(case: Case) -> Any:
    """LeRobot's policy of a case, with the weights of the formula."""
    from lerobot.policies.diffusion.configuration_diffusion import DiffusionConfig
    from lerobot.policies.diffusion.modeling_diffusion import DiffusionPolicy

    config = DiffusionConfig(
        device="cpu",
        **peer_features(case.inputs, case.action_dim),
        **case.config,
    )
    policy = DiffusionPolicy(config)
    fill(policy, FIXED)
    return policy


def peer(case: Case) -> dict[str, Tensor]:
    policy = build_peer(case)
    config = policy.config
    given = batch(case, config)
    times = torch.tensor([int(t * config.num_train_timesteps) for t in TIMES])

    def place(image: Tensor, size: tuple[int, int]) -> tuple[int, int, int, int]:
        top, left = (
            int(share * (whole - part + 1))
            for share, whole, part in zip(PLACE, image.shape[-2:], size, strict=True)
        )
        return top, left, *size

    patches = (
        mock.patch("torch.randn", return_value=noise(config, case)),
        mock.patch("torch.randint", return_value=times),
        mock.patch("torchvision.transforms.RandomCrop.get_params", staticmethod(place)),
    )
    policy.train()
    with patches[0], patches[1], patches[2]:
        loss = policy.forward(dict(given))[0]
        loss.backward()
        out = {"loss": loss.detach(), **peer_gradients(policy)}
        policy.eval()
        with torch.no_grad():
            out["eval_loss"] = policy.forward(dict(given))[0]
    seen = {key: given[key] for key in case.inputs}
    policy.reset()
    with drawn("chunk"):
        out["chunk"] = policy.predict_action_chunk(dict(seen), noise=noise(config, case))
    policy.reset()
    with drawn("act"):
        out["actions"] = peer_actions(policy, functools.partial(observation, case), ACT_STEPS)
    return out


def build_own(case: Case) -> Any:
    """kata's policy of a case, with the weights of the formula."""
    from kata.policies.diffusion.config import Config
    from kata.policies.diffusion.model import Policy

    config = Config(
        **own_features(case.inputs, case.action_dim),
        **case.config,
    )
    policy = Policy(config)
    fill(policy, FIXED)
    return policy


def own(case: Case) -> dict[str, Tensor]:
    policy = build_own(case)
    config = policy.config
    given = batch(case, config)
    draws = {
        "noise": noise(config, case),
        "time": torch.tensor(TIMES)[:, None],
        "crop": torch.tensor(PLACE).expand(BATCH_SIZE, max(1, len(config.cameras)), 2),
    }
    count = config.loss_weights(BATCH_SIZE, {"action_is_pad": given["action_is_pad"].numpy()})[
        "denoising_loss"
    ]
    policy.train()
    loss = policy(given, **draws).terms["denoising_loss"].total / count
    loss.backward()
    out = {"loss": loss.detach(), **own_gradients(policy)}
    policy.eval()
    with torch.no_grad():
        out["eval_loss"] = policy(given, **draws).terms["denoising_loss"].total / count
    with drawn("chunk"):
        out["chunk"] = policy.predict_chunk(
            {key: given[key] for key in case.inputs}, noise=draws["noise"]
        )
    with drawn("act"):
        out["actions"] = own_actions(policy, functools.partial(observation, case), ACT_STEPS)
    return out
