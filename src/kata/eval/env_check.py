"""Checks that a policy and an environment fit, made before the first step. Torch-free."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kata.errors import PolicyError, did_you_mean, nearest
from kata.eval.envs.registry import EnvSpec, Facts, inspect
from kata.policies.config import PolicyConfig
from kata.spec import ENV_STATE, STATE, FeatureType

WHOLE = "."
"""The path of an observation that is one array."""

_SEEN = (FeatureType.VISUAL, FeatureType.STATE, FeatureType.ENV)


class View(NamedTuple):
    """The place of one policy input in an observation.

    shape: (H, W, C) of a camera, else (D,).
    """

    keys: tuple[str, ...]
    shape: tuple[int, ...]
    is_camera: bool


@dataclass(frozen=True)
class Fit:
    """The mapping between a policy and an environment: views of observations, bounds of actions.

    low, high: (A,), infinite where actions are not clipped.
    """

    views: dict[str, View]
    paths: dict[str, str]
    low: NDArray[np.float32]
    high: NDArray[np.float32]


def fit(config: PolicyConfig, spec: EnvSpec, facts: Facts, renamed: Mapping[str, str]) -> Fit:
    """Check every input and the action of a policy against an environment.

    Args:
        config: the policy's.
        spec, facts: the environment and what it declares.
        renamed: policy key -> the key that the environment's side has for it.

    Raises: PolicyError naming what does not fit, with a flag that is ready to use where there is
        one.
    """
    wanted = {key: f.shape for key, f in config.input_features.items() if f.type in _SEEN}
    for name in (*spec.observation_map, *renamed):
        if name not in wanted:
            raise PolicyError(
                f"env.observation_map or rename_map: the policy has no input {name}",
                rule=f"its inputs: {', '.join(wanted)}",
                remedy=did_you_mean(name, wanted),
            )
    paths = {key: _path(key, spec, facts, renamed) for key in wanted}
    _check_present(paths, config, spec, facts)
    views: dict[str, View] = {}
    for key, shape in wanted.items():
        camera = key in config.cameras
        expected = (*shape[1:], shape[0]) if camera else shape
        leaf = facts.leaves[paths[key]]
        _check_leaf(key, paths[key], expected, leaf.shape, leaf.is_picture or not camera)
        views[key] = View(leaf.keys, expected, camera)
    if facts.action.shape != (config.action_size,):
        raise PolicyError(
            f"the policy's action has {config.action_size} numbers, {spec.id} takes "
            f"{_size(facts.action.shape)}",
            rule="both of one size",
            remedy="evaluate in the environment that the policy was trained for",
        )
    bounds = (facts.action.low, facts.action.high)
    if not spec.clip:
        bounds = (np.full(facts.action.shape, -np.inf), np.full(facts.action.shape, np.inf))
    low, high = (np.asarray(bound, np.float32) for bound in bounds)
    return Fit(views, paths, low, high)


def acceptance(spec: EnvSpec, delay: int = 0) -> Callable[[PolicyConfig, Mapping[str, str]], None]:
    """Return a check of a policy against this environment, which is made for it once.

    Args:
        spec: the environment.
        delay: steps that a prediction takes.

    The check raises what `fit` raises, and ConfigError where the environment cannot be made.
    """

    def accept(config: PolicyConfig, renamed: Mapping[str, str]) -> None:
        config.refuse_delay(delay)
        fit(config, spec, inspect(spec), renamed)

    return accept


def _path(key: str, spec: EnvSpec, facts: Facts, renamed: Mapping[str, str]) -> str:
    """Return where the environment has an input: by the name in the data, else by LeRobot's."""
    if key in spec.observation_map:
        return spec.observation_map[key]
    named = usual_path(renamed.get(key, key))
    usual = usual_path(key)
    if key == STATE and list(facts.leaves) == [WHOLE]:
        return WHOLE
    return usual if named not in facts.leaves and usual in facts.leaves else named


def refuse_unknown_renames(rename_map: Mapping[str, str], facts: Facts) -> None:
    """Raise PolicyError for a key to rename that an environment does not have.

    Args:
        rename_map: that a user has given, {environment's: policy's}.
        facts: what the environment declares.
    """
    known = [usual_key(path) for path in facts.leaves]
    for old in rename_map:
        if usual_path(old) not in facts.leaves and old not in known:
            raise PolicyError(
                f"rename_map: the environment has no {old}",
                rule=f"its observations: {', '.join(known)}",
                remedy=did_you_mean(old, known),
            )


def usual_key(path: str) -> str:
    """Return the key of an observation, the inverse of `usual_path`."""
    if path in ("agent_pos", WHOLE):
        return STATE
    if path == "environment_state":
        return ENV_STATE
    if path.startswith("pixels."):
        return path.replace("pixels.", "observation.images.", 1)
    return "observation.image" if path == "pixels" else path


def usual_path(key: str) -> str:
    """Return the path of a policy input in environments made for LeRobot.

    These are agent_pos, environment_state and pixels[.camera].
    """
    if key == STATE:
        return "agent_pos"
    if key == ENV_STATE:
        return "environment_state"
    return key.replace("observation.images.", "pixels.").replace("observation.image", "pixels")


def _check_present(
    paths: Mapping[str, str], config: PolicyConfig, spec: EnvSpec, facts: Facts
) -> None:
    missing = [key for key, path in paths.items() if path not in facts.leaves]
    if not missing:
        return
    hint: dict[str, str] = {}
    for key in missing:
        same = [
            path
            for path, leaf in facts.leaves.items()
            if leaf.is_picture == (key in config.cameras)
        ]
        if same:
            hint[key] = nearest(paths[key], same) or same[0]
    there = ", ".join(f"{path} {_size(leaf.shape)}" for path, leaf in facts.leaves.items())
    raise PolicyError(
        f"{', '.join(missing)}: {spec.id} has no "
        f"{' and no '.join(repr(paths[key]) for key in missing)}",
        rule=f"it observes: {there or 'no arrays'}",
        remedy=f"say where it lies: --env.observation_map='{json.dumps(hint)}'"
        if len(hint) == len(missing)
        else "see whether the environment can show it: --env.kwargs",
    )


def _check_leaf(
    key: str, path: str, expected: tuple[int, ...], found: tuple[int, ...], right_type: bool
) -> None:
    if not right_type:
        raise PolicyError(
            f"{key}: '{path}' is no picture",
            rule="uint8 of (height, width, 3)",
            remedy="map another path to it",
        )
    if expected != found:
        raise PolicyError(
            f"{key}: the policy was trained on {_size(expected)}, '{path}' is {_size(found)}",
            rule="the size that the policy was trained on",
            remedy="set the environment's own size options with --env.kwargs, or train on data of "
            "its size",
        )


def _size(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, shape)) or "one number"
