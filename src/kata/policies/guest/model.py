"""A policy of LeRobot behind kata's interface."""

from __future__ import annotations

import inspect
import random
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from kata.errors import PolicyError
from kata.policies.base import ActState, KeyMap, Loss, ParamGroup, Term
from kata.policies.base import Policy as BasePolicy
from kata.policies.device import choose_device
from kata.policies.guest.config import GuestConfig
from kata.policies.guest.guest_pipeline import OBSERVED
from kata.policies.guest.library import part
from kata.spec import ACTION, Batch

_OWN = "guest."
_IMAGES, _IMAGE = "observation.images", "observation.image"
_READS_QUEUES = ("multi_task_dit", "tdmpc", "vqbet")
"""Policies of LeRobot that predict a chunk from their queues alone, and not from a batch."""

_TIME_FIRST = ("tdmpc",)
"""Policies of LeRobot whose chunk is (T, B, A)."""


class Policy(BasePolicy):
    """A guest: LeRobot's policy, with LeRobot's forward pass, optimizer groups and acting.

    Its acting state lies inside LeRobot's policy, so that one batch of rollouts acts at a time.
    """

    def __init__(self, config: GuestConfig) -> None:
        super().__init__()
        self.config = self._options = config
        made = config.as_lerobot()
        made.device = "cpu"
        kind = part("policies.factory").get_policy_class(config.lerobot_name)
        _seed_other_streams()
        # LeRobot's own facts of the dataset are known to the config by now.
        try:
            self.guest: Any = kind(made)
        except Exception as error:  # whatever a policy or a download raises
            raise _cannot_build(config, error) from error
        self.guest.to("cpu").train()
        made.device = str(choose_device(config.device))
        self.is_per_sample = "reduction" in inspect.signature(kind.forward).parameters
        self._aliases = _tied(self.guest)
        self._turn: object | None = None
        self._figures: dict[str, Tensor] = {}
        self._refuse_other_groups()

    def forward(self, batch: Batch, **draws: Tensor) -> Loss:
        """Compute the loss of a micro-batch with LeRobot's forward pass."""
        del draws  # a guest draws from torch's stream, which is seeded for each micro-batch
        size = len(batch[ACTION])
        if not self.is_per_sample:
            loss, figures = self._lerobot_loss(batch)
            self._add_figures(figures, size)
            return Loss({"loss": Term(loss * size)}, {})
        each, figures = self._lerobot_loss(batch, reduction="none")
        self._add_figures(figures, size)
        each = each.flatten(1).mean(1) if each.dim() > 1 else each
        return Loss({"loss": Term(each.sum())}, {"loss": each})

    def _lerobot_loss(self, batch: Batch, **options: Any) -> tuple[Tensor, dict[str, Any]]:
        _seed_other_streams()
        given = {key: value for key, value in batch.items() if key != OBSERVED}
        found = self.guest(given, **options)
        if not isinstance(found, tuple) or not isinstance(found[0], Tensor):
            raise PolicyError(
                f"{self.config.type}: its forward pass gives {type(found).__name__}",
                rule="a guest's forward pass gives the loss and figures for the log",
                remedy="train it with LeRobot",
            )
        loss, figures = found
        return loss, figures or {}

    def _add_figures(self, figures: dict[str, Any], size: int) -> None:
        """Add a micro-batch's figures for the log, weighted by its size."""
        if not self.training:
            return
        device = next(self.parameters()).device
        told = {"": 1.0, **figures}
        for name, value in sorted(told.items()):
            if name == "loss" or not isinstance(value, int | float):
                continue
            total = self._figures.setdefault(name, torch.zeros((), device=device))
            total += float(value) * size

    def step_sums(self) -> list[Tensor]:
        """Return the sums of LeRobot's figures, and of the samples."""
        return [self._figures[name] for name in sorted(self._figures)]

    def after_step(self, step: int, bad: Tensor) -> dict[str, Tensor]:
        """Call LeRobot's `update`, where the policy has one, and return its figures of the step."""
        del step
        if self.moves_weights() and not bool(bad):
            self.guest.update()
        sums, self._figures = self._figures, {}
        samples = sums.pop("", None)
        return {} if samples is None else {name: sums[name] / samples for name in sums}

    def moves_weights(self) -> bool:
        """Return True if LeRobot's policy has an `update`."""
        return inspect.getattr_static(self.guest, "update", None) is not None

    @torch.no_grad()
    def predict_chunk(self, batch: Batch, **draws: Tensor) -> Tensor:
        """Predict a chunk of actions from recorded observations."""
        del draws
        self._turn = None
        self.guest.reset()
        seen: Batch = batch[OBSERVED]() if OBSERVED in batch else batch
        given = {key: value for key, value in seen.items() if not key.startswith(ACTION)}
        given = self._up_to_now(given)
        if self._options.lerobot_name in _READS_QUEUES:
            given = self._queued(given)
        window = self.config.windows().get(ACTION, (0,))
        try:
            chunk: Tensor = self.guest.predict_action_chunk(given)
        except torch.OutOfMemoryError:
            raise
        except Exception as error:  # whatever a policy raises
            raise PolicyError(
                f"{self.config.type}: LeRobot cannot predict actions from recorded observations: "
                f"{type(error).__name__}: {' '.join(str(error).split())}",
                rule="validation asks a policy for actions; acting may still work",
                remedy="train without held-out episodes: --dataset.eval_split=0",
            ) from error
        if self._options.lerobot_name in _TIME_FIRST:
            chunk = chunk.transpose(0, 1)
        # Some policies plan beyond what is recorded.
        return chunk[:, : len(window) - self.config.chunk_start()]

    def _up_to_now(self, batch: Batch) -> Batch:
        """Return the observations without those after the anchor, which acting does not have."""
        known = dict(batch)
        for key, offsets in self.config.windows().items():
            if key in known and 0 in offsets:
                known[key] = known[key][:, : offsets.index(0) + 1]
        return known

    def _queued(self, batch: Batch) -> Batch:
        """Fill LeRobot's queues with the observations of a window, and return the last of them."""
        queues: dict[str, Any] = vars(self.guest)["_queues"]
        cameras = list(self.config.cameras)
        seen = {key: batch[key] for key in queues if isinstance(batch.get(key), Tensor)}
        if _IMAGES in queues:
            steps = [_with_time(batch[key], 4) for key in cameras]
            seen[_IMAGES] = torch.stack(steps, dim=2)
        elif _IMAGE in queues:
            seen[_IMAGE] = _with_time(batch[cameras[0]], 4)
        last: Batch = dict(batch)
        for key, values in seen.items():
            windowed = values if key in (_IMAGES, _IMAGE) else _with_time(values, 2)
            length = queues[key].maxlen
            parts = list(windowed.unbind(1))[-length:]
            queues[key].extend([parts[0]] * (length - len(parts)) + parts)
            last[key] = parts[-1]
        return last

    def init_state(self, batch_size: int) -> ActState:
        """Return the state of new rollouts; those before them cannot go on."""
        del batch_size
        self.guest.reset()
        self._turn = object()
        return ActState(memory={"turn": self._turn})

    @torch.no_grad()
    def act(self, batch: Batch, state: ActState) -> tuple[Tensor, ActState]:
        """Return the next action of LeRobot's policy, which keeps its queue itself."""
        if state.memory.get("turn") is not self._turn or self._turn is None:
            raise PolicyError(
                f"{self.config.type}: other rollouts have begun since",
                rule="LeRobot's policies keep their actions inside, for one batch of rollouts",
                remedy="let one batch of rollouts end before the next begins",
            )
        return self.guest.select_action(dict(batch)), state

    def param_groups(self) -> list[ParamGroup]:
        """Return the groups that LeRobot's optimizer has with its preset."""
        preset = self._options.as_lerobot().get_optimizer_preset()
        made = _optimizer(preset.build(self.guest.get_optim_params()), self.config.type)
        groups: list[ParamGroup] = []
        for number, group in enumerate(made.param_groups):
            trained = [p for p in group["params"] if p.requires_grad]
            lr, decay = float(group["lr"]), float(group["weight_decay"])
            if trained:
                groups.append(
                    ParamGroup(
                        str(group.get("name", number)),
                        trained,
                        None if lr == preset.lr else lr,
                        None if decay == preset.weight_decay else decay,
                    )
                )
        return groups

    def _refuse_other_groups(self) -> None:
        """Freeze what LeRobot's optimizer leaves out."""
        trained: set[int] = set()
        for group in self.param_groups():
            trained.update(id(p) for p in group.params)
        for parameter in self.guest.parameters():
            if id(parameter) not in trained:
                parameter.requires_grad_(False)

    def preflight_rows(self) -> list[tuple[str, str]]:
        """Return rows that say how the loss of a guest is made."""
        if self.is_per_sample:
            return [("loss", "LeRobot's, of each sample: the same however the batch is divided")]
        return [
            (
                "loss",
                "LeRobot's mean of each micro-batch, weighted by its samples: where samples count "
                "differently, as with padding, it depends on how the batch is divided",
            )
        ]

    def shard_units(self) -> list[nn.Module]:
        """Return nothing: what LeRobot's policies call one by one is not known."""
        return []

    def key_map(self) -> KeyMap:
        """Return LeRobot's names, which are the guest's own."""
        return KeyMap(prefixes=((_OWN, ""),), aliases=self._aliases)


def _with_time(values: Tensor, dims: int) -> Tensor:
    """Return values with a time axis; `dims` is their number of axes without one."""
    return values.unsqueeze(1) if values.dim() == dims else values


def _optimizer(made: Any, policy_type: str) -> Optimizer:
    if isinstance(made, Optimizer):
        return made
    raise PolicyError(
        f"{policy_type}: its preset makes {type(made).__name__}",
        rule="a guest is trained with one optimizer",
        remedy="train it with LeRobot",
    )


def _tied(guest: nn.Module) -> dict[str, str]:
    """Return the names of tied parameters that a file leaves out, with the name that it holds."""
    names = defaultdict[int, list[str]](list)
    tied: Iterable[tuple[str, Tensor]] = guest.named_parameters(remove_duplicate=False)
    for name, parameter in tied:
        names[id(parameter)].append(name)
    aliases: dict[str, str] = {}
    for same in names.values():
        kept, *others = sorted(same)
        aliases.update(dict.fromkeys(others, kept))
    return aliases


def _seed_other_streams() -> None:
    """Seed the streams of Python and NumPy as torch's is seeded.

    LeRobot's policies and their packages may draw from them; a resumed run draws the same.
    """
    seed = torch.initial_seed()
    random.seed(seed)
    np.random.seed(seed % 2**32)


def _cannot_build(config: GuestConfig, error: Exception) -> PolicyError:
    first = " ".join(str(error).split())
    return PolicyError(
        f"{config.type}: LeRobot cannot build it: {type(error).__name__}: {first}",
        rule="LeRobot's extra for this policy is installed, and what it downloads can be had",
        remedy=f"pip install 'lerobot[{config.lerobot_name}]', or the options that the message "
        "names",
    )
