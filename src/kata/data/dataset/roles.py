"""Roles of columns with other names than LeRobot's: `actions` is the action, `state` the state.

A column takes a role where it is the only one that can. Where several can, the user chooses, and
`flags` gives the options that would do.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from kata.spec import ACTION, BOOKKEEPING, STATE, Column, FeatureType, role_of

STATE_NAMES = frozenset(
    {"state", "states", "robot_state", "qpos", "joint_positions", "proprio", "proprioception"}
)
"""Names of the robot's state that are seen in recordings, beside those below `observation`."""

_CAMERA_GROUPS = frozenset(
    {"observation", "observations", "image", "images", "video", "videos", "camera", "cameras"}
)
"""Groups in front of a camera's own name."""


@dataclass(frozen=True)
class Roles:
    """The roles of a dataset's columns beyond those that their names give them.

    Attributes:
        found: column -> LeRobot's name, where one column alone can have the role.
        unclear: LeRobot's name -> the columns that could have the role, two or more.
    """

    found: dict[str, str]
    unclear: dict[str, list[str]]


def find_roles(
    columns: Mapping[str, Column],
    renamed: Mapping[str, str],
    inputs: Collection[str] = (),
    outputs: Collection[str] = (),
) -> Roles:
    """Return which columns are the action, the state and the cameras, where their names differ.

    Args:
        columns: of the dataset.
        renamed: names that are given already, column -> name.
        inputs: what the policy reads; nothing where that follows from the dataset.
        outputs: what the policy predicts; nothing where that follows from the dataset.
    """
    names = {renamed.get(key, key) for key in columns}
    # What the user or the policy names is not up for another role.
    settled = {*renamed, *inputs, *outputs}
    free = {key: column for key, column in columns.items() if key not in settled}
    roles = Roles({}, {})
    for role, wanted in ((ACTION, outputs), (STATE, inputs)):
        if role in names or (wanted and role not in wanted):
            continue
        candidates = [key for key, column in free.items() if _can_be(role, key, column)]
        if len(candidates) == 1:
            roles.found[candidates[0]] = role
        elif candidates:
            roles.unclear[role] = candidates
    roles.found.update(_cameras(free, names, inputs))
    return roles


def _can_be(role: str, key: str, column: Column) -> bool:
    if column.is_camera or len(column.shape) != 1 or column.dtype == "string":
        return False
    groups = ("action.", "actions.") if role == ACTION else ("state.", "states.")
    if key.startswith(groups):
        return True  # parts of a vector may be whole numbers or truth values
    if not column.dtype.startswith("float") or key in BOOKKEEPING:
        return False
    if role == ACTION:
        return role_of(key, column) is FeatureType.ACTION
    return key in STATE_NAMES or role_of(key, column) is FeatureType.STATE


def _cameras(
    free: Mapping[str, Column], names: Collection[str], inputs: Collection[str]
) -> dict[str, str]:
    """Return LeRobot's names of cameras that have others, where that name is free."""
    proposed: dict[str, str] = {}
    for key, column in free.items():
        if column.is_camera and not key.startswith("observation.image"):
            proposed[key] = f"observation.images.{_own_name(key)}"
    count = Counter(proposed.values())
    found: dict[str, str] = {}
    for key, name in proposed.items():
        if count[name] == 1 and name not in names and (not inputs or name in inputs):
            found[key] = name
    return found


def _own_name(key: str) -> str:
    """Return a camera's name without the groups in front: `observation.rgb.left` is `rgb.left`."""
    parts = key.split(".")
    while len(parts) > 1 and parts[0] in _CAMERA_GROUPS:
        parts = parts[1:]
    return ".".join(parts)


def flags(
    unclear: Mapping[str, Sequence[str]],
    renamed: Mapping[str, str] | None = None,
    concat: Mapping[str, Sequence[str]] | None = None,
) -> list[str]:
    """Return the options of `kata train` that settle unclear roles, ready to paste."""
    found: list[str] = []
    for option, text in settling(unclear, renamed or {}, concat or {}):
        found.append(f"--{'dataset.' if option == 'concat' else ''}{option}='{text}'")
    return found


def settling(
    unclear: Mapping[str, Sequence[str]],
    renamed: Mapping[str, str],
    concat: Mapping[str, Sequence[str]],
) -> list[tuple[str, str]]:
    """Return the options that would settle unclear roles, as (option, JSON).

    Args:
        unclear: as in `Roles`.
        renamed: the renames of the user, which stay.
        concat: the joined columns of the user, which stay.
    """
    joined: dict[str, list[str]] = {}
    for role, keys in unclear.items():
        if len({key.rpartition(".")[0] for key in keys}) == 1 and "." in keys[0]:
            joined[role] = list(keys)
    found: list[tuple[str, str]] = []
    if joined:
        kept = {key: list(parts) for key, parts in concat.items()}
        found.append(("concat", json.dumps({**kept, **joined})))
    for role, keys in unclear.items():
        for key in keys:
            found.append(("rename_map", json.dumps({**renamed, key: role})))
    return found
