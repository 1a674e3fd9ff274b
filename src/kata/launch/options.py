"""The options of `kata launch`, one class per target. Torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kata.errors import ConfigError
from kata.units import duration_s

LOGS = "outputs/launch"


def refuse(name: str, value: object, rule: str, remedy: str) -> ConfigError:
    """The error for an option's impossible value."""
    return ConfigError(f"{name}={value}", rule=rule, remedy=remedy)


def _check_count(name: str, value: int, least: int = 1) -> None:
    if value < least:
        raise refuse(name, value, f"a whole number of at least {least}", "leave it out for the default")


def _check_duration(name: str, value: str | None) -> None:
    if value is not None and not 0 < duration_s(value) < math.inf:
        raise refuse(name, value, "seconds, or a number with s, m, h or d", f"for example --{name}=2h")


@dataclass(frozen=True, kw_only=True)
class Local:
    """Ranks on this machine.

    gpus: how many of the visible GPUs, or which ([0, 2]: places in CUDA_VISIBLE_DEVICES where that is set, else the
    GPUs' numbers); null takes all. ranks: so many ranks on the CPU instead. port: where the ranks meet; 0 takes a free
    one. log_dir: output of all ranks but the first; null makes a folder below outputs/launch. stop_after: after so long
    the run is asked to save and leave (status 85).
    """

    gpus: int | list[int] | None = None
    ranks: int | None = None
    port: int = 0
    log_dir: str | None = None
    stop_after: str | None = None

    def __post_init__(self) -> None:
        if self.gpus is not None and self.ranks is not None:
            raise refuse(
                "ranks", self.ranks, "--gpus starts a rank per GPU, --ranks starts CPU ranks", "leave out one of them"
            )
        if self.ranks is not None:
            _check_count("ranks", self.ranks)
        if isinstance(self.gpus, int) and self.gpus < 1:
            raise refuse("gpus", self.gpus, "a number from 1 on, or a list of GPUs", "--ranks=2 starts two CPU ranks")
        if isinstance(self.gpus, list) and (not self.gpus or len(set(self.gpus)) < len(self.gpus)):
            raise refuse("gpus", self.gpus, "at least one GPU, each once", "for example --gpus=[0,1]")
        if not 0 <= self.port <= 65_535:
            raise refuse("port", self.port, "a port number up to 65535", "leave it out: a free one is taken")
        _check_duration("stop_after", self.stop_after)


def target_class(target: str) -> type[Local]:
    """The options of a target."""
    if target == "local":
        return Local
    raise refuse("target", target, "local", "leave --target out")
