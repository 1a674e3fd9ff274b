"""The options of `kata bench scale`. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kata.config import decode, parse_flags
from kata.errors import ConfigError

BUILT_IN = (
    "--policy.type=act",
    "--policy.pretrained_backbone_weights=null",
    "--policy.chunk_size=15",
    "--policy.n_action_steps=15",
    "--policy.dim_model=128",
    "--policy.n_heads=4",
    "--policy.dim_feedforward=256",
    "--policy.push_to_hub=false",
    "--dataset.repo_id=kata/reach",
    "--batch_size=8",
    "--num_workers=1",
)
"""A small ACT on the built-in task."""


@dataclass(frozen=True, kw_only=True)
class ScaleRun:
    """What is measured, and how often.

    ranks: numbers of ranks, each measured in processes of its own; empty measures none. threads: of each rank's
    mathematics (OMP_NUM_THREADS), the same for all numbers of ranks; 0 shares the cores among the most ranks. rounds:
    each figure is the median over so many, all numbers of ranks in turn. steps: timed per round, after `warmup` more.
    simulate: so many ranks are laid out without being there (0: none), for each policy, or the one given after '--'.
    timeout: seconds after which ranks that do not end are ended. out: folder of the result.
    """

    ranks: list[int] = field(default_factory=lambda: [1, 2])
    threads: int = 0
    rounds: int = 3
    steps: int = 10
    warmup: int = 3
    simulate: int = 64
    timeout: float = 600.0
    out: str | None = "benchmarks/results"

    def __post_init__(self) -> None:
        least = {"threads": 0, "rounds": 1, "steps": 1, "warmup": 1, "simulate": 0, "timeout": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ConfigError(
                    f"{name}={getattr(self, name)}",
                    rule=f"at least {low}",
                    remedy="leave it out for the default",
                )
        if sorted({n for n in self.ranks if n > 0}) != self.ranks:
            raise ConfigError(
                f"ranks={self.ranks}",
                rule="numbers from 1 on, each once, rising",
                remedy="for example --ranks=1,2,4",
            )


def resolve_scale(args: Sequence[str]) -> tuple[ScaleRun, list[str]]:
    """The measurement that these arguments ask for, and those of `kata train` after '--'.

    Raises: ConfigError for an unknown name or a wrong value.
    """
    own = list(args[: args.index("--")]) if "--" in args else list(args)
    given = parse_flags(own)
    if not isinstance(given.get("ranks", []), list):
        given["ranks"] = _numbers(given["ranks"])
    return decode(ScaleRun, given), list(args[len(own) + 1 :])


def _numbers(given: object) -> list[int]:
    """'1,2,4', or nothing at all, as a list."""
    words = [] if given is None else [word.strip() for word in str(given).split(",")]
    for word in words:
        if not word.isdigit():
            raise ConfigError(
                f"ranks={given}: '{word}'", rule="whole numbers", remedy="for example --ranks=1,2,4"
            )
    return [int(word) for word in words]
