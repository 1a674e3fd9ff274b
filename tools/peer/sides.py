"""Parts of comparisons: features, weights of the formula, gradients, actions in a row."""

from __future__ import annotations

import atexit
import functools
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from numbers_of import tensor, weight
from torch import Tensor

STATE = "observation.state"
ENVIRONMENT = "observation.environment_state"
BATCH_SIZE = 3


@functools.cache
def files_folder() -> Path:
    """Return the folder of tiny models: KATA_PEER_FILES, or one that goes with this process."""
    place = os.environ.get("KATA_PEER_FILES")
    if place is None:
        place = tempfile.mkdtemp()
        atexit.register(shutil.rmtree, place)
    return Path(place)


def peer_features(inputs: Mapping[str, tuple[int, ...]], action_dim: int) -> dict[str, Any]:
    """Return LeRobot's options for inputs of these shapes: states, and cameras."""
    from lerobot.configs.types import FeatureType, PolicyFeature

    return _features(PolicyFeature, FeatureType, inputs, action_dim)


def own_features(inputs: Mapping[str, tuple[int, ...]], action_dim: int) -> dict[str, Any]:
    """Return kata's options for inputs of these shapes: states, and cameras."""
    from kata.spec import Feature, FeatureType

    return _features(Feature, FeatureType, inputs, action_dim)


def _features(
    kind: Any, types: Any, inputs: Mapping[str, tuple[int, ...]], action_dim: int
) -> dict[str, Any]:
    states = {STATE: types.STATE, ENVIRONMENT: types.ENV}
    seen = {key: kind(states.get(key, types.VISUAL), shape) for key, shape in inputs.items()}
    return {
        "input_features": seen,
        "output_features": {"action": kind(types.ACTION, (action_dim,))},
    }


def with_actions(seen: dict[str, Any], chunk: int, action_dim: int) -> dict[str, Any]:
    """Return a training batch; all but the first sample's actions reach over the episode's end."""
    lengths = torch.tensor([chunk, max(1, chunk // 2), 1])[:, None]
    return {
        **seen,
        "action": tensor("action", (BATCH_SIZE, chunk, action_dim)),
        "action_is_pad": torch.arange(chunk)[None] >= lengths,
    }


def plain_stats(state_dim: int, action_dim: int) -> dict[str, dict[str, Tensor]]:
    """Return statistics that change nothing."""
    sizes = {STATE: state_dim, "action": action_dim}
    return {k: {"mean": torch.zeros(n), "std": torch.ones(n)} for k, n in sizes.items()}


def plain_pipeline(policy: Any, state_dim: int) -> Any:
    """Return kata's preprocessing for a policy, with statistics that change nothing."""
    from kata.policies.pipelines import canonical_pipelines

    found = plain_stats(state_dim, policy.config.action.shape[0])
    stats = {key: {name: v.numpy() for name, v in named.items()} for key, named in found.items()}
    return canonical_pipelines(policy.config, stats, rename_map={}, device="cpu")[0]


def filled(policy: Any) -> Any:
    """Give kata's policy the weights of the formula, by LeRobot's names, and return it."""
    key_map = policy.key_map()
    for name, value in policy.state_dict().items():
        value.copy_(weight(key_map.to_lerobot(name), tuple(value.shape)))
    return policy


def peer_gradients(policy: Any) -> dict[str, Tensor]:
    """Return the gradients of LeRobot's policy, as 'grad/<name>'."""
    return {f"grad/{n}": p.grad for n, p in policy.named_parameters() if p.grad is not None}


def own_gradients(policy: Any) -> dict[str, Tensor]:
    """Return the gradients of kata's policy, as 'grad/<LeRobot's name>'."""
    to_lerobot = policy.key_map().to_lerobot
    named = policy.named_parameters()
    return {f"grad/{to_lerobot(n)}": p.grad for n, p in named if p.grad is not None}


def own_loss(policy: Any, given: Mapping[str, Any], is_pad: Tensor, **draws: Tensor) -> Tensor:
    """Return the mean of kata's loss of one term; `is_pad` (B, T) marks padded actions."""
    pads = {"action_is_pad": is_pad.numpy()}
    ((name, count),) = policy.config.loss_weights(BATCH_SIZE, pads).items()
    return policy(given, **draws).terms[name].total / count


def peer_actions(policy: Any, seen: Callable[[int], dict[str, Any]], steps: int) -> Tensor:
    """Return actions in a row of LeRobot's policy (steps, B, A).

    Args:
        policy: LeRobot's, with an empty queue.
        seen: gives the observation of each step.
        steps: their number.
    """
    return torch.stack([policy.select_action(seen(step)) for step in range(steps)])


def own_actions(policy: Any, seen: Callable[[int], dict[str, Any]], steps: int) -> Tensor:
    """Return actions in a row of kata's policy (steps, B, A)."""
    state, actions = policy.init_state(BATCH_SIZE), []
    for step in range(steps):
        action, state = policy.act(seen(step), state)
        actions.append(action)
    return torch.stack(actions)
