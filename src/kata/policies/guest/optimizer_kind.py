"""The torch optimizer that a preset of LeRobot makes, for presets that kata does not know."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from kata.errors import PolicyError

_KINDS: dict[type[Optimizer], str] = {AdamW: "adamw", Adam: "adam", SGD: "sgd"}


def kind_of_preset(preset: Any, policy_type: str) -> str:
    """Return kata's name of the optimizer that a preset makes of one parameter.

    Args:
        preset: LeRobot's optimizer config.
        policy_type: names the policy in messages.

    Raises:
        PolicyError: it makes several optimizers, or one of another class.
    """
    made = preset.build({"weight": nn.Parameter(torch.zeros(1))})
    name = _KINDS.get(type(made))
    if name is None:
        raise PolicyError(
            f"{policy_type}: its preset {preset.type} makes {type(made).__name__}",
            rule=f"one optimizer of: {', '.join(_KINDS.values())}",
            remedy="name one: --use_policy_training_preset=false --optimizer.type=adamw "
            "--optimizer.lr=1e-4",
        )
    return name
