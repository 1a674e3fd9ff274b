"""What every policy provides beside its config.

Model files import torch and never torch.distributed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from kata.policies.config import PolicyConfig
from kata.spec import Batch, Draw


class Term(NamedTuple):
    """One part of a loss as a sum: the loss adds `scale * total / count over the global batch`.

    total: device scalar, the sum over this micro-batch. scale: a plain factor such as a KL weight.
    """

    total: Tensor
    scale: float = 1.0


class Loss(NamedTuple):
    """Sums by term name, never means: means per rank or per micro-batch make the result depend on
    the split.

    The denominators come from `PolicyConfig.loss_weights` for the global batch. `detail` holds each
    sample's part of a term's sum, (B,) under the term's name; empty where a policy does not tell
    them apart.
    """

    terms: dict[str, Term]
    detail: dict[str, Tensor]


@dataclass(frozen=True)
class ParamGroup:
    """Parameters trained alike. `lr` and `weight_decay` of None mean the optimiser's own."""

    name: str
    params: list[nn.Parameter]
    lr: float | None = None
    weight_decay: float | None = None


Source = Callable[[str, Draw], Tensor]
"""Random numbers (B, *shape) by name and kind."""


@dataclass
class ActState:
    """What acting remembers between steps, outside the module: batched rollouts each keep their
    own.

    queue: planned actions (B, T, A) not yet given out, or None. memory: whatever else a policy
        keeps. source: where the next call of `act` takes random numbers from, None for torch's
        stream; whoever calls it gives one for each call.
    """

    queue: Tensor | None = None
    memory: dict[str, Any] = field(default_factory=dict)
    source: Source | None = None

    def drawn(self, wanted: Mapping[str, Draw]) -> dict[str, Tensor]:
        """These numbers by name; nothing where they come from torch's stream."""
        return (
            {}
            if self.source is None
            else {name: self.source(name, draw) for name, draw in wanted.items()}
        )


@dataclass(frozen=True)
class KeyMap:
    """A bijective table between own tensor names and LeRobot's.

    prefixes: (own prefix, LeRobot prefix) pairs, longest first; a name outside them keeps its name.
    aliases: LeRobot names stored once for several own names. passthrough: LeRobot tensors kept but
        not used.
    constants: LeRobot tensors that follow from the config: made when weights are written, passed
        over when read.
    """

    prefixes: tuple[tuple[str, str], ...] = ()
    aliases: dict[str, str] = field(default_factory=dict)
    passthrough: tuple[str, ...] = ()
    constants: dict[str, Callable[[], Tensor]] = field(default_factory=dict)

    def to_lerobot(self, name: str) -> str:
        """LeRobot's name of an own tensor."""
        for own, other in self.prefixes:
            if name.startswith(own):
                return other + name[len(own) :]
        return name

    def from_lerobot(self, name: str) -> str:
        """The own name of a LeRobot tensor."""
        for own, other in self.prefixes:
            if name.startswith(other):
                return own + name[len(other) :]
        return name


class Policy(nn.Module, ABC):
    """Base of every policy.

    Batches are normalised, on the device, cameras float (B, C, H, W) or (B, T, C, H, W).
    """

    config: PolicyConfig

    @abstractmethod
    def forward(self, batch: Batch, **draws: Tensor) -> Loss:
        """The loss of one micro-batch as sums.

        `draws` are those that the config asks for, by name.
        """

    def init_state(self, batch_size: int) -> ActState:
        """A fresh acting state for `batch_size` rollouts."""
        del batch_size
        return ActState()

    @abstractmethod
    def predict_chunk(self, batch: Batch, **draws: Tensor) -> Tensor:
        """Return actions (B, T, A), normalised, for the observations in `batch`.

        draws: numbers that `config.act_draws` names; a policy draws those that are not given, and
        ignores others.
        """

    @abstractmethod
    def act(self, batch: Batch, state: ActState) -> tuple[Tensor, ActState]:
        """The next action (B, A), normalised, and the state for the step after it."""

    @abstractmethod
    def param_groups(self) -> list[ParamGroup]:
        """All trainable parameters, each in exactly one group."""

    def step_sums(self) -> list[Tensor]:
        """What `forward` summed up since the last `after_step` for its use; several ranks add
        theirs in place first.
        """
        return []

    def after_step(self, step: int, bad: Tensor) -> dict[str, Tensor]:
        """Called after each optimiser step (EMA targets and the like).

        Args:
            step: updates done, this one included.
            bad: bool scalar on the device; where it is true the update was skipped, and nothing may
                change here either.

        Returns: device scalars for the log, by name.
        """
        del step, bad
        return {}

    @abstractmethod
    def shard_units(self) -> list[nn.Module]:
        """Modules to shard one by one; each one's `forward` is really called."""

    def recompute_units(self) -> list[nn.Module]:
        """Modules whose activations may be recomputed instead of kept."""
        return self.shard_units()

    def frozen(self) -> list[nn.Parameter]:
        """Parameters that are never trained."""
        return [p for p in self.parameters() if not p.requires_grad]

    @abstractmethod
    def key_map(self) -> KeyMap:
        """Own tensor names against LeRobot's."""


@contextmanager
def evaluating(policy: nn.Module) -> Generator[None]:
    """Eval mode inside, the mode that was there before after it."""
    training = policy.training
    policy.eval()
    try:
        yield
    finally:
        policy.train(training)


def remember(state: ActState, batch: Batch, keys: Iterable[str], steps: int) -> dict[str, Tensor]:
    """The last `steps` observations (B, steps, ...) of each key, the new ones in `batch` (B, ...)
    included.

    Before there are so many, the first one stands for those that are missing. What is returned
    belongs into the next state's `memory["history"]`.
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


class ChunkPolicy(Policy):
    """Acts from a history of observations, a chunk of actions at a time."""

    condition_keys: ClassVar[tuple[str, ...]] = ()
    """Keys of the batch that chunks are predicted from beside the history."""

    @torch.no_grad()
    def act(self, batch: Batch, state: ActState) -> tuple[Tensor, ActState]:
        """The next action from the queue, predicting a chunk when it is empty."""
        seen = remember(state, batch, self.config.input_features, self.config.n_obs_steps)
        queue = state.queue
        if queue is None or queue.shape[1] == 0:
            condition = {key: batch[key] for key in self.condition_keys}
            given = state.drawn(self.config.act_draws())
            queue = self.predict_chunk({**seen, **condition}, **given)
        return queue[:, 0], ActState(queue[:, 1:], {"history": seen})
