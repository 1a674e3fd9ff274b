"""Config base class of policies whose actions may be relative to the state. Torch-free."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from kata.config import option
from kata.errors import PolicyError
from kata.policies.config import PolicyConfig
from kata.spec import ACTION, STATE, Column, relative_dimensions

RELATIVE_STEP, ABSOLUTE_STEP = "relative_actions_processor", "absolute_actions_processor"
"""LeRobot's names of the steps that subtract the state and add it."""

Steps = list[tuple[str, dict[str, Any]]]


@dataclass(frozen=True, kw_only=True)
class RelativeConfig(PolicyConfig):
    """Options of policies that predict chunks of actions: what these are relative to.

    LeRobot's steps do the arithmetic, so that it acts from a checkpoint of any policy. Its configs
    have the options for some policies alone; those declare them again.
    """

    use_relative_actions: bool = option(
        False,
        "Learn actions minus the state at which a chunk begins; LeRobot has this for other "
        "policies, and acts with it for this one.",
        is_own=True,
    )
    relative_exclude_joints: list[str] = option(
        lambda: ["gripper"],
        "Parts of the names of action numbers that stay absolute with use_relative_actions.",
        is_own=True,
    )
    action_feature_names: list[str] | None = option(
        None,
        "A name for each number of the action, with use_relative_actions; null takes the "
        "dataset's.",
        is_own=True,
    )

    def relative_dimensions(self) -> list[bool] | None:
        """Return which numbers of the action are relative, with `use_relative_actions`."""
        if not self.use_relative_actions:
            return None
        names, exclude = self.action_feature_names, self.relative_exclude_joints
        return relative_dimensions(names, exclude, self.action.shape[0])

    def with_columns(self, columns: Mapping[str, Column]) -> Self:
        """Return a copy with the dataset's names of the action's numbers, if they are needed.

        Raises: PolicyError where the policy reads no state, or where some numbers are to stay
            absolute and there are no names.
        """
        if not self.use_relative_actions:
            return self
        if STATE not in self.input_features:
            raise PolicyError(
                "policy.use_relative_actions=true, and the policy's inputs are "
                f"{', '.join(self.input_features)}",
                rule=f"actions are relative to {STATE}",
                remedy=f"name {STATE} in --policy.input_features, or "
                "--policy.use_relative_actions=false",
            )
        names = columns[ACTION].names if ACTION in columns else None
        given = self.action_feature_names if names is None else list(names)
        if self.relative_exclude_joints and given is None:
            raise PolicyError(
                f"policy.relative_exclude_joints={self.relative_exclude_joints}: the dataset does "
                "not name the numbers of its action",
                rule="numbers stay absolute by their names",
                remedy="--policy.action_feature_names=[...], or "
                "--policy.relative_exclude_joints=[] to make all relative",
            )
        return dataclasses.replace(self, action_feature_names=given)

    def relative_actions(self) -> tuple[str, dict[str, Any]]:
        """Return LeRobot's step for relative actions."""
        options = {
            "enabled": self.use_relative_actions,
            "exclude_joints": self.relative_exclude_joints,
            "action_names": self.action_feature_names,
        }
        return RELATIVE_STEP, options

    def absolute_actions(self) -> tuple[str, dict[str, Any]]:
        """Return LeRobot's step that makes actions absolute again."""
        return ABSOLUTE_STEP, {"enabled": self.use_relative_actions}


def with_relative_steps(config: PolicyConfig, before: Steps, after: Steps) -> tuple[Steps, Steps]:
    """Return a policy's steps with those for relative actions, if it wants them and lists none.

    The state is subtracted before normalization, whose statistics are those of relative actions,
    and added right after it is undone.
    """
    if not isinstance(config, RelativeConfig) or not config.use_relative_actions:
        return before, after
    before, after = [*before], [*after]
    if RELATIVE_STEP not in dict(before):
        before.insert(_place(before, "normalizer_processor"), config.relative_actions())
    if ABSOLUTE_STEP not in dict(after):
        after.insert(_place(after, "unnormalizer_processor") + 1, config.absolute_actions())
    return before, after


def _place(steps: Steps, name: str) -> int:
    return [known for known, _ in steps].index(name)
