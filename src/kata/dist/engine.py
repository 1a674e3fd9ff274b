"""Engines: they sum the gradients of all ranks, since losses are sums (see kata.policies.base)."""

# pyright: reportPrivateImportUsage=false, reportPrivateUsage=false
# torch's operations on lists of tensors have no public name.

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

from kata.dist.process_group import ProcessGroup
from kata.dist.skip_step import clip_gradients, optimizer_parameters, step_unless


class Engine:
    """The engine of a single rank, which holds the whole policy. Subclasses serve several ranks.

    First `place` each module, then build the optimizer, then `begin`. A step runs `micro` for each
    micro-batch, with the `model`'s forward pass and `backward` inside; then `sum`, `average` and
    `step`. Collective: all ranks make these calls in the same order.

    Attributes:
        sharded: True if each rank holds a shard of weights, optimizer state and EMA. All ranks then
            take part in copying or filling them.
        keeps: True if this rank keeps gathered copies in host memory: rank 0, unless `keeping`
            changes it.
        may_ask: True if the host may read a value of the device in the middle of a step: there is
            no wait on a CPU.
    """

    sharded = False
    may_ask: bool
    model: Callable[..., Any]

    def __init__(self, group: ProcessGroup, device: torch.device) -> None:
        self.group = group
        self.device = device
        self.keeps = group.world.is_first
        self.may_ask = device.type == "cpu"

    @contextmanager
    def keeping(self, mine: bool) -> Generator[None]:
        """Set `keeps` to `mine` inside the block."""
        before, self.keeps = self.keeps, mine
        try:
            yield
        finally:
            self.keeps = before

    def place(self, module: nn.Module, units: Sequence[nn.Module]) -> None:
        """Move the policy, or its EMA, to the device; no rank waits for another.

        Args:
            module: the policy or its EMA.
            units: its modules that are called one by one (see `Policy.shard_units`).
        """
        del units
        module.to(self.device)

    def begin(self, policy: nn.Module, optimizer: Optimizer) -> Optimizer:
        """Set `model` for the first step, and return the optimizer to use from now on."""
        self.model = policy
        return optimizer

    def micro(self, *, last: bool) -> AbstractContextManager[object]:
        """Wrap forward and backward of a micro-batch; the `last` one of a step sums gradients."""
        del last
        return nullcontext()

    def backward(self, loss: Tensor) -> None:
        """Compute gradients of this rank's loss, summed over ranks in the last micro-batch."""
        loss.backward()

    @property
    def agrees(self) -> bool:
        """Return True if every rank learns in this step that one of them is out of memory."""
        return self.group.world.size == 1

    def out_of_memory(self, *, here: bool) -> bool:
        """Return True if this rank is out of memory, or any rank where they agree.

        All ranks call it after the last micro-batch, whether their memory was enough or not.
        """
        return here

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Add the other ranks' tensors to these, in place."""
        self.group.sum(tensors)

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Average running statistics over ranks, in place; each rank saw its slice of the batch."""

    def step(
        self, optimizer: Optimizer, loss: Tensor, max_norm: float, scaler: GradScaler | None = None
    ) -> tuple[Tensor, Tensor]:
        """Clip gradients to `max_norm` over all ranks (0: not), step the optimizer, drop gradients.

        The step is skipped if `loss` or the gradient norm is not finite. Nothing waits for the
        device.

        Returns: two device scalars, the norm before clipping and True for a skipped step.
        """
        if scaler is not None:
            scaler.unscale_(optimizer)
        parameters = optimizer_parameters(optimizer)
        norm = clip_gradients(parameters, max_norm, may_ask=self.may_ask)
        bad = ~(torch.isfinite(norm) & torch.isfinite(loss))
        step_unless(optimizer, bad, scaler)
        optimizer.zero_grad(set_to_none=True)
        return norm, bad

    def full(self, tensor: Tensor) -> Tensor:
        """Return a whole weight or optimizer state. Collective: all ranks call it in one order."""
        return tensor

    def shard(self, tensor: Tensor, like: Tensor) -> Tensor:
        """Return this rank's shard of a whole tensor, cut as `like` is cut; no rank waits."""
        del like
        return tensor


class Replicas(Engine):
    """An engine of several ranks, each of which computes a slice of the batch."""

    def average(self, tensors: Sequence[Tensor]) -> None:
        """Average running statistics over ranks, in place; each rank saw its slice of the batch."""
        floats = [tensor for tensor in tensors if tensor.is_floating_point()]
        self.group.sum(floats)
        for tensor in floats:
            tensor.div_(self.group.world.size)


GUARDED_STEPS = 2
"""Steps before DDP wraps the policy. The second one has the optimizer state, so that later steps
need no more memory.
"""


class Ddp(Replicas):
    """Native DistributedDataParallel: gradients are views of its buckets, summed in the backward.

    DDP divides gradients by the number of ranks, so losses are multiplied by it. A Python hook that
    does not divide would cost more, and would need the GIL in the middle of the backward pass.

    A rank that is out of memory would leave the others waiting inside the backward pass. So ranks
    compute the first steps alone, agree that memory was enough, and only then sum gradients. These
    steps do not hide the communication. Afterwards DDP does, and a full memory ends the run.

    Args:
        group: the ranks.
        device: of this rank.
        bucket_mb: size of a bucket of gradients.
        bf16: send gradients as bf16, half the bytes; they are summed in that precision.
        changes: True if the set of parameters with a gradient changes during the run. DDP then
            searches for it in each step.
    """

    def __init__(
        self,
        group: ProcessGroup,
        device: torch.device,
        *,
        bucket_mb: int,
        bf16: bool,
        changes: bool,
    ) -> None:
        super().__init__(group, device)
        self._bucket_mb, self._bf16 = bucket_mb, bf16
        self._changes = self._knows_graph = changes
        self._guarded_steps = GUARDED_STEPS
        self._room: list[Tensor] = []

    def begin(self, policy: nn.Module, optimizer: Optimizer) -> Optimizer:
        """Set `model` for the first step, and return the same optimizer."""
        self.model = self._policy = policy
        return optimizer

    @property
    def agrees(self) -> bool:
        """Return True if every rank learns in this step that one of them is out of memory."""
        return self._guarded_steps > 0

    def out_of_memory(self, *, here: bool) -> bool:
        """Return True if any rank is out of memory; sum the gradients if none is.

        After the guarded steps only this rank's memory counts, and nothing is left to sum.
        """
        if not self.agrees:
            return here
        self._room.clear()  # the sum takes as much memory
        votes = torch.tensor(float(here), device=self.device)
        self.group.sum([votes])
        if votes.item() > 0:
            self._guarded_steps = GUARDED_STEPS
            return True
        self._sum_gradients()
        return False

    def _sum_gradients(self) -> None:
        """Sum gradients over ranks, divided by their number and sent in the type that DDP uses."""
        held = [p.grad for p in self._policy.parameters() if p.grad is not None]
        size = self.group.world.size
        if self._bf16:
            sent = [gradient.bfloat16().div_(size) for gradient in held]
            self.group.sum(sent)
            torch._foreach_copy_(held, sent)
        else:
            torch._foreach_mul_(held, 1 / size)
            self.group.sum(held)

    def step(
        self, optimizer: Optimizer, loss: Tensor, max_norm: float, scaler: GradScaler | None = None
    ) -> tuple[Tensor, Tensor]:
        """Step as `Engine.step` does; after the last guarded step, let DDP wrap the policy."""
        found = super().step(optimizer, loss, max_norm, scaler)
        if self.agrees:
            self._guarded_steps -= 1
            if not self.agrees:
                self._wrap()
        return found

    def _wrap(self) -> None:
        # Of a 1x1 kernel every stride is the same memory: the warning costs nothing but attention.
        warnings.filterwarnings("ignore", "Grad strides do not match bucket view strides")
        self.model = self._ddp = self._wrapped(
            self._policy,
            broadcast_buffers=False,
            gradient_as_bucket_view=True,
            static_graph=not self._changes,
            find_unused_parameters=self._changes,
            bucket_cap_mb=self._bucket_mb,
        )
        if self._bf16:
            self._ddp.register_comm_hook(None, bf16_compress_hook)

    def _reserve(self) -> None:
        """Hold as much memory as DDP's buckets will, so that a step that fits now fits later."""
        if not self._room:
            trained = [p for p in self._policy.parameters() if p.requires_grad]
            self._room = [torch.empty_like(parameter) for parameter in trained]

    def _wrapped(self, policy: nn.Module, **options: Any) -> DistributedDataParallel:
        return DistributedDataParallel(policy, **options)

    @contextmanager
    def micro(self, *, last: bool) -> Generator[None]:
        """Wrap forward and backward of a micro-batch; the `last` one of a step sums gradients.

        DDP learns a static graph in the first pass, whose gradients it has to send. If other
        micro-batches follow in that step, rank 0 alone keeps the sum, times the number of ranks
        that DDP will divide by.
        """
        if self.agrees:
            self._reserve()
            yield
            return
        with nullcontext() if last or not self._knows_graph else self._ddp.no_sync():
            yield
        if not last and not self._knows_graph:
            for parameter in self._ddp.parameters():
                if parameter.grad is not None:
                    parameter.grad.mul_(self.group.world.size if self.group.world.is_first else 0)
        self._knows_graph = True

    def backward(self, loss: Tensor) -> None:
        """Compute gradients of this rank's loss, summed over ranks in the last micro-batch."""
        (loss * self.group.world.size).backward()
