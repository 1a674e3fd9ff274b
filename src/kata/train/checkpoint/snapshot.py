"""A copy of the training state in host memory, so that training continues while it is written."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from kata.dist.engine import Engine
from kata.policies.base import Policy
from kata.update.state import TrainState


@dataclass(frozen=True)
class Snapshot:
    """Tensors on the host, by the policy's names. Call `wait` before reading them.

    Attributes:
        optimizer_state: by `<number>/<name>`.
        groups: the optimizer's options per parameter group.

    None marks a part that is not in the snapshot: a snapshot of weights has no other part, and one
    beside shards leaves out what the shards hold.
    """

    step: int
    weights: dict[str, Tensor] | None
    ema: dict[str, Tensor] | None
    optimizer_state: dict[str, Tensor] | None
    groups: list[dict[str, Any]]
    scaler: dict[str, Any] | None
    copied: HostTensors

    def wait(self) -> float:
        """Wait for the device's copies; return the seconds that they took, 0 on a CPU."""
        return self.copied.wait()


class HostTensors:
    """Host memory that copies are made into and that the next copy reuses; pinned for a CUDA
    device.
    """

    def __init__(self) -> None:
        self._memory: dict[str, Tensor] = {}
        self._constant: set[str] = set()
        self._events: tuple[torch.cuda.Event, torch.cuda.Event] | None = None

    def copy(
        self, tensors: Mapping[str, Tensor], engine: Engine, constant: Collection[str] = ()
    ) -> dict[str, Tensor]:
        """Return host copies of the tensors as they are now. Collective: all ranks gather shards in
        order.

        `engine.keeps` says whether this rank keeps the copies. On CUDA the copies are only queued,
        on the training stream. The device runs them before its next kernel, and the host does not
        wait. Call `wait` before reading, and do not call `copy` again before reading is over.
        Tensors named in `constant` never change: later calls return the first copy of each.
        """
        cuda = any(tensor.is_cuda for tensor in tensors.values())
        events = (
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            if cuda
            else None
        )
        if events is not None:
            events[0].record()
        copies: dict[str, Tensor] = {}
        for name, tensor in tensors.items():
            if name not in self._constant:
                whole = engine.full(tensor.detach())
                if engine.keeps:
                    self._copy(name, whole)
            if engine.keeps:
                copies[name] = self._memory[name]
        self._constant.update(constant)
        if events is not None:
            events[1].record()
        self._events = events
        return copies

    def wait(self) -> float:
        """Wait until the copies have arrived; return the seconds that the device spent on them."""
        if self._events is None:
            return 0.0
        began, ended = self._events
        ended.synchronize()
        return began.elapsed_time(ended) / 1000

    def _copy(self, name: str, tensor: Tensor) -> None:
        memory = self._memory.get(name)
        if memory is None or memory.shape != tensor.shape or memory.dtype != tensor.dtype:
            memory = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._memory[name] = memory
        memory.copy_(tensor, non_blocking=tensor.is_cuda)


def snapshot_state(
    state: TrainState, memory: HostTensors, engine: Engine, stored_as: str = "safetensors"
) -> Snapshot:
    """Return the parts of a checkpoint that are not in shards. Collective.

    Weights that never change are copied by the first snapshot in this memory alone, and the EMA's
    are those of the policy.
    """
    optimizer = state.optimizer.state_dict()
    parts: dict[str, Mapping[str, Tensor]] = {}
    if stored_as == "safetensors":
        parts["optimizer_state"] = optimizer_tensors(optimizer)
    if stored_as != "dcp":
        parts["weights"] = stored_tensors(state.policy)
    if stored_as != "dcp" and state.ema is not None:
        average = stored_tensors(state.ema)
        parts["ema"] = {name: t for name, t in average.items() if name not in state.constant}
    # One copy for all parts: on CUDA the device's time for it is measured as a whole.
    tensors: dict[str, Tensor] = {}
    for part, named in parts.items():
        tensors.update({f"{part}:{name}": tensor for name, tensor in named.items()})
    copies = memory.copy(tensors, engine, [f"weights:{name}" for name in state.constant])
    # A rank that does not keep copies gets none, and holds empty parts.
    held: dict[str, dict[str, Tensor]] = {part: {} for part in parts}
    for key, copied in copies.items():
        part, _, name = key.partition(":")
        held[part][name] = copied
    if "ema" in held:
        weights = held["weights"]
        held["ema"] |= {name: weights[name] for name in state.constant if name in weights}
    return Snapshot(
        step=state.step,
        weights=held.get("weights"),
        ema=held.get("ema"),
        optimizer_state=held.get("optimizer_state"),
        groups=[dict(group) for group in optimizer["param_groups"]],
        scaler=None if state.scaler is None else dict(state.scaler.state_dict()),
        copied=memory,
    )


def optimizer_tensors(optimizer: Mapping[str, Any]) -> dict[str, Tensor]:
    """Return the tensors of an optimizer's state_dict as `<number>/<name>`."""
    tensors: dict[str, Tensor] = {}
    for number, named in optimizer["state"].items():
        for name, value in named.items():
            tensors[f"{number}/{name}"] = torch.as_tensor(value)
    return tensors


def stored_tensors(policy: Policy) -> dict[str, Tensor]:
    """Return the tensors that a checkpoint of a policy holds: all that it does not refer to."""
    kept = frozenset[str]() if policy.reference is None else policy.reference.names
    return {name: tensor for name, tensor in policy.state_dict().items() if name not in kept}


def snapshot_weights(policy: Policy, step: int, memory: HostTensors, engine: Engine) -> Snapshot:
    """Return a snapshot of weights alone, as for the best validation. Collective."""
    return Snapshot(step, memory.copy(stored_tensors(policy), engine), None, None, [], None, memory)
