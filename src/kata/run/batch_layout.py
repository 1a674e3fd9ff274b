"""The division of a step's samples among ranks, and its effect on the learning rate. Torch-free."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kata.errors import ConfigError

if TYPE_CHECKING:
    from kata.run.config import Run


def share_out(run: Run, ranks: int, notes: list[str], *, keep_micro: bool) -> Run:
    """Return the run with batch per rank, accumulation and global batch filled in.

    Without `global_batch_size` it follows from the others. With it and `keep_micro` the
    accumulation follows, so that the micro-batch stays the same; otherwise the batch per rank
    follows.

    Raises: ConfigError where they cannot be brought together, with what can.
    """
    accumulation, whole = run.accumulation, run.global_batch_size
    if whole is None:
        run = dataclasses.replace(run, global_batch_size=run.batch_size * ranks * accumulation)
    elif keep_micro and whole % (ranks * run.batch_size) == 0:
        needed = whole // (ranks * run.batch_size)
        if needed != accumulation:
            notes.append(
                f"{needed} micro-batches per step instead of {accumulation}: {whole} samples per "
                "step stay"
            )
        run = _accumulating(run, needed)
    elif whole % (ranks * accumulation) == 0:
        size = whole // (ranks * accumulation)
        if keep_micro:
            notes.append(
                f"micro-batches of {size} samples instead of {run.batch_size}: other dropout masks"
            )
        run = dataclasses.replace(run, batch_size=size)
    else:
        raise _indivisible(whole, ranks, accumulation)
    return _scaled(run, whole is not None, ranks)


def _accumulating(run: Run, steps: int) -> Run:
    counted = dataclasses.replace(run.accelerator.gradient_accumulation, steps=steps)
    return dataclasses.replace(
        run, accelerator=dataclasses.replace(run.accelerator, gradient_accumulation=counted)
    )


def _indivisible(whole: int, ranks: int, accumulation: int) -> ConfigError:
    unit = ranks * accumulation
    batches = [n for n in (whole // unit * unit, (whole // unit + 1) * unit) if n]
    fitting = sorted(
        (n for n in range(1, whole + 1) if whole % (n * accumulation) == 0),
        key=lambda n: (abs(n - ranks), n),
    )
    sizes = " or ".join(str(n) for n in sorted(fitting[:2]))
    return ConfigError(
        f"global_batch_size={whole} on {ranks} rank{'s' * (ranks != 1)} x {accumulation} "
        "accumulated",
        rule="every rank takes the same number of samples in every micro-batch",
        remedy=" or ".join(f"--global_batch_size={n}" for n in batches)
        + (f"; or {sizes} ranks" if sizes else ""),
    )


def _scaled(run: Run, stated: bool, ranks: int) -> Run:
    """Set `scale_lr_by`, the ratio of the batch to the one that the rate was tuned for, to the
    ranks."""
    if run.scale_lr == "none" or run.scale_lr_by:
        return run
    if stated:
        raise ConfigError(
            f"scale_lr={run.scale_lr} with global_batch_size={run.global_batch_size}",
            rule="a batch that is stated as a whole does not grow with the ranks",
            remedy=(
                "say how much larger it is than the batch that the rate was chosen for: "
                "--scale_lr_by=<number>"
            ),
        )
    return dataclasses.replace(run, scale_lr_by=float(ranks))
