"""Statistics of relative actions by the step of their chunk, in the layout of NVIDIA's files."""

from __future__ import annotations

from typing import Any

import numpy as np

from kata.errors import PolicyError
from kata.policies.groot.base_model import ROBOTS, Sidecars
from kata.policies.groot.config import Config
from kata.spec import ACTION, RELATIVE_ACTION, STATE, Stats

NAMES = ("min", "max", "mean", "std", "q01", "q99")


def relative_files(config: Config, stats: Stats) -> Sidecars:
    """Return what files beside a base model would say of a dataset's relative actions.

    Neighboring numbers that are relative are a group; each number that stays absolute is one.

    Args:
        config: with the names of the action's numbers.
        stats: of state and actions, and RELATIVE_ACTION with rows for each step of a chunk.

    Raises:
        PolicyError: no number is relative.
    """
    relative = config.relative_dimensions() or []
    if not any(relative):
        raise PolicyError(
            f"policy.relative_exclude_joints={config.relative_exclude_joints}: no number of the "
            "action is relative",
            rule="with policy.use_relative_actions=true at least one is",
            remedy="--policy.use_relative_actions=false",
        )
    groups = _groups(config.action_feature_names or [], relative)
    steps = list(range(len(stats[RELATIVE_ACTION]["min"])))
    found: dict[str, Any] = {}
    for kind, key in (("state", STATE), (ACTION, ACTION)):
        found[kind] = {name: _sliced(stats[key], dims) for name, dims, _ in groups}
    found["relative_action"] = {
        name: _sliced(stats[RELATIVE_ACTION], dims) for name, dims, moves in groups if moves
    }
    names = [name for name, _, _ in groups]
    kept = {"type": "NON_EEF", "format": "DEFAULT", "state_key": None}
    reps = [{"rep": "RELATIVE" if moves else "ABSOLUTE", **kept} for _, _, moves in groups]
    files = config.files
    cameras = None if files is None else files.cameras
    shown = cameras or [key.removeprefix("observation.images.") for key in config.cameras]
    modality = {
        "state": {"modality_keys": names},
        ACTION: {"modality_keys": names, "action_configs": reps, "delta_indices": steps},
        "video": {"modality_keys": shown, "delta_indices": [0]},
    }
    options = {} if files is None else dict(files.options)
    options |= {"use_percentiles": True, "use_relative_action": True}
    numbers = dict(ROBOTS) if files is None else files.numbers
    return Sidecars(stats=found, modality=modality, numbers=numbers, options=options)


def _groups(names: list[str], relative: list[bool]) -> list[tuple[str, list[int], bool]]:
    """Return groups: name, numbers, and whether they are relative, named as LeRobot does."""
    groups: list[tuple[str, list[int], bool]] = []
    for number, moves in enumerate(relative):
        if moves and groups and groups[-1][2]:
            groups[-1][1].append(number)
        elif moves:
            is_first = all(name != "single_arm" for name, _, _ in groups)
            name = "single_arm" if is_first else f"single_arm_{len(groups)}"
            groups.append((name, [number], True))
        else:
            last = names[number].removesuffix(".pos").rpartition(".")[2]
            groups.append((last.replace(" ", "_") or "action", [number], False))
    return groups


def _sliced(stats: Any, dims: list[int]) -> dict[str, Any]:
    """Return the statistics of some numbers as lists; empty where there are fewer."""
    if dims[-1] >= np.asarray(stats["min"]).shape[-1]:
        return {}
    return {
        name: np.asarray(stats[name], np.float32)[..., dims].tolist()
        for name in NAMES
        if name in stats
    }
