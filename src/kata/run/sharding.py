"""How ranks share out weights, moments and average, and how those lie on the disk. Torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kata.errors import ConfigError, did_you_mean
from kata.run.parallel import DdpConfig

FORMATS = ("auto", "safetensors", "dcp", "both")
DERIVED = (None, -1)


@dataclass(frozen=True, kw_only=True)
class ParallelismConfig:
    """Copies of the policy (`dp_replicate`) and ranks that share one copy (`dp_shard`); their product is the number of
    ranks. -1 or null: what the other leaves; both so: one copy. dp_shard=1 is DDP, where dp_replicate may say 1.
    """

    dp_replicate: int | None = None
    dp_shard: int | None = 1

    def __post_init__(self) -> None:
        for name, value in (("dp_replicate", self.dp_replicate), ("dp_shard", self.dp_shard)):
            if value not in DERIVED and value < 1:
                raise ConfigError(
                    f"parallelism.{name}={value}",
                    rule="a number of at least 1; -1 or null: what the ranks leave for it",
                    remedy=f"for example --parallelism.{name}=-1",
                )

    def mesh(self, ranks: int) -> tuple[int, int]:
        """(copies, ranks per copy) for so many ranks.

        Raises: ConfigError where they do not multiply to the ranks, with the nearest that do.
        """
        copies, shards = self.dp_replicate, self.dp_shard
        if shards == 1 and copies in (*DERIVED, 1):
            return ranks, 1
        if shards in DERIVED:
            shards = ranks // (1 if copies in DERIVED else copies)
        if copies in DERIVED:
            copies = ranks // max(shards, 1)
        if copies * shards != ranks:
            raise self._not_the_ranks(ranks)
        return copies, shards

    def _not_the_ranks(self, ranks: int) -> ConfigError:
        stated = {"dp_shard": self.dp_shard, "dp_replicate": self.dp_replicate}
        given = {name: value for name, value in stated.items() if value not in DERIVED}
        name, asked = max(given.items(), key=lambda item: item[1])
        other = "dp_replicate" if name == "dp_shard" else "dp_shard"
        whole = [n for n in range(1, ranks + 1) if ranks % n == 0]
        near = sorted({max(n for n in whole if n <= asked), min((n for n in whole if n >= asked), default=ranks)})
        fitting = " or ".join(f"--parallelism.{name}={n} --parallelism.{other}={ranks // n}" for n in near)
        product = math.prod(given.values())
        counts = sorted({max(1, ranks // product) * product, (ranks // product + 1) * product} - {ranks})
        return ConfigError(
            " x ".join(f"parallelism.{name}={value}" for name, value in given.items())
            + f" on {ranks} rank{'s' * (ranks != 1)}",
            rule="copies (dp_replicate) x ranks per copy (dp_shard) = ranks",
            remedy=f"{fitting}; or {' or '.join(map(str, counts))} ranks",
        )


def check_format(name: str, *, uploaded: bool) -> None:
    """ConfigError for a checkpoint format that there is not, or that holds nothing that is to be uploaded."""
    if name == "dcp" and uploaded:
        raise ConfigError(
            "checkpoint_format=dcp with policy.push_to_hub",
            rule="what is uploaded is LeRobot's model.safetensors, which pieces alone do not hold",
            remedy="--checkpoint_format=both, or --policy.push_to_hub=false",
        )
    if name not in FORMATS:
        raise ConfigError(
            f"checkpoint_format={name}", rule=f"one of: {', '.join(FORMATS)}", remedy=did_you_mean(name, FORMATS)
        )


def check_beside_sharding(ddp: DdpConfig) -> None:
    """ConfigError for options that have no effect where weights are in pieces."""
    plain = DdpConfig()
    for name, value, default in (
        ("bucket_mb", ddp.bucket_mb, plain.bucket_mb),
        ("compression", ddp.compression, plain.compression),
    ):
        if value != default:
            raise ConfigError(
                f"ddp.{name}={value} with parallelism.dp_shard",
                rule="gradients of weights in pieces go to their piece, not through DDP's buckets",
                remedy=f"leave out --ddp.{name}, or --parallelism.dp_shard",
            )
