"""Torch optimizers from options and a policy's parameter groups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, Protocol

from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from kata.optim.config import AdamConfig, AdamW8bitConfig, AdamWConfig, OptimizerConfig, SGDConfig
from kata.optim.eight_bit import adamw_8bit


class Group(Protocol):
    """Parameters with the same options; None means the optimizer's value."""

    @property
    def params(self) -> list[nn.Parameter]:
        """Return the parameters."""
        ...

    @property
    def lr(self) -> float | None:
        """Return their base learning rate."""
        ...

    @property
    def weight_decay(self) -> float | None:
        """Return their weight decay."""
        ...

    @property
    def lr_scale(self) -> float:
        """Return what the optimizer's learning rate is multiplied by, where they have none."""
        ...

    @property
    def decay_scale(self) -> float:
        """Return what the optimizer's weight decay is multiplied by, where they have none."""
        ...


def build_optimizer(groups: Sequence[Group], config: OptimizerConfig) -> Optimizer:
    """Return the optimizer over these groups. Each group keeps its unscheduled rate as 'base_lr'.

    Fused kernels make one pass over the parameters instead of several. torch has them on CPU and
    CUDA; SGD's do not take sharded parameters.
    """
    table: list[dict[str, Any]] = []
    for group in groups:
        lr = config.lr * group.lr_scale if group.lr is None else group.lr
        decay = config.weight_decay * group.decay_scale
        decay = decay if group.weight_decay is None else group.weight_decay
        params = [p for p in group.params if p.requires_grad]
        if params:
            table.append({"params": params, "lr": lr, "base_lr": lr, "weight_decay": decay})
    trained = list(chain.from_iterable(entry["params"] for entry in table))
    fused = all(p.device.type in ("cpu", "cuda") for p in trained)
    match config:
        case AdamW8bitConfig():
            return adamw_8bit(table, config)
        case AdamWConfig():
            return AdamW(table, lr=config.lr, betas=config.betas, eps=config.eps, fused=fused)
        case AdamConfig():
            return Adam(table, lr=config.lr, betas=config.betas, eps=config.eps, fused=fused)
        case SGDConfig():
            return SGD(
                table,
                lr=config.lr,
                momentum=config.momentum,
                dampening=config.dampening,
                nesterov=config.nesterov,
                fused=fused and not any(isinstance(p, DTensor) for p in trained),
            )
        case _:
            raise AssertionError(f"no optimizer for {type(config).__name__}")


def set_lr(optimizer: Optimizer, factor: float) -> float:
    """Scale every group's rate by the schedule's factor, and return the first group's rate."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor
    return float(optimizer.param_groups[0]["lr"])
