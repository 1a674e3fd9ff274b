"""The options of `kata bench step`. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kata.config import Options, option
from kata.errors import ConfigError, did_you_mean
from kata.policies import types_from_recordings
from kata.run.config import PRECISIONS


@dataclass(frozen=True, kw_only=True)
class StepBench(Options):
    """The policies whose steps are traced, and the peer."""

    policies: list[str] = option(list, "Policies by type; empty takes all.")
    batch_size: int = option(8, "Samples of the step.", least=1)
    precision: str = option("no", "Precision of the forward pass.", choices=PRECISIONS)
    peer: str | None = option(
        None,
        "Python of an environment with LeRobot, to trace its steps too; null traces kata alone.",
    )
    out: str | None = option("benchmarks/results", "Folder of the result; null writes none.")

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in self.policies:
            if name not in types_from_recordings():
                raise ConfigError(
                    f"policies: {name}",
                    rule=f"policies: {', '.join(sorted(types_from_recordings()))}",
                    remedy=did_you_mean(name, types_from_recordings()),
                )
        if self.peer is not None and not Path(self.peer).expanduser().is_file():
            raise ConfigError(
                f"peer={self.peer}: no such file",
                rule="the interpreter of an environment that has LeRobot",
                remedy="build one with `make peer`, then --peer=.peer/bin/python",
            )
