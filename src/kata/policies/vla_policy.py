"""Base classes of vision-language-action policies: inputs, acting from a queue, and the loss of
flow matching.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import Generic, TypeAlias, TypeVar

import torch
from torch import Tensor, nn

from kata.errors import PolicyError
from kata.nn.attention import KeysValues
from kata.nn.flow import beta_quantile
from kata.nn.real_time import Continued, Given, euler_from_noise, prefix_weights
from kata.policies.base import ActState, Loss, ParamGroup, Policy, Term, evaluating
from kata.policies.rtc import TRAINED
from kata.policies.vla import ChunkConfig, DenoisedConfig, FlowVlaConfig, SampledTimesConfig
from kata.spec import ACTION, ORIGIN, STATE, Batch, dim_pad_key, frozen_key, pad_key

Prefix = TypeVar("Prefix")
Steering: TypeAlias = tuple[Continued | None, Given | None]
"""Actions that a chunk is pulled towards, and actions that it begins with."""

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


def padded(vectors: Tensor, width: int) -> Tensor:
    """Return vectors (..., D) with zeros up to `width` numbers."""
    return nn.functional.pad(vectors, (0, width - vectors.shape[-1]))


def layers_as_features(layers: Sequence[KeysValues], valid: Tensor) -> dict[str, Tensor]:
    """Return keys and values of all layers, (B, layers, heads, P, D), and the mask of their tokens
    (B, P), as `Policy.frozen_features` gives them.
    """
    keys, values = (torch.stack(parts, dim=1) for parts in zip(*layers, strict=True))
    return {"keys": keys, "values": values, "valid": valid}


def layers_of_features(batch: Batch) -> tuple[list[KeysValues], Tensor] | None:
    """Return what `layers_as_features` was given, if the batch has it."""
    if frozen_key("keys") not in batch:
        return None
    pairs = zip(
        batch[frozen_key("keys")].unbind(1), batch[frozen_key("values")].unbind(1), strict=True
    )
    return [KeysValues(*pair) for pair in pairs], batch[frozen_key("valid")]


def images_of_features(batch: Batch) -> tuple[Tensor, Tensor] | None:
    """Return tokens of images (cameras * B, L, width) and which cameras samples have (B, cameras),
    if the batch has them.
    """
    kept = batch.get(frozen_key("images"))
    return None if kept is None else (kept.transpose(0, 1).flatten(0, 1), batch[frozen_key("seen")])


def images_as_features(tokens: Tensor, seen: Tensor) -> dict[str, Tensor]:
    """Return what `images_of_features` reads, (B, cameras, L, width) and (B, cameras)."""
    return {"images": tokens.unflatten(0, (-1, len(seen))).transpose(0, 1), "seen": seen}


def latest(value: Tensor, dims: int) -> Tensor:
    """Return the last observation step of a value that has `dims` axes without the time axis."""
    return value[:, -1] if value.ndim > dims else value


def sampled_times(config: SampledTimesConfig, share: Tensor) -> Tensor:
    """Return training times from uniform numbers, by the options `time_sampling_*`."""
    drawn = beta_quantile(share, config.time_sampling_beta_alpha, config.time_sampling_beta_beta)
    return config.time_sampling_offset + config.time_sampling_scale * drawn


class QueuePolicy(Policy):
    """A policy that acts from a queue of predicted actions."""

    def __init__(self, config: ChunkConfig) -> None:
        super().__init__()
        config.validate_features()
        self.config = config
        self.options = config

    @property
    def executed_steps(self) -> int:
        """Return how many actions are executed before the next prediction."""
        return self.options.n_action_steps

    def needs_observation(self, state: ActState) -> bool:
        """Return True if it is time for the next prediction."""
        return state.queue is None or state.memory["left"] == 0

    @torch.no_grad()
    def act(self, batch: Batch, state: ActState) -> tuple[Tensor, ActState]:
        """Return the next action of the queue; predict a new chunk each `n_action_steps` steps.

        The first actions of the last chunk that are left over are executed meanwhile, as many as
        the state's `inference_delay`. The robot waits for its first chunk.
        """
        queue, delay = state.queue, state.inference_delay
        left: int = state.memory.get("left", 0)
        seen: Batch = {}
        if queue is None or left == 0:
            drawn = state.drawn(self.config.act_draws())
            chunk = self.next_chunk(queue, delay, batch, drawn)
            queue = chunk if queue is None else torch.cat((queue[:, :delay], chunk[:, delay:]), 1)
            left, seen = self.executed_steps, batch
        memory = {"left": left - 1, **self._origins(seen, state, queue.shape[1])}
        return queue[:, 0], ActState(queue[:, 1:], memory, inference_delay=delay)

    def _origins(self, batch: Batch, state: ActState, length: int) -> dict[str, Tensor]:
        """Return the states that queued actions are relative to, and that of the next one.

        Args:
            batch: what a chunk was predicted from, with ORIGIN if actions are relative; empty if
                none was predicted.
            state: before this step.
            length: of the queue, with the next action.
        """
        waiting: Tensor | None = state.memory.get("origins")
        if ORIGIN in batch:
            new = self.origins_in_chunk(batch[ORIGIN], length)
            kept = new[:, :0] if waiting is None else waiting[:, : state.inference_delay]
            waiting = torch.cat((kept, new[:, kept.shape[1] :]), 1)
        return {} if waiting is None else {ORIGIN: waiting[:, 0], "origins": waiting[:, 1:]}

    def origins_in_chunk(self, origin: Tensor, length: int) -> Tensor:
        """Return what the actions of a chunk are relative to, (B, length, D), from (B, D)."""
        return origin[:, None].expand(-1, length, -1)

    def next_chunk(
        self, queue: Tensor | None, delay: int, batch: Batch, drawn: dict[str, Tensor]
    ) -> Tensor:
        """Return the chunk that follows from an observation.

        Args:
            queue: actions of the last chunk that are left over, (B, L, A); None for none.
            delay: those of them that are executed before the new chunk is there.
            batch: the observation.
            drawn: random numbers for `predict_chunk`.
        """
        del queue, delay
        return self.predict_chunk(batch, **drawn)

    def present_cameras(self, batch: Batch) -> list[str]:
        """Return the cameras that the batch has, in the config's order; PolicyError without any."""
        present = [key for key in self.options.cameras if key in batch]
        if not present:
            raise PolicyError(
                f"a batch without any of {', '.join(self.options.cameras)}",
                rule=f"{self.config.type} sees at least one camera",
                remedy="give the policy the cameras that it was trained with",
            )
        return present

    def param_groups(self) -> list[ParamGroup]:
        """Return one group of all trainable parameters."""
        return [ParamGroup("main", [p for p in self.parameters() if p.requires_grad])]


class ContinuingPolicy(QueuePolicy):
    """A policy whose chunks may continue one that is still executed."""

    @torch.no_grad()
    def continued(
        self,
        batch: Batch,
        left_over: Tensor | None,
        inference_delay: int,
        *,
        noise: Tensor | None = None,
    ) -> Tensor:
        """Return a chunk of actions (B, T, A) that continues another.

        Args:
            batch: observations and tokens.
            left_over: actions of the last chunk (B, L, A) that had not been executed when this was
                observed; None or L = 0 for none.
            inference_delay: those of them that are executed before the new chunk is there.
            noise: see `predict_chunk`.
        """
        return self.chunk_after(batch, left_over, inference_delay, noise)

    @abstractmethod
    def chunk_after(
        self, batch: Batch, left_over: Tensor | None, delay: int, noise: Tensor | None
    ) -> Tensor:
        """Return a chunk that continues another; see `continued`."""


class VlaPolicy(QueuePolicy):
    """A policy that reads cameras in one pass of an image encoder, and a sentence."""

    @abstractmethod
    def fitted(self, images: Tensor) -> Tensor:
        """Return frames (B, 3, H, W) in [0, 1] in the size that the image encoder takes."""

    def camera_frames(self, batch: Batch) -> tuple[list[str], Tensor]:
        """Return the cameras that the batch has, and their frames in [-1, 1].

        Args:
            batch: cameras (B, 3, H, W), or (B, T, 3, H, W) of which the last step counts.

        Returns:
            Names in the config's order, and (cameras * B, 3, h, w) in the same order.
        """
        present = self.present_cameras(batch)
        frames = [self.fitted(latest(batch[key], 4)) * 2.0 - 1.0 for key in present]
        return present, torch.cat(frames)


class DenoisingPolicy(QueuePolicy, Generic[Prefix]):
    """A policy that encodes an observation once, and denoises a chunk of actions after it.

    A subclass gives `encode` and `velocity`. `Prefix` is what they share.
    """

    def __init__(self, config: DenoisedConfig) -> None:
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
            time: (B,), 1 for noise alone and 0 for none; (B, T) if `most_given` is above 0.
        """

    def trained_velocity(self, batch: Batch, noisy: Tensor, time: Tensor) -> Tensor:
        """Return the velocity in training. A subclass may compute it in one pass."""
        return self.velocity(self.encode(batch), noisy, time)

    def training_time(self, share: Tensor) -> Tensor:
        """Return times in (0, 1] from uniform numbers; most are near the noise at 1."""
        return 0.001 + 0.999 * beta_quantile(share, 1.5, 1.0)

    def forward(
        self,
        batch: Batch,
        *,
        noise: Tensor | None = None,
        time: Tensor | None = None,
        given: Tensor | None = None,
        **draws: Tensor,
    ) -> Loss:
        """Compute the sum of squared errors of the velocity.

        Args:
            batch: observations, tokens, and actions (B, T, A).
            noise: (B, T, max_action_dim), standard normal; None draws it.
            time: (B, 1), uniform in [0, 1); None draws it.
            given: (B, 1), uniform in [0, 1), for the number of actions that a chunk begins with, if
                `most_given` is above 0; None draws it.
            draws: ignored.
        """
        del draws
        # 1. Noisy actions at one time per sample. Actions that are given hold no noise.
        action = padded(batch[ACTION], self.options.max_action_dim)
        absent = self.absent_numbers(batch)
        if absent is not None:
            action = action.masked_fill(absent, 0.0)
        noise = torch.randn_like(action) if noise is None else noise
        share = torch.rand(len(action), 1, device=action.device) if time is None else time
        at = self.training_time(share)
        is_given = self._drawn_prefix(given, at, action.shape[1])
        if is_given is not None:
            at = torch.where(is_given, torch.zeros_like(at), at)
        noisy = at[..., None] * noise + (1 - at[..., None]) * action
        # 2. The error in float32, without given steps, padded steps and padded dimensions.
        told = at[:, 0] if is_given is None else at
        error = (noise - action - self.trained_velocity(batch, noisy, told)).square()
        if not self.options.trains_padded_dims:
            error = error[..., : batch[ACTION].shape[-1]]
        if is_given is not None:
            error = error * ~is_given[..., None]
        if pad_key(ACTION) in batch and not self.options.trains_padded_steps:
            error = error * ~batch[pad_key(ACTION)][..., None]
        if absent is not None:
            error = error * ~absent[..., : error.shape[-1]]
        name = "flow_matching_loss"
        return Loss({name: Term(error.sum())}, {name: error.detach().sum((1, 2))})

    def absent_numbers(self, batch: Batch) -> Tensor | None:
        """Return which numbers of actions a sample does not have, bool (B, 1 or T, D), up to
        `max_action_dim`; None for none. The loss does not count them.
        """
        if dim_pad_key(ACTION) not in batch:
            return None
        return padded(batch[dim_pad_key(ACTION)], self.options.max_action_dim)[:, None]

    def _drawn_prefix(self, share: Tensor | None, at: Tensor, steps: int) -> Tensor | None:
        """Return which actions of a training chunk are given, bool (B, T); None if none can be."""
        if not self.options.most_given:
            return None
        share = torch.rand_like(at) if share is None else share
        return torch.arange(steps, device=at.device) < self.options.given_actions(share)

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
        return self.denoised(batch, noise)

    def denoised(
        self,
        batch: Batch,
        noise: Tensor | None,
        steered: Callable[[Tensor], Steering] = lambda _: (None, None),
    ) -> Tensor:
        """Return a chunk of actions (B, T, A) from noise.

        Args:
            batch: observations and tokens.
            noise: (B, T, max_action_dim), standard normal; None draws from torch's stream.
            steered: gives, from the noise, what the chunk is pulled towards and begins with.
        """
        config = self.options
        with evaluating(self):
            prefix = self.encode(batch)
            if noise is None:
                state = batch[STATE]
                shape = (len(state), config.chunk_size, config.max_action_dim)
                noise = torch.randn(shape, device=state.device)
            guide, given = steered(noise)
            actions = euler_from_noise(
                lambda noisy, at: self.velocity(prefix, noisy, at),
                noise,
                self.integration_steps(),
                guide=guide,
                given=given,
            )
        return actions[..., : config.action.shape[0]]

    @abstractmethod
    def integration_steps(self) -> int:
        """Return the number of steps from noise to actions."""


class FlowVlaPolicy(DenoisingPolicy[Prefix], VlaPolicy, ContinuingPolicy):
    """A policy with a sentence, whose denoised chunks may continue another."""

    def __init__(self, config: FlowVlaConfig) -> None:
        super().__init__(config)
        self.options = config

    def chunk_after(
        self, batch: Batch, left_over: Tensor | None, delay: int, noise: Tensor | None
    ) -> Tensor:
        """Return a chunk that continues another by `rtc_config`."""
        return self.denoised(
            batch, noise, lambda drawn: self._continuation(left_over, delay, drawn)
        )

    def next_chunk(
        self, queue: Tensor | None, delay: int, batch: Batch, drawn: dict[str, Tensor]
    ) -> Tensor:
        """Return the next chunk, as a continuation of the queue if the options ask for it."""
        rtc = self.options.rtc_config
        if queue is None or rtc is None or not rtc.enabled:
            return self.predict_chunk(batch, **drawn)
        return self.continued(batch, queue, delay, **drawn)

    def _continuation(self, left_over: Tensor | None, delay: int, noise: Tensor) -> Steering:
        """Return the actions that a chunk is pulled towards, and those that it begins with."""
        rtc, steps = self.options.rtc_config, noise.shape[1]
        if rtc is None or not rtc.enabled or left_over is None or left_over.shape[1] == 0:
            return None, None
        length, dims = min(left_over.shape[1], steps), left_over.shape[2]
        actions = torch.zeros_like(noise)
        actions[:, :length, :dims] = left_over[:, :length]
        if rtc.mode == TRAINED:
            place = torch.arange(steps, device=noise.device)
            return None, Given(actions, (place < delay).expand(len(noise), -1))
        horizon = min(rtc.execution_horizon, left_over.shape[1])
        weights = prefix_weights(rtc.prefix_attention_schedule, delay, horizon, steps)
        return Continued(actions, weights.to(noise.device), rtc.max_guidance_weight), None
