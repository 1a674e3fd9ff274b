"""The options of the laboratory: those of `kata bench data`, and the peer."""

from __future__ import annotations

from dataclasses import dataclass

from kata.bench.options import BenchRun
from kata.config import option


@dataclass(frozen=True, kw_only=True)
class LabRun(BenchRun):
    """The cases of a comparison and its repetitions."""

    peer: bool = option(False, "Measure LeRobot 0.6.1 too.")
    peer_python: str | None = option(
        None, "Python of the peer; null takes the environment that `make peer` builds."
    )
    make: bool = option(
        False, "First write the datasets a, b, c, d and multi to root, with LeRobot's writer."
    )
