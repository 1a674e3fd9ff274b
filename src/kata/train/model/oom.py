"""The message of a run that does not fit into memory."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

import torch

from kata.errors import ConfigError
from kata.run import Run

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
