"""The interface that every policy implements, beside its config.

Model files import torch and never torch.distributed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Self

import torch
from torch import Tensor, nn

from kata.errors import PolicyError
from kata.policies.config import PolicyConfig
from kata.policies.denoising import DenoisingConfig
from kata.processors.pipeline import Pipeline
from kata.spec import ACTION, ORIGIN, Batch, Draw, pad_key


class Term(NamedTuple):
    """A summand of a loss. The loss adds `scale * total / count over the global batch`.

    Attributes:
        total: device scalar, the sum over this micro-batch.
        scale: a constant factor, such as the weight of a KL term.
    """

    total: Tensor
    scale: float = 1.0


class Loss(NamedTuple):
    """Sums by term name. They are never means: means per rank would make the result depend on the
    split.

    Attributes:
        terms: sums over the micro-batch. `PolicyConfig.loss_weights` gives their denominators
            over the global batch.
        detail: each sample's part of a term's sum, (B,), by term name. It is empty if a policy
            cannot separate samples.
    """

    terms: dict[str, Term]
    detail: dict[str, Tensor]


@dataclass(frozen=True)
class ParamGroup:
    """Parameters that share options.

    None for `lr` or `weight_decay` means the optimizer's value, times `lr_scale` or `decay_scale`.
    """

    name: str
    params: list[nn.Parameter]
    lr: float | None = None
    weight_decay: float | None = None
    lr_scale: float = 1.0
    decay_scale: float = 1.0


Source = Callable[[str, Draw], Tensor]
"""Random numbers (B, *shape) by name and kind."""


@dataclass
class ActState:
    """The state of acting between steps. It is kept outside the module, so that each batch of
    rollouts has its own.

    Attributes:
        queue: predicted actions (B, T, A) that have not been executed yet, or None.
        memory: other state of a policy, by name.
        source: gives the random numbers of the next call of `act`. The caller sets it for each
            call; None draws from torch's stream.
        inference_delay: steps that pass from an observation to the chunk that follows from it. The
            caller sets it at the beginning, where `PolicyConfig.refuse_delay` allows it.
    """

    queue: Tensor | None = None
    memory: dict[str, Any] = field(default_factory=dict)
    source: Source | None = None
    inference_delay: int = 0

    def drawn(self, wanted: Mapping[str, Draw]) -> dict[str, Tensor]:
        """Return random numbers by name; empty if they come from torch's stream."""
        return (
            {}
            if self.source is None
            else {name: self.source(name, draw) for name, draw in wanted.items()}
        )


@dataclass(frozen=True)
class KeyMap:
    """An adapter between the names in a policy's state dict and LeRobot's names. It is bijective.

    Attributes:
        prefixes: pairs (own prefix, LeRobot prefix), longest first. A name without such a
            prefix is the same in both.
        aliases: LeRobot names of tied tensors, which a file stores once.
        stand_ins: LeRobot names, and the tensor that is read in place of one that a file lacks.
        passthrough: LeRobot tensors that are kept in files but not used.
        constants: LeRobot tensors that follow from the config. They are made on saving and
            ignored on loading.
        old_names: beginnings of names in older files, and what stands in their place today.
        modern: turns the tensors of an older file into those of today, where their names and shapes
            follow other rules; None leaves them.
    """

    prefixes: tuple[tuple[str, str], ...] = ()
    aliases: dict[str, str] = field(default_factory=dict)
    stand_ins: dict[str, str] = field(default_factory=dict)
    passthrough: tuple[str, ...] = ()
    constants: dict[str, Callable[[], Tensor]] = field(default_factory=dict)
    old_names: tuple[tuple[str, str], ...] = ()
    modern: Callable[[Mapping[str, Tensor]], dict[str, Tensor]] | None = None

    def to_lerobot(self, name: str) -> str:
        """Return LeRobot's name of a tensor."""
        for own, other in self.prefixes:
            if name.startswith(own):
                return other + name[len(own) :]
        return name

    def current(self, stored: str) -> str:
        """Return the name that LeRobot gives today to a tensor of a file."""
        for old, new in self.old_names:
            if stored.startswith(old):
                return new + stored[len(old) :]
        return stored

    def from_lerobot(self, name: str) -> str:
        """Return the name in the policy's state dict of a LeRobot tensor."""
        for own, other in self.prefixes:
            if name.startswith(other):
                return own + name[len(other) :]
        return name


@dataclass(frozen=True)
class Reference:
    """The checkpoint that a policy's frozen tensors come from.

    Attributes:
        path: a folder, or a name on the Hub.
        revision: of the Hub's repository, or None.
        sha256: digest of its weights.
        names: the policy's names of the tensors that are its, and never change.
    """

    path: str
    revision: str | None
    sha256: str
    names: frozenset[str] = frozenset()


class Policy(nn.Module, ABC):
    """Base class of policies.

    Batches are on the device and normalized. Cameras are float (B, C, H, W) or (B, T, C, H, W).
    """

    config: PolicyConfig
    reference: Reference | None = None
    """The base of the tensors that never change, if checkpoints leave them out."""
    runs_together: bool = False
    """True if its weights are in shards: all ranks must call each unit equally often, whatever
    their data say.
    """

    @abstractmethod
    def forward(self, batch: Batch, **draws: Tensor) -> Loss:
        """Compute the loss of a micro-batch.

        Args:
            batch: tensors by key, batch axis first.
            draws: random numbers (B, *shape) by the names of `config.draws()`.

        Returns:
            Sums, not means (see `Loss`).
        """

    def init_state(self, batch_size: int) -> ActState:
        """Return a new acting state for `batch_size` rollouts."""
        del batch_size
        return ActState()

    @abstractmethod
    def predict_chunk(self, batch: Batch, **draws: Tensor) -> Tensor:
        """Predict a chunk of actions.

        Args:
            batch: observations by key, batch axis first.
            draws: random numbers by the names of `config.act_draws()`. The policy draws those
                that are absent, and ignores others.

        Returns:
            Normalized actions, float (B, T, A).
        """

    @abstractmethod
    def act(self, batch: Batch, state: ActState) -> tuple[Tensor, ActState]:
        """Return the next action, normalized float (B, A), and the state for the next step."""

    def use_pipeline(self, before: Pipeline) -> None:
        """Take from the steps before the policy what acting needs, such as tokenizers."""
        del before

    def needs_observation(self, state: ActState) -> bool:
        """Return True if the next call of `act` reads the observation.

        If not, the caller need not prepare images and sentences, and may pass an empty batch.
        """
        del state
        return True

    def frozen_features(self, batch: Batch, kind: str) -> dict[str, Tensor]:
        """Return what the frozen part makes of a batch, of a kind of `config.frozen_features()`.

        They depend on a sample and on frozen weights alone, so that a cache may keep them.
        `forward` takes each from `frozen_key(name)` of a batch that has it, and does not compute
        it.

        Args:
            batch: as `forward` gets it.
            kind: 'prefix' or 'vision'.

        Returns:
            Tensors without a graph by name, (B, ...), whose shapes and types do not depend on the
            batch.

        Raises:
            PolicyError: the policy has no features of this kind.
        """
        kinds = ", ".join(self.config.frozen_features()) or "none"
        raise PolicyError(
            f"{self.config.type}: no frozen features of kind {kind}",
            rule=f"kinds of features that this policy has: {kinds}",
            remedy="--dataset.cache=disk, which keeps decoded frames",
        )

    @abstractmethod
    def param_groups(self) -> list[ParamGroup]:
        """Return all trainable parameters, each in exactly one group."""

    def step_sums(self) -> list[Tensor]:
        """Return sums that `forward` accumulated since the last `after_step`; ranks add theirs in
        place.
        """
        return []

    def after_step(self, step: int, bad: Tensor) -> dict[str, Tensor]:
        """Update what follows the optimizer step, such as target networks.

        Args:
            step: updates done, including this one.
            bad: bool scalar on the device. If it is True, the update was skipped, and nothing
                may change here.

        Returns:
            Device scalars for the log, by name.
        """
        del step, bad
        return {}

    def moves_weights(self) -> bool:
        """Return True if `after_step` changes weights or buffers."""
        return type(self).after_step is not Policy.after_step

    def preflight_rows(self) -> list[tuple[str, str]]:
        """Return rows for the table before step 1 that only this policy has, (name, value)."""
        return []

    @abstractmethod
    def shard_units(self) -> list[nn.Module]:
        """Return modules to shard one by one. The policy calls the `forward` of each."""

    def recompute_units(self) -> list[nn.Module]:
        """Return modules for activation checkpointing: their activations may be recomputed."""
        return self.shard_units()

    def frozen(self) -> list[nn.Parameter]:
        """Return parameters that are never trained."""
        return [p for p in self.parameters() if not p.requires_grad]

    def frozen_modules(self) -> list[nn.Module]:
        """Return modules whose weights never change. They stay in eval mode, and the EMA shares
        them.
        """
        return []

    def train(self, mode: bool = True) -> Self:
        """Set training mode, in which frozen modules stay in eval mode."""
        super().train(mode)
        for module in self.frozen_modules():
            module.eval()
        return self

    @abstractmethod
    def key_map(self) -> KeyMap:
        """Return the adapter between the state dict's names and LeRobot's."""


@contextmanager
def evaluating(policy: nn.Module) -> Generator[None]:
    """Set eval mode inside the block, and restore the mode after it."""
    training = policy.training
    policy.eval()
    try:
        yield
    finally:
        policy.train(training)


def remember(state: ActState, batch: Batch, keys: Iterable[str], steps: int) -> dict[str, Tensor]:
    """Return the last `steps` observations (B, steps, ...) of each key.

    Args:
        state: its `memory["history"]` holds the observations before this step.
        batch: the new observations, (B, ...).
        keys: keys to remember.
        steps: length of the history. The first observation is repeated until enough have
            arrived.

    Returns:
        Observations by key, for the `memory["history"]` of the next state.
    """
    past: dict[str, Tensor] = state.memory.get("history", {})
    seen: dict[str, Tensor] = {}
    for key in keys:
        new = batch[key].unsqueeze(1)
        seen[key] = (
            torch.cat((past[key][:, 1:], new), 1)
            if key in past
            else new.expand(-1, steps, *new.shape[2:])
        )
    return seen


def chunk_origin(state: ActState, batch: Batch, *, is_new: bool) -> dict[str, Tensor]:
    """Return the state that the next action is relative to, for the memory of the next state.

    Args:
        state: before this step.
        batch: the observation; it has ORIGIN if actions are relative.
        is_new: True if the chunk of the next action was predicted from the batch.
    """
    origin = batch.get(ORIGIN) if is_new else state.memory.get(ORIGIN)
    return {} if origin is None else {ORIGIN: origin}


class ChunkPolicy(Policy):
    """A policy that predicts a chunk of actions from a history of observations."""

    condition_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of the batch that condition the prediction, in addition to the history."""

    @torch.no_grad()
    def act(self, batch: Batch, state: ActState) -> tuple[Tensor, ActState]:
        """Return the next action of the queue; predict a new chunk if the queue is empty."""
        seen = remember(state, batch, self.config.input_features, self.config.n_obs_steps)
        queue = state.queue
        is_new = queue is None or queue.shape[1] == 0
        if queue is None or is_new:
            condition = {key: batch[key] for key in self.condition_keys}
            given = state.drawn(self.config.act_draws())
            queue = self.predict_chunk({**seen, **condition}, **given)
        memory = {"history": seen, **chunk_origin(state, batch, is_new=is_new)}
        return queue[:, 0], ActState(queue[:, 1:], memory)


class DenoisedChunkPolicy(ChunkPolicy):
    """A policy whose chunk begins with the oldest observation, and is predicted from noise."""

    @abstractmethod
    def condition(self, batch: Batch) -> Tensor:
        """Return the encoded observations (B, width), for acting."""

    @abstractmethod
    def denoised(self, condition: Tensor, noise: Tensor, later: Tensor | None) -> Tensor:
        """Return the chunk (B, horizon, A) that noise of the same shape becomes.

        Args:
            condition: see `condition`; observations are encoded once, whatever the steps.
            noise: standard normal.
            later: see `predict_chunk`.
        """

    @torch.no_grad()
    def predict_chunk(
        self,
        batch: Batch,
        *,
        noise: Tensor | None = None,
        later: Tensor | None = None,
        **draws: Tensor,
    ) -> Tensor:
        """Return actions (B, n_action_steps, A) from the latest observation on.

        Args:
            batch: observations (B, n_obs_steps, ...), and tokens if the policy reads a sentence.
            noise: what is denoised (B, horizon, A); None draws from torch's stream.
            later: the noise that DDPM adds (B, steps - 1, horizon, A); None draws it as well.
            draws: ignored.
        """
        del draws
        config = self.config
        assert isinstance(config, DenoisingConfig)
        with evaluating(self):
            condition = self.condition(batch)
            if noise is None:
                shape = (len(condition), config.horizon, config.action.shape[0])
                noise = torch.randn(shape, device=condition.device)
            actions = self.denoised(condition, noise, later)
        # The horizon begins with the oldest observation, whose actions are over.
        start = config.chunk_start()
        return actions[:, start : start + config.n_action_steps]

    @staticmethod
    def drawn(action: Tensor, noise: Tensor | None, time: Tensor | None) -> tuple[Tensor, Tensor]:
        """Return the noise and the uniform times (B, 1) of a training step, drawn if not given."""
        noise = torch.randn_like(action) if noise is None else noise
        return noise, torch.rand(len(action), 1, device=action.device) if time is None else time

    def crop_place(self, crop: Tensor | None, like: Tensor, *, is_random: bool) -> Tensor | None:
        """Return where training frames are cropped (B, cameras, 2), drawn if not given; None for
        no random crop.
        """
        if not (self.training and is_random):
            return None
        if crop is None:
            crop = torch.rand(len(like), len(self.config.cameras), 2, device=like.device)
        return crop

    def counted(self, error: Tensor, batch: Batch) -> Tensor:
        """Return errors (B, horizon, A) with zeros for what the loss does not count."""
        config = self.config
        assert isinstance(config, DenoisingConfig)
        if config.do_mask_loss_for_padding and pad_key(ACTION) in batch:
            error = error * ~batch[pad_key(ACTION)][..., None]
        return error
