"""From an optimiser's options to a torch optimiser over a policy's parameter groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch import nn
from torch.distributed.tensor import DTensor
from torch.optim import SGD, Adam, AdamW, Optimizer

from kata.optim.config import AdamConfig, AdamWConfig, OptimizerConfig, SGDConfig


class Group(Protocol):
    """Parameters trained alike; None means the optimiser's own value."""

    @property
    def params(self) -> list[nn.Parameter]:
        """The parameters."""
        ...

    @property
    def lr(self) -> float | None:
        """Their own base rate."""
        ...

    @property
    def weight_decay(self) -> float | None:
        """Their own decay."""
        ...


def build_optimizer(groups: Sequence[Group], config: OptimizerConfig) -> Optimizer:
    """The optimiser over these groups. Each group keeps its unscheduled rate under 'base_lr'.

    The fused kernels are used where torch has them (CPU, CUDA; SGD's not for parameters in pieces): one pass over the
    parameters instead of several.
    """
    table: list[dict[str, Any]] = []
    for group in groups:
        lr = config.lr if group.lr is None else group.lr
        decay = config.weight_decay if group.weight_decay is None else group.weight_decay
        params = [p for p in group.params if p.requires_grad]
        if params:
            table.append({"params": params, "lr": lr, "base_lr": lr, "weight_decay": decay})
    fused = all(p.device.type in ("cpu", "cuda") for g in table for p in g["params"])
    match config:
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
                fused=fused and not any(isinstance(p, DTensor) for g in table for p in g["params"]),
            )
        case _:
            raise AssertionError(f"no optimiser for {type(config).__name__}")


def set_lr(optimizer: Optimizer, factor: float) -> float:
    """Scale every group's rate by the schedule's factor; the first group's rate is returned for the log."""
    for group in optimizer.param_groups:
        group["lr"] = group["base_lr"] * factor
    return float(optimizer.param_groups[0]["lr"])
