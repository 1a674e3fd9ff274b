"""The options of `kata bench scale`. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass

from kata.config import Options, option
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
class ScaleRun(Options):
    """The numbers of ranks that are measured, and the repetitions."""

    ranks: list[int] = option(
        lambda: [1, 2],
        "Numbers of ranks, each measured in its own processes; empty measures none.",
        least=1,
    )
    threads: int = option(
        0,
        "Threads of each rank's mathematics (OMP_NUM_THREADS); 0 shares the cores among the most "
        "ranks.",
        least=0,
    )
    rounds: int = option(
        3, "Rounds, in which all numbers of ranks take turns; the median counts.", least=1
    )
    steps: int = option(10, "Steps that a round measures.", least=1)
    warmup: int = option(3, "Steps before those.", least=1)
    simulate: int = option(
        64,
        "Ranks that are laid out without being there, for each policy or the one after '--'; 0 "
        "for none.",
        least=0,
    )
    timeout: float = option(600.0, "Time after which ranks are ended.", unit="s", least=1)
    out: str | None = option("benchmarks/results", "Folder of the result; null writes none.")

    def __post_init__(self) -> None:
        super().__post_init__()
        if sorted(set(self.ranks)) != self.ranks:
            raise ConfigError(
                f"ranks={self.ranks}",
                rule="numbers from 1 on, each once, rising",
                remedy="for example --ranks=1,2,4",
            )
