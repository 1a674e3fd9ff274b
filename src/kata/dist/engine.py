"""How gradients of several ranks become one: sums, never means, since losses are sums (see kata.policies.base)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel

from kata.dist.team import Team


class Engine:
    """One rank: `model` is the policy as it is."""

    def __init__(self, policy: nn.Module, team: Team) -> None:
        self.model: Callable[..., Any] = policy
        self.team = team

    def micro(self, *, last: bool) -> AbstractContextManager[object]:
        """Around forward and backward of a micro-batch; gradients become one in the `last` of a step."""
        del last
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Gradients of this rank's part of the loss, added over ranks in the last micro-batch."""
        loss.backward()

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Add the other ranks' tensors to these, in place."""
        self.team.sum(tensors)

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Make these the mean over ranks, in place: running statistics, of which each rank saw its part."""


class Ddp(Engine):
    """Native DistributedDataParallel with gradients as views of its buckets, summed while the backward pass runs.

    DDP divides gradients by the number of ranks, so losses are multiplied by it; a hook in Python that would not divide
    costs more, and wants Python's lock in the middle of the backward pass.

    Args:
        bucket_mb: size of a bucket of gradients.
        bf16: send gradients as bf16, half the bytes; they are summed in that precision.
        changes: which parameters get a gradient changes on the way, so that each step has to look for them.
    """

    def __init__(self, policy: nn.Module, team: Team, *, bucket_mb: int, bf16: bool, changes: bool) -> None:
        super().__init__(policy, team)
        # Of a 1x1 kernel every stride is the same memory: the warning costs nothing but attention.
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        self._ddp = DistributedDataParallel(
            policy,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            static_graph=not changes,
            find_unused_parameters=changes,
            bucket_cap_mb=bucket_mb,
        )
        if bf16:
            self._ddp.register_comm_hook(None, bf16_compress_hook)
        self.model = self._ddp
        self._knows_graph = changes

    @contextmanager
    def micro(self, *, last: bool) -> Generator[None]:
        """Around forward and backward of a micro-batch; gradients become one in the `last` of a step.

        A static graph is learnt in the very first pass, which has to be one whose gradients are sent. Where others
        follow in that step, rank 0 alone goes on with what came out, times the ranks, which it will be divided by.
        """
        with nullcontext() if last or not self._knows_graph else self._ddp.no_sync():
            yield
        if not last and not self._knows_graph:
            for parameter in self._ddp.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(self.team.world.size if self.team.world.is_first else 0)
        self._knows_graph = True

    def backward(self, loss: Tensor) -> None:
        """Gradients of this rank's part of the loss, added over ranks in the last micro-batch."""
        (loss * self.team.world.size).backward()

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Make these the mean over ranks, in place: running statistics, of which each rank saw its part."""
        floats = [tensor for tensor in tensors if tensor.is_floating_point()]
        self.team.sum(floats)
        for tensor in floats:
            tensor.div_(self.team.world.size)
