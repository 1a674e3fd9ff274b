"""The ACT configurations on which kata is compared with LeRobot, and the numbers that go in.

Weights, batches and noise follow from their names (numpy's RandomState, whose streams never change), so that
golden files hold results only.
"""

from __future__ import annotations

import functools
import zlib
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

BATCH_SIZE = 3
ACT_STEPS = 6
"""Calls of `act` in a row, each with observations of its own."""

PROBES = (0.37, 1.13, 2.29, 2.91)
"""Frequencies of the cosines that a gradient is projected on."""

SMALL = 128
"""Gradients of at most this many numbers are kept whole."""

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
    """One configuration: input shapes by key, the action's width, and ACT's options."""

    inputs: dict[str, tuple[int, ...]] = field(default_factory=lambda: {STATE: (5,), CAMERA: (3, 64, 64)})
    action_dim: int = 3
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        """ACT's options for a tiny model."""
        return {**TINY, **self.options}


GOLDEN: dict[str, Case] = {
    "tiny": Case(),
    "two_cameras": Case({STATE: (5,), CAMERA: (3, 64, 64), "observation.images.wrist": (3, 32, 96)}),
    "no_vae": Case(options={"use_vae": False}),
    "env_state": Case({STATE: (5,), ENV: (7,), CAMERA: (3, 64, 64)}),
    "no_camera": Case({STATE: (5,), ENV: (7,)}),
    "pre_norm": Case(options={"pre_norm": True}),
    "gelu": Case(options={"feedforward_activation": "gelu", "n_decoder_layers": 2}),
    "ensemble": Case(options={"temporal_ensemble_coeff": 0.01, "n_action_steps": 1}),
}

CHECKPOINT = Case({STATE: (5,), CAMERA: (3, 48, 64), "observation.images.wrist": (3, 64, 64)})
"""What a checkpoint is written of and acted from, both ways."""

DEFAULT: dict[str, Any] = {"dropout": 0.0, "pretrained_backbone_weights": None}

LIVE: dict[str, tuple[Case, dict[str, Any]]] = {
    **{name: (case, case.config) for name, case in GOLDEN.items()},
    "dilated_resnet50": (
        Case(),
        {**TINY, "vision_backbone": "resnet50", "replace_final_stride_with_dilation": True},
    ),
    "default_96x96": (Case({STATE: (14,), CAMERA: (3, 96, 96)}, 14), DEFAULT),
}
"""What is compared element by element where LeRobot is at hand: cases with all of their options."""


def numbers(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Numbers in [-1, 1) that depend on the name and the shape alone."""
    stream = np.random.RandomState(zlib.crc32(name.encode()))
    return (2 * stream.random_sample(shape) - 1).astype(np.float32)


@functools.cache
def weight(name: str, shape: tuple[int, ...]) -> Tensor:
    """The weight called `name` (LeRobot's name), of a size that keeps activations near one."""
    values = torch.from_numpy(numbers(name, shape))
    if name.endswith("running_var"):
        return 1 + 0.5 * values
    if len(shape) == 1:
        if not name.endswith("weight"):
            return 0.1 * values
        return (0.4 if "bn2" in name or "bn3" in name else 1.0) + 0.2 * values
    fan_in = int(np.prod(shape[1:]))
    return values * (3 * (2 if len(shape) == 4 else 1) / fan_in) ** 0.5


def fill(policy: nn.Module) -> None:
    """Give every tensor of a policy with LeRobot's names its weight; the fixed position table stays."""
    state = policy.state_dict()
    for name, tensor in state.items():
        if not name.endswith("vae_encoder_pos_enc"):
            tensor.copy_(weight(name, tuple(tensor.shape)))


def observation(case: Case, step: int) -> dict[str, Tensor]:
    """Normalised observations of one step for BATCH_SIZE rollouts."""
    return {key: torch.from_numpy(numbers(f"{key} {step}", (BATCH_SIZE, *shape))) for key, shape in case.inputs.items()}


def batch(case: Case, chunk_size: int) -> dict[str, Tensor]:
    """A training batch; the chunks of all but the first sample reach over the episode's end."""
    lengths = torch.tensor([chunk_size, max(1, chunk_size // 2), 1])[:, None]
    action = numbers("action", (BATCH_SIZE, chunk_size, case.action_dim))
    return {
        **observation(case, 0),
        "action": torch.from_numpy(action),
        "action_is_pad": torch.arange(chunk_size)[None] >= lengths,
    }


def build_peer(case: Case) -> Any:
    """LeRobot's policy of a case, with the weights of the formula."""
    import golden_act

    return golden_act.build(case, case.config)


def build_own(case: Case) -> Any:
    """kata's policy of a case, with the weights of the formula."""
    import kata_act

    return kata_act.build(case, case.config)


def steady() -> AbstractContextManager[None]:
    """Both sides act alike inside: ACT draws nothing when it acts."""
    return nullcontext()


def noise(latent_dim: int) -> Tensor:
    """The latent's noise."""
    return torch.from_numpy(1.7 * numbers("noise", (BATCH_SIZE, latent_dim)))


@functools.cache
def _probes(size: int) -> Tensor:
    return torch.cos(torch.arange(size, dtype=torch.float64)[None] * torch.tensor(PROBES).double()[:, None])


def gradient_summary(gradient: Tensor) -> Tensor:
    """Norm and projections of a gradient, float64 (1 + len(PROBES),)."""
    flat = gradient.detach().double().flatten()
    probes = _probes(flat.numel())
    return torch.cat([flat.norm()[None], probes @ flat / probes.norm(dim=1)])
