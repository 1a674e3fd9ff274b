"""Sharded weights, gradients, optimizer state and EMA: over all ranks (FSDP2) or groups (HSDP).

A unit's weights are gathered just before its forward and backward pass, and dropped after it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    FSDPModule,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim import Optimizer

from kata.dist.engine import Replicas
from kata.dist.process_group import ProcessGroup

CALLED = "predict_chunk"
"""The method of a policy, other than forward, that gathers weights."""


class Sharded(Replicas):
    """Native FSDP2 and HSDP.

    Weights are gathered and gradients summed in the dtype of the weights, so autocast casts the
    same operations as without sharding.

    Args:
        group: the ranks.
        device: of this rank.
        copies: of the weights; 1 is FSDP, more are HSDP.
        shards: ranks that share one copy.
    """

    sharded = True

    def __init__(
        self, group: ProcessGroup, device: torch.device, *, copies: int, shards: int
    ) -> None:
        super().__init__(group, device)
        if device.type == "cuda":
            torch.cuda.set_device(device)  # a mesh knows kinds of devices alone
        shape, names = (
            ((copies, shards), ("dp_replicate", "dp_shard"))
            if copies > 1
            else ((shards,), ("dp_shard",))
        )
        self._mesh = init_device_mesh(device.type, shape, mesh_dim_names=names)

    def place(self, module: nn.Module, units: Sequence[nn.Module]) -> None:
        """Shard the parameters onto the device, unit by unit, and the rest as one."""
        self._cut(module, units)
        register_fsdp_forward_method(module, CALLED)
        for part in module.modules():
            if isinstance(part, FSDPModule):
                part.set_gradient_divide_factor(1.0)  # losses are sums
                part.set_force_sum_reduction_for_comms(True)

    def _cut(self, module: nn.Module, units: Sequence[nn.Module]) -> None:
        for unit in (*units, module):
            fully_shard(unit, mesh=self._mesh)

    def begin(self, policy: nn.Module, optimizer: Optimizer) -> Optimizer:
        """Set `model` for the first step, and return the same optimizer."""
        assert isinstance(policy, FSDPModule)
        self._root: FSDPModule = policy
        self.model: Callable[..., Any] = policy
        return optimizer

    @contextmanager
    def micro(self, *, last: bool) -> Generator[None]:
        """Wrap forward and backward of a micro-batch; the `last` one of a step sums gradients."""
        self._root.set_is_last_backward(last)
        self._root.set_requires_gradient_sync(last)
        yield

    def full(self, tensor: Tensor) -> Tensor:
        """Return a whole weight or optimizer state. Collective: all ranks call it in one order."""
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def shard(self, tensor: Tensor, like: Tensor) -> Tensor:
        """Return this rank's shard of a whole tensor, cut as `like` is cut; no rank waits."""
        if not isinstance(like, DTensor):
            return tensor
        return distribute_tensor(
            tensor.to(like.device), like.device_mesh, like.placements, src_data_rank=None
        )
