"""`--batch_size=auto`: the largest micro-batch that fits a machine. Torch-free."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Sequence

from kata.config import parse_flags
from kata.errors import ConfigError
from kata.launch.planning.comparison import device_of
from kata.launch.planning.fit import with_fit
from kata.launch.planning.options import PlanOptions
from kata.launch.planning.subject import gpu_here, machine_of, processor, with_dataset
from kata.plan.data_size import DataSize
from kata.plan.forecast import Machine, largest_batch
from kata.plan.profiles import kept_profile
from kata.plan.trace_store import step_trace_of
from kata.run import Run, resolve_run

_log = logging.getLogger(__name__)

AUTO = "auto"


Subject = Callable[[Sequence[str]], tuple[Run, DataSize]]
"""Returns the run of arguments, with its policy's features, and the size of its data."""


def with_batch_size(args: Sequence[str], ranks: int) -> list[str]:
    """Return the arguments of `kata train` with a number for `--batch_size=auto`.

    Every rank finds the same number, since it follows from the options and the model of GPU.

    Args:
        args: flags, without the verb.
        ranks: the number of processes that train.

    Raises:
        ConfigError: this machine's device is unknown, or not even one sample fits.
    """

    def subject(flags: Sequence[str]) -> tuple[Run, DataSize]:
        return with_dataset(resolve_run(flags, ranks)[0])

    def machine(run: Run) -> Machine:
        if gpu_here() is None and kept_profile(processor(), run.precision) is None:
            raise ConfigError(
                "batch_size=auto: the memory of this machine's device is not known",
                rule="a GPU of the catalogue, or a processor with a profile",
                remedy="--batch_size=8, or measure this machine first: kata plan --calibrate",
            )
        return machine_of(PlanOptions(gpus=ranks), run)[0]

    return with_largest_batch(args, ranks, subject, machine)


def with_largest_batch(
    args: Sequence[str], ranks: int, subject: Subject, machine_of_run: Callable[[Run], Machine]
) -> list[str]:
    """Return arguments with the largest micro-batch of a machine for `--batch_size=auto`.

    Raises:
        ConfigError: not even one sample fits.
    """
    flags = parse_flags(args)
    if str(flags.get("batch_size")) != AUTO:
        return list(args)
    rest = [
        f"--{name}" if value is True else f"--{name}={value}"
        for name, value in flags.items()
        if name != "batch_size"
    ]
    run, data = subject([*rest, "--batch_size=1"])
    machine = machine_of_run(run)
    trace = step_trace_of(run, device_of(machine))
    most = max(1, data.samples // (ranks * run.accumulation))
    size = largest_batch(run, trace, machine.gpu, min(most, 4096))
    if size == 0:
        raise ConfigError(
            f"batch_size=auto on {machine.gpu.name}: not even one sample fits",
            rule="a training step fits the memory",
            remedy="`kata plan` with the same options lists changes with which it does",
        )
    _log.warning("batch_size=auto: %d samples on %s", size, machine.gpu.name)
    return [*rest, f"--batch_size={size}"]


def fit_here(args: Sequence[str], ranks: int) -> list[str]:
    """Return the arguments of `kata train` with the changes that `--fit` needs; see `with_fit`."""

    def subject(flags: Sequence[str]) -> Run:
        run, _ = with_dataset(resolve_run(flags, ranks)[0])
        return dataclasses.replace(run, policy=run.policy.without_downloads())

    return with_fit(args, subject)
