"""LeRobot's pair of steps for actions relative to the state, which kata keeps in files and off.

Relative actions need statistics of relative actions, and kata does not compute them.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, ClassVar

from kata.errors import CheckpointError
from kata.processors.steps import STEPS, Step
from kata.spec import Batch


@dataclass(frozen=True)
class RelativeActions(Step):
    """A step that would subtract the state from actions. It passes batches on unchanged.

    Attributes:
        enabled: True is refused.
        exclude_joints: joints that stay absolute.
        action_names: a name for each number of the action, or None.
    """

    registry_name: ClassVar[str] = "relative_actions_processor"
    enabled: bool = False
    exclude_joints: list[str] = field(default_factory=list)
    action_names: list[str] | None = None

    def __post_init__(self) -> None:
        _refuse_relative(self.registry_name, self.enabled)

    def __call__(self, batch: Batch) -> Batch:
        """Return the same batch."""
        return batch

    def config(self) -> dict[str, Any]:
        """Return the fields."""
        return {
            "enabled": self.enabled,
            "exclude_joints": self.exclude_joints,
            "action_names": self.action_names,
        }


@dataclass(frozen=True)
class AbsoluteActions(Step):
    """The inverse step, which would add the state. It passes actions on unchanged."""

    registry_name: ClassVar[str] = "absolute_actions_processor"
    enabled: bool = False

    def __post_init__(self) -> None:
        _refuse_relative(self.registry_name, self.enabled)

    def __call__(self, batch: Batch) -> Batch:
        """Return the same batch."""
        return batch

    def config(self) -> dict[str, Any]:
        """Return `enabled`."""
        return {"enabled": self.enabled}


def _refuse_relative(name: str, enabled: bool) -> None:
    if enabled:
        raise CheckpointError(
            f"{name}: enabled=true",
            rule="actions are absolute: kata has no statistics of relative ones",
            remedy="act with LeRobot, or train with --policy.use_relative_actions=false",
        )


for step in (RelativeActions, AbsoluteActions):
    STEPS[step.registry_name] = step
