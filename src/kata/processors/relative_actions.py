"""LeRobot's pair of steps for actions relative to the state.

The first subtracts the state from actions before they are normalized; the second adds it to
predicted ones. Where LeRobot keeps the last state in the first step, kata's batches carry it: it is
the state at which a chunk was predicted.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

import torch
from torch import Tensor

from kata.errors import DataError
from kata.processors.steps import STEPS, Step
from kata.spec import ACTION, ORIGIN, STATE, Batch, relative_dimensions


@dataclass(frozen=True)
class RelativeActions(Step):
    """A step that subtracts the state from actions (B, A) or (B, T, A).

    Attributes:
        enabled: False passes batches on unchanged.
        exclude_joints: parts of the names of dimensions that stay absolute.
        action_names: a name for each number of the action; without names all are relative.
    """

    registry_name: ClassVar[str] = "relative_actions_processor"
    enabled: bool = False
    exclude_joints: list[str] = field(default_factory=list)
    action_names: list[str] | None = None

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with relative actions, and with what was subtracted, (B, D)."""
        if not self.enabled or STATE not in batch:
            return batch
        state: Tensor = batch[STATE][:, -1] if batch[STATE].ndim > 2 else batch[STATE]
        mask = relative_dimensions(self.action_names, self.exclude_joints, state.shape[-1])
        origin = state * torch.tensor(mask, dtype=state.dtype, device=state.device)
        batch = {**batch, ORIGIN: origin}
        return {**batch, ACTION: _moved(batch[ACTION], -origin)} if ACTION in batch else batch

    def config(self) -> dict[str, Any]:
        """Return the fields."""
        return {
            "enabled": self.enabled,
            "exclude_joints": self.exclude_joints,
            "action_names": self.action_names,
        }


@dataclass(frozen=True)
class AbsoluteActions(Step):
    """The inverse step, which adds to actions what was subtracted.

    Attributes:
        enabled: False passes batches on unchanged.
    """

    registry_name: ClassVar[str] = "absolute_actions_processor"
    enabled: bool = False

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with absolute actions; DataError without the state of the chunk."""
        if not self.enabled or ACTION not in batch:
            return batch
        if ORIGIN not in batch:
            raise DataError(
                f"{self.registry_name}: no {ORIGIN} beside the action",
                rule="relative actions become absolute with the state at which they were predicted",
                remedy="pass on what relative_actions_processor put into the batch",
            )
        return {**batch, ACTION: _moved(batch[ACTION], batch[ORIGIN])}

    def config(self) -> dict[str, Any]:
        """Return `enabled`."""
        return {"enabled": self.enabled}


def _moved(actions: Tensor, by: Tensor) -> Tensor:
    """Return actions (B, A) or (B, T, A), to whose first numbers `by` (B, D) is added."""
    width = min(actions.shape[-1], by.shape[-1])
    by = by[..., :width].to(actions.device, actions.dtype)
    moved = actions.clone()
    moved[..., :width] += by[:, None] if actions.ndim > 2 else by
    return moved


for step in (RelativeActions, AbsoluteActions):
    STEPS[step.registry_name] = step
