"""The steps after GR00T: from numbers in [-1, 1] to actions in the robot's units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

import torch
from torch import Tensor

from kata.errors import CheckpointError, DataError
from kata.processors.groot.groups import ActionGroup, action_groups, size_of
from kata.processors.groot.pack import by_feature, by_name
from kata.processors.groot.scaling import limits_of, unscaled
from kata.processors.steps import STEPS, StateDict, Step
from kata.spec import ACTION, ORIGIN, Batch

LIBERO = "libero"
LIBERO_NUMBERS = 7
"""Numbers of LIBERO's actions; the last is the gripper's."""


@dataclass
class Unpack(Step):
    """A step that scales actions (B, A) or (B, T, A) back with a dataset's statistics."""

    registry_name: ClassVar[str] = "groot_action_unpack_unnormalize_v2"

    env_action_dim: int = 0
    normalize_min_max: bool = True
    clip_normalized_action: bool = False
    libero_gripper_action: bool = False
    libero_gripper_binarize: bool = True
    stats: dict[str, StateDict] = field(default_factory=dict)

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with its action in the robot's units."""
        if ACTION not in batch:
            return batch
        action: Tensor = batch[ACTION]
        if self.env_action_dim:
            action = action[..., : self.env_action_dim]
        if self.normalize_min_max and self.stats:
            low, high = limits_of(self.stats.get(ACTION, {}), action.shape[-1])
            action = unscaled(action, low, high, clips=self.clip_normalized_action)
        if self.libero_gripper_action and action.shape[-1] >= LIBERO_NUMBERS:
            gripper = 2.0 * action[..., -1:] - 1.0
            gripper = torch.sign(gripper) if self.libero_gripper_binarize else gripper
            action = torch.cat((action[..., :-1], -gripper), dim=-1)
        return {**batch, ACTION: action}

    def config(self) -> dict[str, Any]:
        """Return the fields but for the statistics."""
        return {name: value for name, value in vars(self).items() if name != "stats"}

    def state(self) -> StateDict:
        """Return the statistics as `<feature>.<statistic>`."""
        return by_name(self.stats)

    @classmethod
    def build(cls, config: Mapping[str, Any], state: StateDict) -> Unpack:
        """Return the step with a checkpoint's JSON and tensors."""
        return cls(**config, stats=by_feature(state))


@dataclass
class DecodeGroups(Step):
    """A step that scales the groups of actions back, and adds the state to relative ones.

    What relative actions are added to is in the batch: the state at which their chunk was
    predicted, and behind it the number of the action in its chunk.
    """

    registry_name: ClassVar[str] = "groot_n1_7_action_decode_v1"

    env_action_dim: int = 0
    raw_stats: dict[str, Any] | None = None
    modality_config: dict[str, Any] | None = None
    use_percentiles: bool = False
    use_relative_action: bool = False
    action_decode_transform: str | None = None

    def __post_init__(self) -> None:
        self.groups: list[ActionGroup] = action_groups(
            self.raw_stats or {},
            self.modality_config or {},
            use_percentiles=self.use_percentiles,
            use_relative=self.use_relative_action,
        )
        if self.action_decode_transform not in (None, LIBERO):
            raise CheckpointError(
                f"action_decode_transform={self.action_decode_transform}",
                rule=f"null or {LIBERO}",
                remedy="write the checkpoint again with LeRobot 0.6",
            )

    def __call__(self, batch: Batch) -> Batch:
        """Return the batch with its action (B, A) or (B, T, A) in the robot's units."""
        if ACTION not in batch or not self.groups:
            return batch
        action: Tensor = batch[ACTION]
        chunk = action[:, None] if action.ndim == 2 else action[:, : self._horizon()]
        state, place = self._origin(batch, chunk)
        parts: dict[str, Tensor] = {}
        for group in self.groups:
            part = chunk[..., group.start : group.start + group.size].float()
            low, high = (
                limit.to(place.device)[place] if limit.ndim > 1 else limit
                for limit in (group.low, group.high)
            )
            part = unscaled(part, low, high)
            if group.state is not None:
                origin = state[..., group.state : group.state + group.size]
                part = moved_pose(part, origin) if group.is_pose else part + origin
            parts[group.name] = part
        decoded = self._for_libero(parts)
        if self.env_action_dim:
            decoded = decoded[..., : self.env_action_dim]
        decoded = decoded.to(action.dtype)
        return {**batch, ACTION: decoded[:, 0] if action.ndim == 2 else decoded}

    def _origin(self, batch: Batch, chunk: Tensor) -> tuple[Tensor, Tensor]:
        """Return the states (B, T or 1, D), and the numbers of the actions in their chunk (B, T).

        A whole chunk begins with its first action; a single one is the first where nothing else is
        said.
        """
        place = torch.arange(chunk.shape[1], device=chunk.device).expand(len(chunk), -1)
        if all(group.state is None for group in self.groups):
            return chunk, place
        if ORIGIN not in batch:
            raise DataError(
                f"{self.registry_name}: no {ORIGIN} beside the action",
                rule="relative actions become absolute with the state at which they were predicted",
                remedy=f"pass on {ORIGIN}, which groot_n1_7_pack_inputs_v1 put into the batch",
            )
        origin: Tensor = batch[ORIGIN].to(chunk.device)
        if chunk.shape[1] == 1 and origin.shape[-1] > self._state_width():
            place = origin[:, -1:].long()
        return origin[:, None].float(), place

    def _horizon(self) -> int | None:
        """Return the number of actions in a chunk of this robot; None if it is unknown."""
        steps: list[int] = (self.modality_config or {}).get("action", {}).get("delta_indices", [])
        return len(steps) or None

    def _state_width(self) -> int:
        """Return how many numbers the state has that actions may be relative to."""
        config = self.modality_config or {}
        stats = (self.raw_stats or {}).get("state", {})
        keys: list[str] = config.get("state", {}).get("modality_keys", [])
        return sum(size_of(stats[key]) for key in keys if key in stats)

    def _for_libero(self, parts: dict[str, Tensor]) -> Tensor:
        """Return all groups in a row, the gripper's as LIBERO's simulator takes it."""
        if self.action_decode_transform == LIBERO:
            if "gripper" not in parts or parts["gripper"].shape[-1] != 1:
                raise CheckpointError(
                    f"action_decode_transform={LIBERO}: action groups {', '.join(parts)}",
                    rule="a group `gripper` of one number",
                    remedy="--policy.action_decode_transform=none",
                )
            parts["gripper"] = -torch.sign(2.0 * parts["gripper"] - 1.0)
        return torch.cat(list(parts.values()), dim=-1)

    def config(self) -> dict[str, Any]:
        """Return the fields."""
        return {each.name: vars(self)[each.name] for each in fields(self)}


def moved_pose(pose: Tensor, origin: Tensor) -> Tensor:
    """Return poses (..., 9) as xyz and two rows of a rotation, moved and turned by others."""
    place, turn = origin[..., :3].double(), rotation_of(origin[..., 3:])
    moved = place + (turn @ pose[..., :3, None].double())[..., 0]
    turned = turn @ rotation_of(pose[..., 3:])
    return torch.cat((moved, turned[..., :2, :].flatten(-2)), dim=-1).float()


def rotation_of(rows: Tensor) -> Tensor:
    """Return rotations (..., 3, 3) whose first two rows are near six numbers (..., 6)."""
    first, second = rows.double().unflatten(-1, (2, 3)).unbind(-2)
    first = first / first.norm(dim=-1, keepdim=True)
    second = second - (first * second).sum(-1, keepdim=True) * first
    second = second / second.norm(dim=-1, keepdim=True)
    return torch.stack((first, second, torch.linalg.cross(first, second)), dim=-2)


for step in (Unpack, DecodeGroups):
    STEPS[step.registry_name] = step
