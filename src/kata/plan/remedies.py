"""Changes with which a run fits that does not fit as it is: each is computed. Torch-free."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from kata.errors import ConfigError, PolicyError
from kata.plan.catalogue import Gpu, known_gpus
from kata.plan.forecast import largest_batch, memory_of
from kata.plan.trace_store import step_trace_of
from kata.run import Run

_FREEZING = ("freeze_vision_encoder", "train_expert_only", "freeze_backbone")
"""Options of policies that leave a part of the weights as they are."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """A change with which the run fits.

    Attributes:
        flags: options that make it.
        total_bytes: memory that the step then takes.
    """

    flags: str
    total_bytes: int


def remedies(run: Run, gpu: Gpu, device: str = "cuda") -> list[Remedy]:
    """Return the changes with which a run fits on a GPU, those that change least first.

    Args:
        run: the options of a run that does not fit.
        gpu: the GPU.
        device: whose rules apply.
    """
    found: list[Remedy] = []
    for flags, changed in _changes(run, gpu):
        try:
            remedy = _fitting(flags, run, changed, gpu, device)
        except (ConfigError, PolicyError):
            continue  # the policy refuses the change
        if remedy is not None:
            found.append(remedy)
    other = _other_gpu(run, gpu, device)
    return [*found, other] if other is not None else found


def _changes(run: Run, gpu: Gpu) -> Iterator[tuple[str, Run]]:
    """Yield the changes to try, alone and then together."""
    yield "", run  # smaller micro-batches alone
    half = "bf16" if gpu.has_bf16 else "fp16"
    precise = dataclasses.replace(run.accelerator, mixed_precision=half)
    changes: list[tuple[str, dict[str, object]]] = []
    if run.precision == "no" and gpu.is_cuda:
        changes.append((f"--accelerator.mixed_precision={half}", {"accelerator": precise}))
    if not run.gradient_checkpointing:
        changes.append(("--gradient_checkpointing=true", {"gradient_checkpointing": True}))
    for name in _FREEZING:
        if run.policy.__dict__.get(name) is False:
            frozen = dataclasses.replace(run.policy, **{name: True})
            changes.append((f"--policy.{name}=true", {"policy": frozen}))
    if run.ranks > 1 and run.mesh[1] == 1:
        sharded = dataclasses.replace(run.parallelism, dp_shard=-1)
        changes.append(("--parallelism.dp_shard=-1", {"parallelism": sharded}))
    for flags, fields in changes:
        yield flags, dataclasses.replace(run, **fields)
    if len(changes) > 1:
        together: dict[str, object] = {}
        for _, fields in changes:
            together |= fields
        every = " ".join(flags for flags, _ in changes)
        yield every, dataclasses.replace(run, **together)


def _fitting(flags: str, before: Run, run: Run, gpu: Gpu, device: str) -> Remedy | None:
    """Return the remedy with the largest micro-batch that fits; None if not even one sample does.

    The global batch stays if the samples of a micro-batch divide that of the run.
    """
    trace = step_trace_of(run, device)
    most = largest_batch(run, trace, gpu, before.batch_size + 1)
    if most == 0:
        return None
    sizes = [size for size in range(1, most + 1) if before.batch_size % size == 0]
    size = min(max(sizes), before.batch_size)
    texts = [flags] if flags else []
    if size != before.batch_size:
        steps = before.accumulation * (before.batch_size // size)
        texts.append(f"--batch_size={size} --accelerator.gradient_accumulation.steps={steps}")
    return Remedy(" ".join(texts), memory_of(run, trace, gpu, size).total_bytes)


def _other_gpu(run: Run, gpu: Gpu, device: str) -> Remedy | None:
    """Return the GPU with least memory on which the run fits as it is."""
    if not gpu.is_cuda:
        return None
    trace = step_trace_of(run, device)
    for other in sorted(known_gpus().values(), key=lambda each: each.memory_bytes):
        computes = other.is_cuda and (run.precision != "bf16" or other.has_bf16)
        if computes and other.memory_bytes > gpu.memory_bytes:
            total = memory_of(run, trace, other, run.batch_size).total_bytes
            if total <= other.memory_bytes:
                return Remedy(f"--gpu={other.name}", total)
    return None
