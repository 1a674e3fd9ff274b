"""A dispatch mode that records the operations of a step and the lifetimes of its storages."""

# pyright: reportPrivateUsage=false
# A storage has no public identity, and an operation no public schema.

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.storage import UntypedStorage
from torch.utils._python_dispatch import TorchDispatchMode

from kata.plan.tracing import operations


@dataclass(slots=True)
class RecordedOperation:
    """One operation of one recording; the attributes are those of `TracedOperation`."""

    name: str
    kind: str
    phase: str
    dtype: str
    launches: int
    flops: int
    read_bytes: int
    written_bytes: int


@dataclass(slots=True)
class RecordedStorage:
    """One storage of one recording.

    Attributes:
        part: one of `kata.plan.step_trace.PARTS`, or '' until it is known.
        size_bytes: bytes.
        begin: number of the operation that made it; -1 before the first.
        end: number of the operation after which it was freed; None while it is alive.
        source: name of the operation that made it.
        is_cast: True if it is a weight in another precision.
    """

    part: str
    size_bytes: int
    begin: int
    end: int | None = None
    source: str = ""
    is_cast: bool = False


@dataclass
class Recording:
    """All that was recorded of one step.

    Attributes:
        operations: those that compute or move something, in order.
        storages: in the order of their allocation, those before the step first.
        begins: number of the first operation of each phase.
    """

    operations: list[RecordedOperation] = field(default_factory=list[RecordedOperation])
    storages: list[RecordedStorage] = field(default_factory=list[RecordedStorage])
    begins: dict[str, int] = field(default_factory=dict[str, int])


class StepRecorder(TorchDispatchMode):
    """A mode that sees every operation below autograd and autocast.

    A storage ends when torch frees it: a weak reference tells. `resident` tensors are those of the
    training state; all others belong to the step. `device` is the one whose libraries would run it.
    """

    def __init__(self, resident: Mapping[str, Iterable[Tensor]], device: str = "cuda") -> None:
        super().__init__()
        self.recording = Recording()
        self.phase = ""
        self.device = device
        self._live: dict[int, tuple[RecordedStorage, weakref.ref[UntypedStorage]]] = {}
        for part, tensors in resident.items():
            for tensor in tensors:
                self._see(tensor, RecordedStorage(part, tensor.untyped_storage().nbytes(), -1))

    def enter_phase(self, phase: str) -> None:
        """Let the operations from now on belong to `phase`."""
        self.phase = phase
        self.recording.begins.setdefault(phase, len(self.recording.operations))

    def end_forward(self) -> None:
        """Label what is alive now: the forward pass has left it for the backward pass."""
        for storage in self.alive():
            if not storage.part:
                storage.part = "cast_weights" if storage.is_cast else "activations"

    def alive(self) -> Iterator[RecordedStorage]:
        """Yield the storages that are alive."""
        for storage, _ in list(self._live.values()):
            yield storage

    def label(self, part: str, tensors: Iterable[Tensor]) -> None:
        """Say what the storages of these tensors are for."""
        for tensor in tensors:
            found = self._live.get(tensor.untyped_storage()._cdata)
            if found is not None:
                found[0].part = part

    def turn_into_transfers(self) -> None:
        """Let the operations so far be copies from the host, which read nothing on the device."""
        for operation in self.recording.operations:
            operation.name, operation.kind = "copy_from_host", "transfer"
            operation.read_bytes = 0

    def __torch_dispatch__(
        self,
        func: OpOverload,
        types: tuple[type, ...],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        """Run the operation, and record it."""
        del types
        if func is torch.ops.prim.device.default:
            return args[0].fake_device  # asked more often than anything else
        given = kwargs or {}
        out = func(*args, **given)
        inputs = list(tensors_in((args, given)))
        outputs = list(tensors_in(out))
        if operations.has_kernel(func):
            self._record(func, args, given, out, inputs, outputs)
        for tensor in outputs:
            self._new_storage(func, tensor, inputs)
        return out

    def _record(
        self,
        func: OpOverload,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        inputs: list[Tensor],
        outputs: list[Tensor],
    ) -> None:
        name = operations.name_of(func)
        written = operations.bytes_of(outputs or _changed(func, args))
        number = len(self.recording.operations)
        copies = operations.hidden_copies(func, args, self.device)
        for size in copies:
            self.recording.storages.append(RecordedStorage("temporaries", size, number, number))
        self.recording.operations.append(
            RecordedOperation(
                name=name,
                kind=operations.kind_of(name),
                phase=self.phase,
                dtype=operations.dtype_of(inputs, outputs),
                launches=operations.launches_of(name, args) + len(copies),
                flops=operations.flops_of(func, args, kwargs, out),
                read_bytes=operations.read_bytes_of(name, inputs, written) + sum(copies),
                written_bytes=written + sum(copies),
            )
        )

    def _new_storage(self, func: OpOverload, tensor: Tensor, inputs: list[Tensor]) -> None:
        storage = tensor.untyped_storage()
        if storage._cdata in self._live or storage.nbytes() == 0:
            return
        name = operations.name_of(func)
        number = max(0, len(self.recording.operations) - 1)
        new = RecordedStorage("", storage.nbytes(), number, source=name)
        if name == "_to_copy" and inputs:
            made_of = self._live.get(inputs[0].untyped_storage()._cdata)
            new.is_cast = made_of is not None and made_of[0].part.endswith("weights")
        self._see(tensor, new)

    def _see(self, tensor: Tensor, new: RecordedStorage) -> None:
        storage = tensor.untyped_storage()
        key = storage._cdata
        if key in self._live:
            return

        def freed(_: object) -> None:
            self._live.pop(key)[0].end = max(0, len(self.recording.operations) - 1)

        self._live[key] = (new, weakref.ref(storage, freed))
        self.recording.storages.append(new)


def tensors_in(values: Any) -> Iterator[Tensor]:
    """Yield the tensors in nested tuples, lists and dicts."""
    if isinstance(values, Tensor):
        yield values
    elif isinstance(values, (tuple, list)):
        for value in values:
            yield from tensors_in(value)
    elif isinstance(values, dict):
        yield from tensors_in(list(values.values()))


def _changed(func: OpOverload, args: tuple[Any, ...]) -> list[Tensor]:
    """Return the arguments that an operation without a result changes."""
    changed: list[Tensor] = []
    for declared, value in zip(func._schema.arguments, args, strict=False):
        if declared.alias_info is not None and declared.alias_info.is_write:
            changed += tensors_in(value)
    return changed
