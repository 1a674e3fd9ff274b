"""The one table of policies: adding a policy adds a folder and a line here.

Each folder has `config` (torch-free; class `Config`) and `model` (class `Policy`). Modules are
imported by name when they are needed, so that `kata --help` and planning never import torch. Other
packages add policies through entry points of the group `kata.policies`: name = package with those
two modules. A policy `lerobot.<name>` is LeRobot's, run by `kata.policies.guest`.
"""

from __future__ import annotations

import functools
import importlib
from typing import TYPE_CHECKING

from kata.errors import ConfigError, did_you_mean
from kata.policies.guest.library import GUEST_PREFIX, guest_names

if TYPE_CHECKING:
    from kata.policies.base import Policy
    from kata.policies.config import PolicyConfig

POLICIES: dict[str, str] = {
    "act": "kata.policies.act",
    "diffusion": "kata.policies.diffusion",
    "eo1": "kata.policies.eo1",
    "gaussian_actor": "kata.policies.gaussian_actor",
    "groot": "kata.policies.groot",
    "multi_task_dit": "kata.policies.multi_task_dit",
    "pi0": "kata.policies.pi0",
    "pi05": "kata.policies.pi05",
    "pi0_fast": "kata.policies.pi0_fast",
    "smolvla": "kata.policies.smolvla",
    "tdmpc": "kata.policies.tdmpc",
    "vqbet": "kata.policies.vqbet",
    "wall_x": "kata.policies.wall_x",
    "xvla": "kata.policies.xvla",
}

BY_ACTING = ("gaussian_actor",)
"""Policies that learn by acting: `kata rl` trains them, and `kata train` refuses them."""

RENAMED = {"sac": "gaussian_actor"}
"""Names of older versions of LeRobot, and today's."""

_GUEST = "kata.policies.guest"

__all__ = [
    "POLICIES",
    "build_policy",
    "config_class",
    "lerobot_type",
    "policy_types",
    "stored_type",
]


def policy_types() -> dict[str, str]:
    """Return the package of every policy by policy name, including those of other distributions."""
    return {**_outside(), **POLICIES}


def types_from_recordings() -> list[str]:
    """Return the names of the policies that `kata train` trains."""
    return [name for name in policy_types() if name not in BY_ACTING]


def config_class(name: str) -> type[PolicyConfig]:
    """Return the config class of a policy.

    Raises:
        ConfigError: no policy has that name. The message gives the nearest name.
    """
    if name.startswith(GUEST_PREFIX):
        return importlib.import_module(f"{_GUEST}.config").guest_class(name)
    known = policy_types()
    name = RENAMED.get(name, name)
    if name not in known:
        raise ConfigError(
            f"policy.type={name}: no such policy",
            rule=f"policies: {', '.join(sorted(known))}; {GUEST_PREFIX}<name> is LeRobot's",
            remedy=did_you_mean(name, [*known, *guest_names()]),
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


def stored_type(name: str) -> str:
    """Return the `policy.type` of a checkpoint whose config.json has this type.

    Where kata has no policy of that name, it is a guest of LeRobot.
    """
    is_known = name in (*policy_types(), *RENAMED) or name.startswith(GUEST_PREFIX)
    # A name such as ../evil is nobody's; it is refused as it stands.
    return GUEST_PREFIX + name if name.isidentifier() and not is_known else name


def lerobot_type(name: str) -> str:
    """Return LeRobot's name of a policy: a guest's weights are those of kata's own policy."""
    return name.removeprefix(GUEST_PREFIX)


def build_policy(config: PolicyConfig) -> Policy:
    """Return a policy with new weights, on the CPU, in training mode."""
    package = _GUEST if config.is_guest else policy_types()[config.type]
    return importlib.import_module(f"{package}.model").Policy(config)


@functools.cache
def _outside() -> dict[str, str]:
    from importlib.metadata import entry_points  # here, for it takes a while

    return {entry.name: entry.value for entry in entry_points(group="kata.policies")}
