"""How gradients of several ranks become one: sums, never means, since losses are sums (see kata.policies.base)."""

# Without `from __future__ import annotations`: DDP looks at the annotations of its hooks, and wants types.

from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed import GradBucket  # pyright: ignore[reportPrivateImportUsage]: documented under this name
from torch.futures import Future
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

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Add the other ranks' tensors to these, in place."""
        self.team.sum(tensors)

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Make these the mean over ranks, in place: running statistics, of which each rank saw its part."""


class Ddp(Engine):
    """Native DistributedDataParallel with gradients as views of its buckets, summed while the backward pass runs.

    Args:
        bucket_mb: size of a bucket of gradients.
        bf16: send gradients as bf16, half the bytes; they are summed in that precision.
        changes: which parameters get a gradient changes on the way, so that each step has to look for them.
    """

    def __init__(self, policy: nn.Module, team: Team, *, bucket_mb: int, bf16: bool, changes: bool) -> None:
        super().__init__(policy, team)
        self._ddp = DistributedDataParallel(
            policy,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            static_graph=not changes,
            find_unused_parameters=changes,
            bucket_cap_mb=bucket_mb,
        )
        self._ddp.register_comm_hook(None, _sum_as_bf16 if bf16 else _sum)
        self.model = self._ddp
        self._knows_graph = changes

    @contextmanager
    def micro(self, *, last: bool) -> Generator[None]:
        """Around forward and backward of a micro-batch; gradients become one in the `last` of a step.

        A static graph is learnt in the very first pass, which has to be one whose gradients are sent. Where others
        follow in that step, rank 0 alone goes on with the sum, so that it is counted once.
        """
        with nullcontext() if last or not self._knows_graph else self._ddp.no_sync():
            yield
        if not last and not self._knows_graph and not self.team.world.is_first:
            for parameter in self._ddp.parameters():
                if parameter.grad is not None:
                    parameter.grad.zero_()
        self._knows_graph = True

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Make these the mean over ranks, in place: running statistics, of which each rank saw its part."""
        floats = [tensor for tensor in tensors if tensor.is_floating_point()]
        self.team.sum(floats)
        for tensor in floats:
            tensor.div_(self.team.world.size)


def _sum(_: None, bucket: GradBucket) -> Future[Tensor]:
    """DDP's own hook divides by the number of ranks first."""
    work = dist.all_reduce(bucket.buffer(), async_op=True)
    assert work is not None
    return work.get_future().then(_first)


def _sum_as_bf16(_: None, bucket: GradBucket) -> Future[Tensor]:
    whole = bucket.buffer()
    work = dist.all_reduce(whole.to(torch.bfloat16), async_op=True)
    assert work is not None
    return work.get_future().then(lambda future: whole.copy_(_first(future)))


def _first(future: Future[list[Tensor]]) -> Tensor:
    return future.value()[0]
