"""The trace of one training step as plain values, which serialize to JSON. Torch-free."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

PHASES: tuple[str, ...] = ("input", "forward", "backward", "optimizer")
"""Phases of a step: the batch on the device, the policy's loss, its gradients, and all that follows
(clipping, the optimizer, the EMA).
"""

KINDS: tuple[str, ...] = (
    "gemm",
    "convolution",
    "attention",
    "normalization",
    "reduction",
    "elementwise",
    "gather",
    "copy",
    "random",
    "optimizer",
    "transfer",
)
"""Classes of operations. `transfer` is the copy of a batch from the host to the device."""

PARTS: tuple[str, ...] = (
    "weights",
    "frozen_weights",
    "gradients",
    "optimizer_state",
    "ema",
    "raw_inputs",
    "inputs",
    "cast_weights",
    "activations",
    "temporaries",
)
"""Uses of memory. `raw_inputs` is the batch as it comes from the host, and `inputs` what the policy
reads of it after conversion. `activations` are what the forward pass leaves for the backward pass.
`cast_weights` are weights in a lower precision, which autocast makes and leaves as well.
"""


class Linear(NamedTuple):
    """A count that grows linearly with the samples of a micro-batch."""

    fixed: float
    per_sample: float

    def at(self, batch: int) -> int:
        """Return the count for `batch` samples."""
        return round(self.fixed + self.per_sample * batch)


class TracedOperation(NamedTuple):
    """Operations of a step that are alike.

    Attributes:
        name: torch's name, such as 'addmm'.
        kind: one of KINDS.
        phase: one of PHASES.
        dtype: of the computation, such as 'float32'.
        launches: kernels that one of them starts on a GPU.
        runs: times that the operation runs in a step.
        flops: of one; a multiplication and an addition are two. Only products of matrices,
            convolutions and attention have any.
        read_bytes: that one reads from memory.
        written_bytes: that one writes.
    """

    name: str
    kind: str
    phase: str
    dtype: str
    launches: int
    runs: int
    flops: Linear
    read_bytes: Linear
    written_bytes: Linear


class TracedStorage(NamedTuple):
    """A block of device memory in a step.

    Attributes:
        part: one of PARTS.
        size_bytes: what the tensor needs, before the allocator rounds it.
        begin: number of the operation that allocates it; -1 if it is there before the step.
        end: number of the operation after which it is freed, or the number of operations if it
            stays.
    """

    part: str
    size_bytes: Linear
    begin: int
    end: int


@dataclass(frozen=True, slots=True)
class StepTrace:
    """One training step on one rank with one micro-batch, for any number of samples.

    Attributes:
        policy: type of the policy.
        device: 'cuda' or 'cpu', whose rules were applied.
        precision: 'no', 'bf16' or 'fp16'.
        recomputes: True if activation checkpointing is on.
        torch: version of torch that was traced.
        trainable: number of trainable parameters.
        frozen: number of frozen parameters.
        unit_bytes: weights of each module that is sharded by itself, and last those outside of
            all of them.
        begins: number of the first operation of each phase.
        operations: those alike are one entry; the sequence of their first runs is kept.
        storages: in the sequence of allocation.
        num_operations: number of operations of a step; `begin` and `end` of storages count them.
        feature_bytes: what a cache keeps of a sample, where the run caches features of the frozen
            part.
    """

    policy: str
    device: str
    precision: str
    recomputes: bool
    torch: str
    trainable: int
    frozen: int
    unit_bytes: tuple[int, ...]
    begins: Mapping[str, int]
    operations: tuple[TracedOperation, ...]
    storages: tuple[TracedStorage, ...]
    num_operations: int
    feature_bytes: int = 0

    def launches(self, phase: str | None = None) -> int:
        """Return the kernels that a step starts, in one phase or in all."""
        return sum(op.launches * op.runs for op in self._of(phase))

    def flops(self, batch: int, phase: str | None = None) -> int:
        """Return the floating-point operations of a step with `batch` samples."""
        return sum(op.flops.at(batch) * op.runs for op in self._of(phase))

    def moved_bytes(self, batch: int, phase: str | None = None) -> int:
        """Return the bytes that the operations of a step read and write."""
        total = 0
        for op in self._of(phase):
            total += (op.read_bytes.at(batch) + op.written_bytes.at(batch)) * op.runs
        return total

    def part_bytes(self, part: str, batch: int) -> int:
        """Return the bytes of all storages of a part, alive at one time or not."""
        return sum(s.size_bytes.at(batch) for s in self.storages if s.part == part)

    def saved_bytes(self, batch: int) -> int:
        """Return what the forward pass leaves for the backward pass, without the weights."""
        return self.part_bytes("activations", batch) + self.part_bytes("cast_weights", batch)

    def to_json(self) -> dict[str, Any]:
        """Return the trace as values of JSON."""
        return asdict(self)

    @classmethod
    def from_json(cls, plain: Mapping[str, Any]) -> StepTrace:
        """Return the trace of `to_json`."""
        fields = dict(plain)
        operations: list[TracedOperation] = []
        for op in plain["operations"]:
            operations.append(TracedOperation(*op[:6], *(Linear(*line) for line in op[6:])))
        storages: list[TracedStorage] = []
        for part, size, begin, end in plain["storages"]:
            storages.append(TracedStorage(part, Linear(*size), begin, end))
        fields["operations"], fields["storages"] = tuple(operations), tuple(storages)
        fields["unit_bytes"] = tuple(plain["unit_bytes"])
        return cls(**fields)

    def _of(self, phase: str | None) -> Iterator[TracedOperation]:
        for op in self.operations:
            if phase is None or op.phase == phase:
                yield op
