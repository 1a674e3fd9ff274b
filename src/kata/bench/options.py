"""The options of `kata bench data`. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kata.bench.cases import CASES, PATTERNS, WAYS, Case
from kata.config import decode, parse_flags
from kata.errors import ConfigError, DataError, did_you_mean
from kata.run.dataset import PIXELS
from kata.units import num_bytes


@dataclass(frozen=True, kw_only=True)
class BenchRun:
    """What is measured, and how often.

    root: a dataset, or a folder that holds datasets. cases: '<dataset folder>:<pattern>' below root ('.:act' is root
    itself); empty takes the cases that have targets. ways: how kata reads. rounds: every figure is the median of so
    many, each in a process of its own, kata and the peer in turn. seconds: of one measurement; where the order is in
    clips, whole epochs until `epoch_seconds` have passed, or a part of one that takes three times as long.
    floor_seconds: of the decode floor, at least, per core and camera; beside an order in clips as long as that takes.
    num_workers: decoding threads of kata, processes of the peer; 0 takes one per core. frame_memory: kata's budget for
    decoded frames; '0' takes a tenth of all (a third for sarm), beside the batches in the making: with more, what one
    epoch leaves for the next would count.
    pixels: 'rgb', or 'yuv' for frames that a device converts: their floor is decoding alone. Peers read RGB.
    cache_episodes: so many first episodes are kept in the frame cache, and are what is read with it.
    peer: measure LeRobot 0.6.1 too, with `peer_python` or the environment that `make peer` builds.
    make: first write the datasets a, b, c, d and multi to root with LeRobot's own writer.
    soak: instead of all that, read so many batches of the first case in each way, and say how much memory grew.
    out: folder of the result.
    """

    root: str
    cases: list[str] = field(default_factory=list)
    ways: list[str] = field(default_factory=lambda: list(WAYS))
    rounds: int = 5
    seconds: float = 3.0
    epoch_seconds: float = 10.0
    floor_seconds: float = 1.0
    batch_size: int = 8
    num_workers: int = 0
    seed: int = 0
    frame_memory: str = "0"
    pixels: str = "rgb"
    cache_episodes: int = 2
    peer: bool = False
    peer_python: str | None = None
    make: bool = False
    soak: int = 0
    out: str | None = "benchmarks/results"

    def __post_init__(self) -> None:
        at_least = {
            "rounds": 1,
            "seconds": 0.01,
            "batch_size": 1,
            "num_workers": 0,
            "cache_episodes": 1,
            "soak": 0,
        }
        at_least |= {"epoch_seconds": 0.01, "floor_seconds": 0.01, "seed": 0}
        for name, least in at_least.items():
            value = getattr(self, name)
            if value < least:
                raise ConfigError(
                    f"{name}={value}",
                    rule=f"at least {least}",
                    remedy="leave it out for the default",
                )
        if self.pixels not in PIXELS:
            raise ConfigError(
                f"pixels={self.pixels}",
                rule=f"one of: {', '.join(PIXELS)}",
                remedy=did_you_mean(self.pixels, PIXELS),
            )
        if not num_bytes(self.frame_memory) >= 0:
            raise ConfigError(
                f"frame_memory={self.frame_memory}",
                rule="bytes, or a number with KB, MB, GB",
                remedy="for example 2GB",
            )
        for name, known in (("ways", WAYS), ("cases", PATTERNS)):
            for word in getattr(self, name):
                last = word.rpartition(":")[2]
                if last not in known or (name == "cases" and ":" not in word):
                    raise ConfigError(
                        f"{name}: {word}",
                        rule="'<dataset folder>:<pattern>'"
                        if name == "cases"
                        else "a way of reading",
                        remedy=did_you_mean(last, known),
                    )


def resolve_bench(args: Sequence[str]) -> BenchRun:
    """The measurement that these arguments ask for; ConfigError for an unknown name or a wrong value."""
    given = parse_flags(args)
    if given.get("root") is None:
        raise ConfigError(
            "root: not given", rule="what is measured is a dataset", remedy="add --root=<folder>"
        )
    return decode(BenchRun, given)


def chosen_cases(run: BenchRun) -> list[Case]:
    """The cases asked for, or those with targets whose datasets lie below root; root itself where it is a dataset.

    Raises: DataError when there is no such dataset.
    """
    root = Path(run.root).expanduser()
    if run.cases:
        cases = [
            Case(folder, pattern)
            for folder, _, pattern in (word.rpartition(":") for word in run.cases)
        ]
    elif _is_dataset(root):
        cases = [Case(".", "act")]
    else:
        cases = [case for case in CASES if _is_dataset(root / case.folder)]
    absent = [case.folder for case in cases if not _is_dataset(root / case.folder)]
    if absent or not cases:
        raise DataError(
            f"{root}: holds no dataset{f' {absent[0]}' if absent else ''}",
            rule="a LeRobot dataset, or a folder of datasets a, b, c, d",
            remedy="--make writes them there with LeRobot's writer",
        )
    return cases


def _is_dataset(folder: Path) -> bool:
    return (folder / "meta" / "info.json").is_file()
