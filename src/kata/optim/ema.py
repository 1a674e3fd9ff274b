"""The exponential moving average (EMA) of the weights."""

from __future__ import annotations

import copy
from collections.abc import Collection
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from kata.optim.config import EmaConfig

Model = TypeVar("Model", bound=nn.Module)


def ema_decay(config: EmaConfig, step: int) -> float:
    """Return the decay at update `step` (1 is the first); up to `update_after_step` it is 0."""
    k = step - config.update_after_step - 1
    if k <= 0:
        return 0.0
    if config.decay is not None:
        return config.decay
    return min(
        max(1 - (1 + k / config.inv_gamma) ** -config.power, config.min_decay), config.max_decay
    )


def ema_copy(model: Model) -> Model:
    """Return a copy of the model that holds the EMA and is never trained."""
    return copy.deepcopy(model).eval().requires_grad_(False)


def share_constants(average: nn.Module, model: nn.Module, constant: Collection[str]) -> None:
    """Let the average's parameters of these names use the model's memory: they never change.

    Shards keep their own memory, because the sharding engine owns it.
    """
    mine = dict(average.named_parameters())
    for name, other in model.named_parameters():
        if name in constant and not isinstance(other, DTensor):
            mine[name].data = other.data


@torch.no_grad()
def ema_update(
    average: nn.Module,
    model: nn.Module,
    decay: float,
    bad: Tensor,
    constant: Collection[str] = (),
) -> None:
    """Set average to decay * average + (1 - decay) * model; buffers are copied.

    If `bad` (a bool scalar on the device) marks a skipped step, the parameters' average stays.
    Parameters named in `constant` never change and are left out.
    """
    share = torch.where(bad, 0.0, 1 - decay)
    pairs = zip(average.parameters(), model.named_parameters(), strict=True)
    for mine, (name, other) in pairs:
        if name not in constant:
            mine.lerp_(other, share.to(mine.dtype))
    for mine, other in zip(average.buffers(), model.buffers(), strict=True):
        mine.copy_(other)
