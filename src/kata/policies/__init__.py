"""The one table of policies: adding a policy adds a folder and a line here.

Each folder has `config` (torch-free; class `Config`), `model` (class `Policy`) and `load` (key map to LeRobot's
names). Modules are imported by name when they are needed, so that `kata --help` and planning never import torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from kata.errors import ConfigError, did_you_mean

if TYPE_CHECKING:
    from kata.policies.base import Policy
    from kata.policies.config import PolicyConfig

POLICIES: dict[str, str] = {
    "act": "kata.policies.act",
    "diffusion": "kata.policies.diffusion",
}

__all__ = ["POLICIES", "build_policy", "config_class"]


def config_class(name: str) -> type[PolicyConfig]:
    """The config class of the policy called `name`; ConfigError with the nearest name for an unknown one."""
    if name not in POLICIES:
        raise ConfigError(
            f"policy.type={name}: no such policy",
            rule=f"policies: {', '.join(sorted(POLICIES))}",
            remedy=did_you_mean(name, POLICIES),
        )
    return importlib.import_module(f"{POLICIES[name]}.config").Config


def build_policy(config: PolicyConfig) -> Policy:
    """The policy of this config with fresh weights, on the CPU, in training mode."""
    return importlib.import_module(f"{POLICIES[config.type]}.model").Policy(config)
