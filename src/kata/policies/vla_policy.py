"""Base classes of vision-language-action policies: inputs, acting from a queue, and the loss of
flow matching.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Generic, TypeVar

import torch
from torch import Tensor, nn

from kata.errors import PolicyError
from kata.nn.flow import beta_quantile, euler_from_noise
from kata.policies.base import ActState, Loss, ParamGroup, Policy, Term, evaluating
from kata.policies.vla import FlowVlaConfig, VlaConfig
from kata.spec import ACTION, STATE, Batch, dim_pad_key, pad_key

Prefix = TypeVar("Prefix")

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def padded(vectors: Tensor, width: int) -> Tensor:
    """Return vectors (..., D) with zeros up to `width` numbers."""
    return nn.functional.pad(vectors, (0, width - vectors.shape[-1]))


def latest(value: Tensor, dims: int) -> Tensor:
    """Return the last observation step of a value that has `dims` axes without the time axis."""
    return value[:, -1] if value.ndim > dims else value


class VlaPolicy(Policy):
    """A policy that reads cameras and a sentence, and acts from a queue of predicted actions."""

    def __init__(self, config: VlaConfig) -> None:
        super().__init__()
        config.validate_features()
        self.config = config
        self.options = config

    @abstractmethod
    def fitted(self, images: Tensor) -> Tensor:
        """Return frames (B, 3, H, W) in [0, 1] in the size that the image encoder takes."""

    def camera_frames(self, batch: Batch) -> tuple[list[str], Tensor]:
        """Return the cameras that the batch has, and their frames in [-1, 1].

        Args:
            batch: cameras (B, 3, H, W), or (B, T, 3, H, W) of which the last step counts.

        Returns:
            Names in the config's order, and (cameras * B, 3, h, w) in the same order.

        Raises:
            PolicyError: there is no camera.
        """
        present = [key for key in self.options.cameras if key in batch]
        if not present:
            raise PolicyError(
                f"a batch without any of {', '.join(self.options.cameras)}",
                rule=f"{self.config.type} sees at least one camera",
                remedy="give the policy the cameras that it was trained with",
            )
        frames = [self.fitted(latest(batch[key], 4)) * 2.0 - 1.0 for key in present]
        return present, torch.cat(frames)

    def needs_observation(self, state: ActState) -> bool:
        """Return True if the queue of actions is empty."""
        return state.queue is None or state.queue.shape[1] == 0

    @torch.no_grad()
    def act(self, batch: Batch, state: ActState) -> tuple[Tensor, ActState]:
        """Return the next action of the queue; predict a new chunk if the queue is empty."""
        queue = state.queue
        if queue is None or self.needs_observation(state):
            given = state.drawn(self.config.act_draws())
            queue = self.predict_chunk(batch, **given)[:, : self.options.n_action_steps]
        return queue[:, 0], ActState(queue[:, 1:])

    def param_groups(self) -> list[ParamGroup]:
        """Return one group of all trainable parameters."""
        return [ParamGroup("main", [p for p in self.parameters() if p.requires_grad])]


class FlowVlaPolicy(VlaPolicy, Generic[Prefix]):
    """A policy that encodes an observation once, and denoises a chunk of actions after it.

    A subclass gives `encode` and `velocity`. `Prefix` is what they share.
    """

    def __init__(self, config: FlowVlaConfig) -> None:
        super().__init__(config)
        self.options = config

    @abstractmethod
    def encode(self, batch: Batch) -> Prefix:
        """Return what the network keeps of cameras, sentence and state."""

    @abstractmethod
    def velocity(self, prefix: Prefix, noisy: Tensor, time: Tensor) -> Tensor:
        """Return the velocity towards the noise, float32 (B, T, max_action_dim).

        Args:
            prefix: the encoded observation.
            noisy: actions with noise (B, T, max_action_dim).
            time: (B,), 1 for noise alone and 0 for none.
        """

    def training_time(self, share: Tensor) -> Tensor:
        """Return times in (0, 1] from uniform numbers; most are near the noise at 1."""
        return 0.001 + 0.999 * beta_quantile(share, 1.5, 1.0)

    def forward(
        self,
        batch: Batch,
        *,
        noise: Tensor | None = None,
        time: Tensor | None = None,
        **draws: Tensor,
    ) -> Loss:
        """Compute the sum of squared errors of the velocity.

        Args:
            batch: observations, tokens, and actions (B, T, A).
            noise: (B, T, max_action_dim), standard normal; None draws it.
            time: (B, 1), uniform in [0, 1); None draws it.
            draws: ignored.
        """
        del draws
        # 1. Noisy actions at one time per sample.
        action = padded(batch[ACTION], self.options.max_action_dim)
        noise = torch.randn_like(action) if noise is None else noise
        share = torch.rand(len(action), 1, device=action.device) if time is None else time
        at = self.training_time(share[:, 0])
        noisy = at[:, None, None] * noise + (1 - at[:, None, None]) * action
        # 2. The error in float32, without padded steps and dimensions.
        given = self.velocity(self.encode(batch), noisy, at)
        error = (noise - action - given).square()[..., : batch[ACTION].shape[-1]]
        if pad_key(ACTION) in batch and not self.options.trains_padded_steps:
            error = error * ~batch[pad_key(ACTION)][..., None]
        if dim_pad_key(ACTION) in batch:
            error = error * ~batch[dim_pad_key(ACTION)][:, None]
        name = "flow_matching_loss"
        return Loss({name: Term(error.sum())}, {name: error.detach().sum((1, 2))})

    @torch.no_grad()
    def predict_chunk(
        self, batch: Batch, *, noise: Tensor | None = None, **draws: Tensor
    ) -> Tensor:
        """Return a chunk of actions (B, T, A).

        Args:
            batch: observations and tokens.
            noise: (B, T, max_action_dim), standard normal; None draws from torch's stream.
            draws: ignored.
        """
        del draws
        config = self.options
        with evaluating(self):
            prefix = self.encode(batch)
            if noise is None:
                state = batch[STATE]
                shape = (len(state), config.chunk_size, config.max_action_dim)
                noise = torch.randn(shape, device=state.device)
            actions = euler_from_noise(
                lambda noisy, at: self.velocity(prefix, noisy, at), noise, self.integration_steps()
            )
        return actions[..., : config.action.shape[0]]

    @abstractmethod
    def integration_steps(self) -> int:
        """Return the number of steps from noise to actions."""
