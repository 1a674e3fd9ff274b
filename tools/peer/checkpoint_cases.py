"""Cases from which a checkpoint of each policy is written and acted, both ways.

The module of a policy (`policy_<name>`) gives the case `CHECKPOINT`, `build_peer` and `build_own`,
which make its policy on either side, and `steady`, in which both sides draw the same numbers as
they act. Where the sizes of a network have no options, `tiny_peer` and `tiny_own` make them small.
"""

from __future__ import annotations

import importlib
from contextlib import AbstractContextManager, nullcontext
from types import ModuleType
from typing import Any

from numbers_of import tensor
from torch import Tensor

STEPS = 6
"""Observations that are acted on one after the other."""

RELATIVE: dict[str, Any] = {
    # Each step predicts: LeRobot adds the state of the step to actions of a queue.
    "n_action_steps": 1,
    "use_relative_actions": True,
    "relative_exclude_joints": ["grip"],
    "action_feature_names": ["base", "Gripper", "arm"],
}
"""Options of kata's policies for actions relative to the state, but for one."""

TASK = "push the block"
"""What policies that read sentences are told."""


def cases_of(name: str) -> ModuleType:
    """The module that describes a policy's cases; `name` may end with a variant, `pi0/relative`."""
    return importlib.import_module(f"policy_{name.partition('/')[0]}")


def case_of(name: str) -> Any:
    """The case of a checkpoint: CHECKPOINT, or an entry of VARIANTS."""
    variant = name.partition("/")[2]
    return cases_of(name).VARIANTS[variant] if variant else cases_of(name).CHECKPOINT


PI = ("pi0", "pi05", "pi0_fast")
"""Policies whose networks have no options for their sizes."""


def tiny_peer(name: str) -> AbstractContextManager[None]:
    """LeRobot builds a tiny policy inside."""
    policy = name.partition("/")[0]
    if policy in ("groot", "wall_x"):
        return cases_of(name).tiny_peer()
    return importlib.import_module("pi_cases").tiny_peer(policy) if policy in PI else nullcontext()


def tiny_own(name: str) -> AbstractContextManager[None]:
    """kata builds a tiny policy inside."""
    if name == "wall_x":
        return cases_of(name).tiny_own()
    return importlib.import_module("pi_cases").tiny_own(name) if name in PI else nullcontext()


def stats(case: Any) -> dict[str, dict[str, Tensor]]:
    """Statistics per feature as a dataset has them, cameras as (3, 1, 1)."""
    shapes = {
        key: (shape[0], 1, 1) if len(shape) == 3 else shape for key, shape in case.inputs.items()
    }
    shapes["action"] = (case.action_dim,)
    return {
        key: {
            "mean": 0.5 * tensor(f"{key} mean", shape),
            "std": 1 + 0.5 * tensor(f"{key} std", shape),
            "min": -1 - 0.5 * tensor(f"{key} min", shape).abs(),
            "max": 1 + 0.5 * tensor(f"{key} max", shape).abs(),
            "q01": -0.8 - 0.5 * tensor(f"{key} q01", shape).abs(),
            "q99": 0.8 + 0.5 * tensor(f"{key} q99", shape).abs(),
        }
        for key, shape in shapes.items()
    }


def robot_observations(case: Any) -> dict[str, Tensor]:
    """Raw observations (STEPS, ...), cameras in [0, 1]."""
    return {
        key: (tensor(f"{key} raw", (STEPS, *shape)) + 1) / 2 for key, shape in case.inputs.items()
    }
