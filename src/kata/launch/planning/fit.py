"""`--fit=24GB`: the least intrusive changes with which a step fits a memory. Torch-free."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec

from kata.config import parse_flags
from kata.errors import ConfigError, KataError
from kata.launch.planning.subject import gpu_here
from kata.optim.config import AdamWConfig
from kata.plan.catalogue import Gpu, gpu_named
from kata.plan.forecast import TIGHT_SHARE, largest_batch, memory_of
from kata.plan.trace_store import step_trace_of
from kata.run import Run, given_names, memory_to_fit
from kata.tables import table_lines
from kata.units import bytes_text, num_bytes

_log = logging.getLogger(__name__)

STAND_IN = "rtx4090"
"""GPU whose overheads are taken where this machine has none."""


@dataclass(frozen=True, slots=True)
class MemoryChange:
    """A change that saves memory.

    Attributes:
        flags: the options that make it, by name.
        why: what it costs, for the table.
    """

    flags: tuple[tuple[str, str], ...]
    why: str

    @property
    def text(self) -> str:
        """Return the options as they stand on a command line."""
        return " ".join(f"--{name}={value}" for name, value in self.flags)


CHANGES = (
    MemoryChange(
        (("gradient_checkpointing", "true"),), "the same numbers, about a third more time"
    ),
    MemoryChange(
        (("accelerator.mixed_precision", "bf16"),), "products in bf16, weights in float32"
    ),
    MemoryChange((("optimizer.type", "adamw8bit"),), "both means of AdamW in 8 bits"),
    MemoryChange((("policy.freeze_vision_encoder", "true"),), "the image encoder stays as it is"),
    MemoryChange((("peft.r", "16"),), "adapters alone are trained"),
    MemoryChange((("frozen_bits", "8"),), "frozen weights are rounded to 8 bits"),
    MemoryChange((("frozen_bits", "4"),), "frozen weights are rounded to 4 bits"),
)
"""Changes in the order in which they are tried, those that change least first."""

_PACKAGES = {"optimizer.type": "bitsandbytes", "peft.r": "peft"}
"""Packages that a change needs; 4 bits need bitsandbytes as well."""

Subject = Callable[[Sequence[str]], Run]
"""Returns the run of arguments, with its policy's features."""


@dataclass(frozen=True, slots=True)
class Fitted:
    """The choice of changes.

    Attributes:
        changes: those that are needed.
        rows: each combination that was tried with its memory, for the table.
        batch_size: samples of a micro-batch.
        accumulation: micro-batches of a step.
    """

    changes: tuple[MemoryChange, ...]
    rows: list[tuple[str, str, str]]
    batch_size: int
    accumulation: int


def with_fit(args: Sequence[str], subject: Subject) -> list[str]:
    """Return the arguments of `kata train` with the changes that `--fit=<memory>` needs.

    An option that is given stays as it is given. The global batch stays: smaller micro-batches are
    accumulated.

    Args:
        args: flags, without the verb.
        subject: returns the run of arguments with its policy's features.

    Raises:
        ConfigError: nothing fits; the message has the smallest combination and its memory.
    """
    flags = parse_flags(args)
    asked = memory_to_fit(args)
    flags.pop("fit", None)
    rest = [f"--{name}" if value is True else f"--{name}={value}" for name, value in flags.items()]
    if asked is None or str(flags.get("resume", "")).lower() == "true":
        return rest if asked is None else [*rest, f"--fit={asked}"]
    if str(flags.get("batch_size")) == "auto":
        raise ConfigError(
            f"fit={asked} with batch_size=auto",
            rule="fit keeps the batch, and batch_size=auto takes the largest",
            remedy="leave out one of the two",
        )
    gpu = dataclasses.replace(gpu_here() or gpu_named(STAND_IN), memory_bytes=num_bytes(str(asked)))
    found = fitted(rest, gpu, subject)
    for line in table_lines([("fit", "memory", ""), *found.rows]):
        _log.warning("%s", line)
    chosen = [each.text for each in found.changes]
    sizes = (
        f"--batch_size={found.batch_size}",
        f"--accelerator.gradient_accumulation.steps={found.accumulation}",
    )
    batch = ("batch_size", "global_batch_size", "accelerator.gradient_accumulation.steps")
    kept = [f"--{n}" if v is True else f"--{n}={v}" for n, v in flags.items() if n not in batch]
    return [*kept, *chosen, *sizes, f"--fit={asked}"]


@dataclass(frozen=True, slots=True)
class _Trial:
    """A combination of changes: its run, the largest micro-batch that fits, and memory of the
    smallest.
    """

    changes: tuple[MemoryChange, ...]
    run: Run
    largest: int
    least_bytes: int


def fitted(args: Sequence[str], gpu: Gpu, subject: Subject) -> Fitted:
    """Return the least intrusive changes with which a step fits a GPU.

    They are added in the order of CHANGES until a step fits; one that saves nothing is left out.
    Then each that is not needed goes, the most intrusive first.

    Args:
        args: flags, without the verb.
        gpu: its memory is the limit.
        subject: returns the run of arguments with its policy's features.

    Raises:
        ConfigError: nothing fits.
        KataError: the options themselves are wrong.
    """
    rows: list[tuple[str, str, str]] = []
    asked = subject(args)  # raises what is wrong with the options themselves
    given = given_names(args)
    if asked.optimizer is None or asked.optimizer.type != AdamWConfig.type_name:
        given.add("optimizer.type")  # there are 8 bits for AdamW alone
    best = _tried((), args, gpu, subject, rows)
    for change in _applicable(given):
        if best is not None and best.largest:
            break
        before = () if best is None else best.changes
        kept = [each for each in before if each.flags[0][0] != change.flags[0][0]]
        found = _tried((*kept, change), args, gpu, subject, rows)
        if found is not None and (best is None or found.least_bytes < best.least_bytes):
            best = found
    if best is None or not best.largest:
        table = "\n    ".join(table_lines(rows))
        raise ConfigError(
            f"fit={bytes_text(gpu.memory_bytes)}: nothing fits\n    {table}",
            rule=f"a step takes at most {1 - TIGHT_SHARE:.0%} of the memory",
            remedy="a larger --fit; or smaller frames, or a smaller policy",
        )
    for change in reversed(best.changes[:-1]):
        without = tuple(each for each in best.changes if each is not change)
        found = _tried(without, args, gpu, subject, rows)
        if found is not None and found.largest:
            best = found
    run = best.run
    micro = max(each for each in range(1, best.largest + 1) if run.batch_size % each == 0)
    return Fitted(best.changes, rows, micro, run.accumulation * run.batch_size // micro)


def _tried(
    changes: tuple[MemoryChange, ...],
    args: Sequence[str],
    gpu: Gpu,
    subject: Subject,
    rows: list[tuple[str, str, str]],
) -> _Trial | None:
    """Return what changes give, with a row for the table; None if they are not possible."""
    name = " ".join(each.text for each in changes) or "as asked"
    try:
        run = subject([*args, *(each.text for each in changes)])
        trace = step_trace_of(run)
        largest = largest_batch(run, trace, gpu, run.batch_size)
        used = memory_of(run, trace, gpu, max(largest, 1)).total_bytes
    except KataError as error:
        rows.append((name, "", f"not possible: {str(error).splitlines()[0]}"))
        return None
    verdict = f"fits with micro-batches of {largest}" if largest else "does not fit"
    why = f"; {changes[-1].why}" if changes else ""
    rows.append((name, bytes_text(used), verdict + why))
    return _Trial(changes, run, largest, memory_of(run, trace, gpu, 1).total_bytes)


def _applicable(given: set[str]) -> Iterator[MemoryChange]:
    """Yield the changes whose options are not given and whose packages are installed."""
    for change in CHANGES:
        name, value = change.flags[0]
        group = name.partition(".")[0]
        is_given = name in given or (
            group == "peft" and any(each.startswith("peft.") for each in given)
        )
        package = "bitsandbytes" if value == "4" else _PACKAGES.get(name)
        if not is_given and (package is None or find_spec(package) is not None):
            yield change
