"""Forward passes whose activations are computed again in the backward pass instead of kept."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint


def recompute_in_backward(unit: nn.Module) -> None:
    """Let a module keep nothing but its inputs for the backward pass while it is trained.

    Dropout draws the same masks again, so gradients are those without it.
    """
    forward: Callable[..., Any] = unit.forward

    def run(*args: Any, **kwargs: Any) -> Any:
        if unit.training and torch.is_grad_enabled():
            return checkpoint(forward, *args, use_reentrant=False, **kwargs)
        return forward(*args, **kwargs)

    vars(unit)["forward"] = run
