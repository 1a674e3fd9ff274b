"""How gradients of several ranks become one: sums, never means, since losses are sums (see kata.policies.base)."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Generator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.algorithms.ddp_comm_hooks.default_hooks import bf16_compress_hook
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer

from kata.dist.process_group import Team
from kata.dist.skip_step import clip_gradients, step_unless


class Engine:
    """One rank, which holds the whole policy. Others differ in where parameters lie and in who adds gradients up.

    `place` each module; build the optimiser over what lies there then; `begin`. A step is `micro` with the `model`'s
    forward pass and `backward` inside, for each micro-batch; then `sum`, `average` and `step`. All ranks make these
    calls in the same order.

    sharded: each rank holds a piece of weights, moments and average, so that all take part in copying or filling them.
    keeps: whether this rank keeps in host memory what is put together and copied: rank 0, unless `keeping` says else.
    """

    sharded = False
    model: Callable[..., Any]

    def __init__(self, team: Team, device: torch.device) -> None:
        self.team = team
        self.device = device
        self.keeps = team.world.is_first

    @contextmanager
    def keeping(self, mine: bool) -> Generator[None]:
        """Within, whether this rank keeps what all of them copy is `mine`."""
        before, self.keeps = self.keeps, mine
        try:
            yield
        finally:
            self.keeps = before

    def place(self, module: nn.Module, units: Sequence[nn.Module]) -> None:
        """Bring the policy, or an average of it, to where it lives; no rank waits for another in here.

        units: its parts that are called one by one (see `Policy.shard_units`).
        """
        del units
        module.to(self.device)

    def begin(self, policy: nn.Module, optimizer: Optimizer) -> Optimizer:
        """Get `model` ready for the first step; returns the optimiser to use from now on."""
        self.model = policy
        return optimizer

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

    def step(
        self, optimizer: Optimizer, loss: Tensor, max_norm: float, scaler: GradScaler | None = None
    ) -> tuple[Tensor, Tensor]:
        """One optimiser step with gradients clipped to `max_norm` over all ranks (0: not clipped), which are then gone.

        It is left out where `loss` or the gradient's norm is not finite; nothing waits for the device.

        Returns: device scalars, the norm before clipping and whether the step was left out (bool).
        """
        if scaler is not None:
            scaler.unscale_(optimizer)
        norm = clip_gradients(
            [p for group in optimizer.param_groups for p in group["params"]], max_norm
        )
        bad = ~(torch.isfinite(norm) & torch.isfinite(loss))
        step_unless(optimizer, bad, scaler)
        optimizer.zero_grad(set_to_none=True)
        return norm, bad

    def whole(self, tensor: Tensor) -> Tensor:
        """A weight or moment as one rank alone would hold it. Every rank calls this for the same ones in one order."""
        return tensor

    def piece(self, tensor: Tensor, like: Tensor) -> Tensor:
        """What this rank holds of a whole tensor, where it holds `like` of one of that shape; no rank waits."""
        del like
        return tensor


class Replicas(Engine):
    """Several ranks that each saw a part of the batch."""

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Make these the mean over ranks, in place: running statistics, of which each rank saw its part."""
        floats = [tensor for tensor in tensors if tensor.is_floating_point()]
        self.team.sum(floats)
        for tensor in floats:
            tensor.div_(self.team.world.size)


class Ddp(Replicas):
    """Native DistributedDataParallel with gradients as views of its buckets, summed while the backward pass runs.

    DDP divides gradients by the number of ranks, so losses are multiplied by it; a hook in Python that would not divide
    costs more, and wants Python's lock in the middle of the backward pass.

    Args:
        bucket_mb: size of a bucket of gradients.
        bf16: send gradients as bf16, half the bytes; they are summed in that precision.
        changes: which parameters get a gradient changes on the way, so that each step has to look for them.
    """

    def __init__(
        self, team: Team, device: torch.device, *, bucket_mb: int, bf16: bool, changes: bool
    ) -> None:
        super().__init__(team, device)
        self._bucket_mb, self._bf16 = bucket_mb, bf16
        self._changes = self._knows_graph = changes

    def begin(self, policy: nn.Module, optimizer: Optimizer) -> Optimizer:
        """Get `model` ready for the first step; the optimiser stays."""
        # Of a 1x1 kernel every stride is the same memory: the warning costs nothing but attention.
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        self.model = self._ddp = self._wrapped(
            policy,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            static_graph=not self._changes,
            find_unused_parameters=self._changes,
            bucket_cap_mb=self._bucket_mb,
        )
        if self._bf16:
            self._ddp.register_comm_hook(None, bf16_compress_hook)
        return optimizer

    def _wrapped(self, policy: nn.Module, **options: Any) -> DistributedDataParallel:
        return DistributedDataParallel(policy, **options)

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
