"""The one table of policies: adding a policy adds a folder and a line here.

Each folder has `config` (torch-free; class `Config`) and `model` (class `Policy`). Modules are
imported by name when they are needed, so that `kata --help` and planning never import torch. Other
packages add policies through entry points of the group `kata.policies`: name = package with those
two modules.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING

from kata.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from kata.policies.base import Policy
    from kata.policies.config import PolicyConfig

POLICIES: dict[str, str] = {
    "act": "kata.policies.act",
    "diffusion": "kata.policies.diffusion",
    "multi_task_dit": "kata.policies.multi_task_dit",
    "pi0": "kata.policies.pi0",
    "pi05": "kata.policies.pi05",
    "smolvla": "kata.policies.smolvla",
    "tdmpc": "kata.policies.tdmpc",
    "vqbet": "kata.policies.vqbet",
}

__all__ = ["POLICIES", "build_policy", "config_class", "policy_types"]


def policy_types() -> dict[str, str]:
    """Return the package of every policy by policy name, including those of other distributions."""
    return {**_outside(), **POLICIES}


def config_class(name: str) -> type[PolicyConfig]:
    """Return the config class of a policy.

    Raises:
        ConfigError: no policy has that name. The message gives the nearest name.
    """
    known = policy_types()
    if name not in known:
        raise ConfigError(
            f"policy.type={name}: no such policy",
            rule=f"policies: {', '.join(sorted(known))}",
            remedy=did_you_mean(name, known),
        )
    other = _outside().get(name, known[name])
    if other != known[name]:
        raise ConfigError(
            f"policy.type={name}: kata has this policy, and {other} offers another",
            rule="each policy has its own name",
            remedy=f"rename the entry point of {other}, or remove that package",
        )
    try:
        return importlib.import_module(f"{known[name]}.config").Config
    except ImportError as error:
        if name in POLICIES:
            raise
        raise ConfigError(
            f"policy '{name}' of the package {known[name]}: {error}",
            rule="a package that offers policies can be imported",
            remedy=f"repair {known[name]}, or remove it",
        ) from error


def build_policy(config: PolicyConfig) -> Policy:
    """Return a policy with new weights, on the CPU, in training mode."""
    return importlib.import_module(f"{policy_types()[config.type]}.model").Policy(config)


@functools.cache
def _outside() -> dict[str, str]:
    from importlib.metadata import entry_points  # here, for it takes a while

    return {entry.name: entry.value for entry in entry_points(group="kata.policies")}
