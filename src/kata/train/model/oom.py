"""The answer of a run to a full memory: smaller micro-batches, else a message."""

from __future__ import annotations

import logging
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch

from kata.dist.engine import Engine
from kata.errors import ConfigError
from kata.run import Run
from kata.update.state import TrainState
from kata.update.step import GradientsOutOfMemory
from kata.update.step_batch import StepBatch

_log = logging.getLogger(__name__)

Update = TypeVar("Update")

_CPU_IS_FULL = "DefaultCPUAllocator: can't allocate memory"


@contextmanager
def explain_out_of_memory(run: Run, device: torch.device) -> Generator[None]:
    """Convert an out-of-memory error inside the block into one that lists options that need less.

    Raises:
        ConfigError: the device is out of memory.
    """
    try:
        yield
    except RuntimeError as error:
        # torch has no separate error for a full CPU memory.
        if not isinstance(error, torch.OutOfMemoryError) and _CPU_IS_FULL not in str(error):
            raise
        raise ConfigError(
            f"batch_size={run.batch_size}: {device} is out of memory "
            f"({str(error).splitlines()[0]})",
            rule="weights, gradients, optimizer state and a micro-batch's activations share the "
            "device",
            remedy=_remedy(run),
        ) from error


class MicroBatchHalver:
    """A taker of steps that halves micro-batches when memory is full, and takes the step again.

    The global batch stays: there are twice as many micro-batches. No step is lost, and later steps
    keep the smaller size. Several ranks halve in the same step, where the engine lets them agree;
    elsewhere the error ends the run.

    Args:
        engine: sums gradients over ranks and steps the optimizer.

    Attributes:
        parts: pieces into which each micro-batch is cut, 1 at first.
        remarks: messages for the end of the run.
    """

    def __init__(self, engine: Engine) -> None:
        self.parts = 1
        self._engine = engine
        self.remarks: list[str] = []

    def __call__(
        self,
        take: Callable[[TrainState, StepBatch, Run, Engine], Update],
        state: TrainState,
        batch: StepBatch,
        run: Run,
    ) -> Update:
        """Take a step by `take`, as often as it needs smaller micro-batches."""
        while True:
            try:
                return take(state, cut_micro_batches(batch, self.parts), run, self._engine)
            except GradientsOutOfMemory:
                # The batch of a guest is LeRobot's, whose tensors need not begin with samples.
                is_whole = 2 * self.parts > run.batch_size or run.policy.is_guest
                if not self._engine.agrees or is_whole:
                    raise
            self._halve(state, run)

    def _halve(self, state: TrainState, run: Run) -> None:
        self.parts *= 2
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        size = -(-run.batch_size // self.parts)
        steps = run.accumulation * self.parts
        text = (
            f"memory was full at step {state.step + 1}: micro-batches of {size} samples from then "
            f"on, {steps} in a step instead of {run.accumulation}; the global batch of "
            f"{run.effective_batch} stays, with other dropout masks. Start the next run with "
            f"--batch_size={size} --accelerator.gradient_accumulation.steps={steps}"
        )
        _log.warning("%s", text)
        self.remarks = [text]


def cut_micro_batches(batch: StepBatch, parts: int) -> StepBatch:
    """Return the batch with each micro-batch cut into pieces of nearly equal size.

    Args:
        batch: of one step on one rank.
        parts: pieces of a micro-batch, at most its samples.
    """
    if parts == 1:
        return batch
    micros: list[Any] = []
    draws: list[Any] = []
    for micro, drawn in zip(batch.micros, batch.draws, strict=True):
        size = max(len(value) for value in micro.values())
        for part in range(parts):
            piece = slice(part * size // parts, (part + 1) * size // parts)
            micros.append(_piece(micro, piece))
            draws.append(_piece(drawn, piece))
    return replace(batch, micros=micros, draws=draws, first_micro=batch.first_micro * parts)


def _piece(values: Mapping[str, Any], piece: slice) -> dict[str, Any]:
    return {name: value[piece] for name, value in values.items()}


def _remedy(run: Run) -> str:
    """Options that are not in use yet, those that keep the numbers first."""
    ways: list[str] = []
    size = run.batch_size
    if size > 1:
        by = next(n for n in range(2, size + 1) if size % n == 0)
        steps = run.accumulation * by
        ways.append(
            f"--batch_size={size // by} --accelerator.gradient_accumulation.steps={steps} for the "
            "same batch"
        )
    if not run.gradient_checkpointing:
        ways.append("--gradient_checkpointing=true")
    if run.ranks > 1 and run.mesh[1] == 1:
        ways.append("--parallelism.dp_shard=-1")
    if run.precision == "no":
        ways.append("--accelerator.mixed_precision=bf16")
    return "; ".join(ways) or "a device with more memory, or a smaller policy"
