"""Groups of numbers of state and action, such as an arm's joints, as NVIDIA's files have them.

A file of statistics has for each group vectors (D,), or rows (T, D) for each step of a chunk where
actions are relative to the state.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kata.errors import CheckpointError
from kata.spec import ACTION, STATE

NUMBERS_OF = ("mean", "q01", "min", "max", "std")
"""Statistics that tell a group's size, in the order in which they are asked."""


@dataclass(frozen=True)
class ActionGroup:
    """A group of an action's numbers.

    Attributes:
        name: of the group.
        start: first of its numbers in the action.
        size: how many there are.
        low: what -1 stands for, (D,) or (T, D).
        high: what 1 stands for.
        state: the first number of the state that actions are relative to; None if absolute.
        is_pose: the group is a pose, xyz and six numbers of rotation, and the state's as well.
    """

    name: str
    start: int
    size: int
    low: Tensor
    high: Tensor
    state: int | None
    is_pose: bool


def plain_name(value: Any) -> str:
    """Return a name of NVIDIA's enumerations in lower case."""
    text = str(value).lower().rpartition(".")[2]
    return {"xyz_rot6d": "xyz+rot6d", "xyz_rotvec": "xyz+rotvec"}.get(text, text)


def size_of(entry: Mapping[str, Any]) -> int:
    """Return how many numbers a group has, from its statistics; 0 without statistics."""
    for name in NUMBERS_OF:
        value = entry.get(name)
        if value is not None and len(value):
            first = value[0]
            return len(first) if isinstance(first, Sequence) else len(value)
    return 0


def is_relative(config: Mapping[str, Any]) -> bool:
    """Return True for a group whose actions are relative to the state."""
    return plain_name(config.get("rep")) == "relative"


def state_starts(stats: Mapping[str, Any], modality: Mapping[str, Any]) -> dict[str, int]:
    """Return the first number in the state of each of its groups."""
    found: dict[str, int] = {}
    start = 0
    for key in modality.get("state", {}).get("modality_keys", []):
        size = size_of(stats.get("state", {}).get(key, {}))
        if size:
            found[key] = start
            start += size
    return found


def action_groups(
    stats: Mapping[str, Any],
    modality: Mapping[str, Any],
    *,
    use_percentiles: bool,
    use_relative: bool,
) -> list[ActionGroup]:
    """Return the groups of an action in order.

    Args:
        stats: statistics by modality and group.
        modality: the groups of state and action.
        use_percentiles: -1 and 1 stand for q01 and q99 in place of min and max, where a group is
            absolute.
        use_relative: False takes all groups for absolute.

    Raises:
        CheckpointError: statistics are absent, or a group is relative in a way that is unknown.
    """
    action = modality.get("action", {})
    configs: list[Mapping[str, Any]] = action.get("action_configs") or []
    starts = state_starts(stats, modality)
    groups: list[ActionGroup] = []
    start = 0
    for number, key in enumerate(action.get("modality_keys", [])):
        size = size_of(stats.get(ACTION, {}).get(key, {}))
        if not size:
            continue
        config = configs[number] if number < len(configs) else {}
        relative = use_relative and is_relative(config)
        low, high = _limits(stats, key, relative=relative, use_percentiles=use_percentiles)
        origin = config.get("state_key") or key
        groups.append(
            ActionGroup(
                key,
                start,
                size,
                low,
                high,
                _origin(key, origin, starts) if relative else None,
                relative and _is_pose(key, config),
            )
        )
        start += size
    return groups


def _limits(
    stats: Mapping[str, Any], key: str, *, relative: bool, use_percentiles: bool
) -> tuple[Tensor, Tensor]:
    """Return the two statistics that a group is normalized with."""
    modality = "relative_action" if relative else ACTION
    found = stats.get(modality, {}).get(key, {})
    names = ("q01", "q99") if use_percentiles and not relative else ("min", "max")
    lacking = [name for name in names if name not in found]
    if lacking:
        raise CheckpointError(
            f"{modality}.{key}: no {' and '.join(lacking)} among GR00T's statistics",
            rule=f"each group has {' and '.join(names)}",
            remedy="copy statistics.json again, or name another policy.embodiment_tag",
        )
    low, high = (torch.tensor(found[name], dtype=torch.float32) for name in names)
    return low, high


def _origin(key: str, state_key: str, starts: Mapping[str, int]) -> int:
    if state_key not in starts:
        raise CheckpointError(
            f"action group {key}: relative to the state group {state_key}, which has no statistics",
            rule=f"state groups with statistics: {', '.join(starts) or 'none'}",
            remedy="copy statistics.json again",
        )
    return starts[state_key]


def _is_pose(key: str, config: Mapping[str, Any]) -> bool:
    kind, form = plain_name(config.get("type")), plain_name(config.get("format"))
    if kind == "non_eef":
        return False
    if kind == "eef" and form == "xyz+rot6d":
        return True
    raise CheckpointError(
        f"action group {key}: relative, of type {kind} and format {form}",
        rule="relative groups are joints (non_eef), or poses as xyz+rot6d",
        remedy="another embodiment_tag",
    )


def flat_stats(
    stats: Mapping[str, Any],
    modality: Mapping[str, Any],
    *,
    use_percentiles: bool,
    use_relative: bool,
) -> dict[str, dict[str, Tensor]]:
    """Return the statistics of all groups in a row, as LeRobot writes them beside the step.

    Args:
        stats: statistics by modality and group.
        modality: the groups.
        use_percentiles: q01 and q99 are called min and max.
        use_relative: relative groups are measured as such.

    Returns:
        Statistics (D,) by feature and name; empty where the files know no groups.
    """
    found: dict[str, dict[str, Tensor]] = {}
    for feature, kind in ((STATE, "state"), (ACTION, ACTION)):
        own = modality.get(kind, {})
        keys: list[str] = own.get("modality_keys", [])
        configs: list[Mapping[str, Any]] = own.get("action_configs") or []
        columns: dict[str, Tensor] = {}
        for name in ("min", "max", "mean", "std"):
            values: list[float] = []
            for number, key in enumerate(keys):
                config = configs[number] if number < len(configs) else {}
                relative = kind == ACTION and use_relative and is_relative(config)
                source = stats.get("relative_action" if relative else kind, {}).get(key, {})
                other = {"min": "q01", "max": "q99"}.get(name, name)
                wanted = other if use_percentiles and not relative else name
                values += _flattened(source, wanted, f"{kind}.{key}")
            if values:
                columns[name] = torch.tensor(values, dtype=torch.float32)
        if columns:
            found[feature] = columns
    return found


def _flattened(source: Mapping[str, Any], name: str, where: str) -> list[float]:
    if name not in source:
        raise CheckpointError(
            f"{where}: no {name} among GR00T's statistics",
            rule="each group has min, max, mean and std, and q01 and q99 with use_percentiles",
            remedy="copy statistics.json again, or name another policy.embodiment_tag",
        )
    return torch.tensor(source[name], dtype=torch.float32).flatten().tolist()
