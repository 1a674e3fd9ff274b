"""Memory of a training step, computed from its trace for any batch and division. Torch-free."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from kata.errors import ConfigError
from kata.plan.caching_allocator import COPY_STREAM, Block, CachingAllocator
from kata.plan.overheads import Overheads
from kata.plan.step_trace import PARTS, StepTrace

STATE_PARTS = ("weights", "frozen_weights", "gradients", "optimizer_state", "ema")
"""Parts that sharding divides among ranks."""

_ZERO_PARTS = (
    (),
    ("optimizer_state",),
    ("optimizer_state", "gradients"),
    ("optimizer_state", "gradients", "weights", "frozen_weights"),
)
"""Parts that each stage of DeepSpeed's ZeRO divides (arXiv 1910.02054)."""


@dataclass(frozen=True, slots=True)
class RankLayout:
    """The division of a policy among ranks.

    Attributes:
        copies: ranks, or groups of ranks, that hold a copy each.
        shards: ranks that share one copy (FSDP2).
        zero_stage: stage of DeepSpeed's ZeRO, which divides among the copies; 0 is off.
    """

    copies: int = 1
    shards: int = 1
    zero_stage: int = 0

    def __post_init__(self) -> None:
        if min(self.copies, self.shards) < 1 or not 0 <= self.zero_stage <= 3:
            raise ConfigError(
                f"{self}",
                rule="copies and shards are 1 or more, and a ZeRO stage is 0 to 3",
                remedy="for example RankLayout(copies=2, shards=4)",
            )
        if self.shards > 1 and self.zero_stage:
            raise ConfigError(
                f"{self}",
                rule="either FSDP2 or DeepSpeed's ZeRO divides the weights",
                remedy="shards=1, or zero_stage=0",
            )

    @property
    def ranks(self) -> int:
        """Return the number of ranks."""
        return self.copies * self.shards

    def divisor(self, part: str) -> int:
        """Return the number of ranks that a part is divided among."""
        if self.shards > 1:
            return self.shards if part in STATE_PARTS else 1
        return self.copies if part in _ZERO_PARTS[self.zero_stage] else 1


ONE_RANK = RankLayout()


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The memory of one rank at the fullest moment of a step, in bytes.

    Attributes:
        batch: samples of a micro-batch.
        parts: bytes of tensors at the peak, by the names of PARTS; `communication` are buffers of
            ranks.
        tensor_bytes: their sum.
        peak_phase: phase of the peak.
        allocator_bytes: reserved by the caching allocator beyond the tensors at the peak: rounding,
            and blocks that are cached.
        workspace_bytes: of libraries, held by the allocator.
        nccl_bytes: of NCCL.
        context_bytes: CUDA context.
    """

    batch: int
    parts: dict[str, int] = field(hash=False)
    tensor_bytes: int
    peak_phase: str
    allocator_bytes: int
    workspace_bytes: int
    nccl_bytes: int
    context_bytes: int

    @property
    def reserved_bytes(self) -> int:
        """Return what torch reserves (`torch.cuda.max_memory_reserved`)."""
        return self.tensor_bytes + self.allocator_bytes + self.workspace_bytes

    @property
    def total_bytes(self) -> int:
        """Return what the GPU must have, as `nvidia-smi` shows it."""
        return self.reserved_bytes + self.nccl_bytes + self.context_bytes

    def to_json(self) -> dict[str, Any]:
        """Return the plan as values of JSON, with the sums."""
        sums = {"reserved_bytes": self.reserved_bytes, "total_bytes": self.total_bytes}
        return asdict(self) | sums


def plan_memory(
    trace: StepTrace,
    batch: int,
    *,
    layout: RankLayout = ONE_RANK,
    accumulation: int = 1,
    overheads: Overheads | None = None,
) -> MemoryPlan:
    """Compute the memory of one rank.

    Args:
        trace: of one step, with the precision and activation checkpointing to plan for.
        batch: samples of a micro-batch, at least 1.
        layout: the ranks.
        accumulation: micro-batches of a step.
        overheads: of the GPU; None takes typical ones. A CPU has none.

    Returns:
        The parts at the peak, and what the allocator takes beside them.

    Raises:
        ConfigError: the batch or the accumulation is below 1.
    """
    if batch < 1 or accumulation < 1:
        raise ConfigError(
            f"batch_size={batch}, gradient_accumulation.steps={accumulation}",
            rule="a step has at least one micro-batch of at least one sample",
            remedy="--batch_size=1 --accelerator.gradient_accumulation.steps=1",
        )
    blocks = _blocks(trace, batch, layout, accumulation)
    parts, at = _peak(blocks, trace.num_operations)
    parts["communication"] = _communication_bytes(trace, layout)
    tensor_bytes = sum(parts.values())
    if trace.device == "cpu":
        return MemoryPlan(batch, parts, tensor_bytes, _phase(trace, at), 0, 0, 0, 0)
    reserved = _replayed_bytes(blocks, trace) + parts["communication"]
    given = overheads or Overheads()
    return MemoryPlan(
        batch,
        parts,
        tensor_bytes,
        _phase(trace, at),
        allocator_bytes=max(0, reserved - tensor_bytes),
        workspace_bytes=given.workspace_bytes,
        nccl_bytes=given.nccl_bytes if layout.ranks > 1 else 0,
        context_bytes=given.context_bytes,
    )


@dataclass(frozen=True, slots=True, eq=False)
class _Sized:
    """A storage of a step with a known batch."""

    part: str
    size: int
    begin: int
    end: int


def _blocks(trace: StepTrace, batch: int, layout: RankLayout, accumulation: int) -> list[_Sized]:
    """Return the storages of one rank's step.

    Gradients stay from one micro-batch to the next, and DDP keeps them in buckets: they are there
    before the step then, and what the backward pass computes is added to them and freed at once.
    """
    stay = accumulation > 1 or (layout.shards == 1 and layout.copies > 1)
    blocks: list[_Sized] = []
    for storage in trace.storages:
        whole = storage.size_bytes.at(batch)
        size = -(-whole // layout.divisor(storage.part))
        if storage.part in ("raw_inputs", "inputs") and storage.end >= trace.begins["forward"]:
            size *= accumulation  # every micro-batch waits for its turn on the device
        if storage.part == "gradients" and stay:
            blocks.append(_Sized("gradients", size, -1, trace.num_operations))
            blocks.append(_Sized("temporaries", whole, storage.begin, storage.begin))
        else:
            blocks.append(_Sized(storage.part, size, storage.begin, storage.end))
    return blocks


def _peak(blocks: Sequence[_Sized], num_operations: int) -> tuple[dict[str, int], int]:
    """Return the bytes of each part at the fullest operation, and its number.

    An operation's results are allocated before its inputs are freed.
    """
    changes = [0] * (num_operations + 2)
    for block in blocks:
        changes[max(block.begin, 0)] += block.size
        changes[block.end + 1] -= block.size
    live = list(itertools.accumulate(changes))
    at = live.index(max(live))
    parts = dict.fromkeys(PARTS, 0)
    for block in blocks:
        if max(block.begin, 0) <= at <= block.end:
            parts[block.part] += block.size
    return parts, at


def _phase(trace: StepTrace, at: int) -> str:
    """Return the phase that an operation belongs to."""
    return max((begin, phase) for phase, begin in trace.begins.items() if begin <= at)[1]


def _communication_bytes(trace: StepTrace, layout: RankLayout) -> int:
    """Return the bytes of gathered weights, and of gradients that are not divided yet.

    FSDP2 gathers one unit while it computes another, and keeps the weights outside of all units
    for the whole step. The gradients of a unit are whole until they are reduced.
    """
    if layout.shards == 1 and layout.zero_stage < 3:
        return 0
    *units, outside = trace.unit_bytes
    return 3 * max(units, default=0) + 2 * outside


def _replayed_bytes(blocks: Sequence[_Sized], trace: StepTrace) -> int:
    """Return what the caching allocator reserves for a run of such steps.

    The first step has no optimizer state until its optimizer runs. Later steps find the blocks
    that earlier ones left.
    """
    allocator = CachingAllocator()
    late = [block.size for block in blocks if block.part == "optimizer_state"]
    starts: dict[int, list[_Sized]] = {}
    ends: dict[int, list[_Sized]] = {}
    for block in blocks:
        if block.part != "optimizer_state":
            starts.setdefault(block.begin, []).append(block)
            ends.setdefault(block.end, []).append(block)
    for block in starts.pop(-1, []):
        allocator.allocate(block.size)
    for _ in range(2):
        held: dict[int, Block | None] = {}
        for at in range(trace.num_operations + 1):
            if at == trace.begins["optimizer"]:
                for size in late:
                    allocator.allocate(size)
                late = []
            for block in starts.get(at, []):
                stream = COPY_STREAM if block.part == "raw_inputs" else 0
                held[id(block)] = allocator.allocate(block.size, stream)
            for block in ends.get(at, []):
                allocator.free(held.pop(id(block), None))
    return allocator.reserved
