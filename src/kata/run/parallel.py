"""Options of training on several ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from kata.config import Options, option
from kata.errors import ConfigError

SCALINGS = ("none", "linear", "sqrt")


COMPRESSIONS = ("none", "bf16")


@dataclass(frozen=True, kw_only=True)
class DdpConfig(Options):
    """The exchange of gradients between ranks, during the backward pass."""

    at: ClassVar[str] = "ddp."

    bucket_mb: int = option(25, "Size of a gradient bucket.", unit="MiB", least=1, may_change=True)
    compression: str = option(
        "none",
        "Precision of the exchange: bf16 sends half the bytes and sums in that precision.",
        choices=COMPRESSIONS,
    )


def check_scaling(scale_lr: str, by: float) -> None:
    """Refuse a factor of the learning rate without a way of scaling it."""
    if by and scale_lr == "none":
        raise ConfigError(
            f"scale_lr_by={by}",
            rule="how many times larger the batch has become, with --scale_lr=linear or sqrt",
            remedy="add --scale_lr=linear, or leave scale_lr_by out",
        )


STAGES = (0, 1, 2, 3)


OFFLOAD = ("none", "cpu")


@dataclass(frozen=True, kw_only=True)
class DeepSpeedConfig(Options):
    """DeepSpeed's ZeRO, with `--engine=accelerate` and the extra `deepspeed`."""

    at: ClassVar[str] = "deepspeed."

    zero_stage: int = option(
        0,
        "DeepSpeed ZeRO stage: 1 shards the optimizer state, 2 gradients too, 3 weights too; 0 is "
        "off.",
        choices=STAGES,
    )
    offload_optimizer_device: str = option(
        "none", "Keep the optimizer state in host memory.", choices=OFFLOAD
    )
    offload_param_device: str = option(
        "none", "Keep weights in host memory, in stage 3.", choices=OFFLOAD
    )
    zero_optimization: dict[str, Any] = option(
        dict, "Further settings of DeepSpeed's group zero_optimization."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.offload_param_device != "none" and self.zero_stage != 3:
            raise ConfigError(
                f"deepspeed.offload_param_device={self.offload_param_device} with "
                f"zero_stage={self.zero_stage}",
                rule="weights are shared out in stage 3 alone",
                remedy="--deepspeed.zero_stage=3, or leave it out",
            )
        if self.zero_stage == 0 and (
            self.zero_optimization or self.offload_optimizer_device != "none"
        ):
            raise ConfigError(
                "deepspeed: settings without a stage",
                rule="zero_stage 0 is off",
                remedy="--deepspeed.zero_stage=2",
            )
        stated = sorted(
            {"stage", "offload_optimizer", "offload_param"} & set(self.zero_optimization)
        )
        if stated:
            raise ConfigError(
                f"deepspeed.zero_optimization: {', '.join(stated)}",
                rule="what has its own option is set there",
                remedy=(
                    "--deepspeed.zero_stage, --deepspeed.offload_optimizer_device, "
                    "--deepspeed.offload_param_device"
                ),
            )

    @property
    def settings(self) -> dict[str, Any]:
        """DeepSpeed's group `zero_optimization`."""
        places = {
            "offload_optimizer": self.offload_optimizer_device,
            "offload_param": self.offload_param_device,
        }
        moved = {name: {"device": device} for name, device in places.items() if device != "none"}
        return {**self.zero_optimization, "stage": self.zero_stage, **moved}

    @property
    def devices(self) -> dict[str, str]:
        """The devices of optimizer state and weights, by option."""
        return {
            "offload_optimizer_device": self.offload_optimizer_device,
            "offload_param_device": self.offload_param_device,
        }


FORMATS = ("auto", "safetensors", "dcp", "both")


DERIVED = (None, -1)


@dataclass(frozen=True, kw_only=True)
class ParallelismConfig(Options):
    """Copies of the policy and ranks that share one copy; their product is the number of ranks.

    With dp_shard=1, which is DDP, dp_replicate may say 1 as well.
    """

    at: ClassVar[str] = "parallelism."

    dp_replicate: int | None = option(
        None, "Copies of the policy; -1 or null takes what dp_shard leaves of the ranks."
    )
    dp_shard: int | None = option(
        1, "Ranks that share one copy (FSDP); 1 is DDP, -1 or null takes what dp_replicate leaves."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("dp_replicate", self.dp_replicate), ("dp_shard", self.dp_shard)):
            if value not in DERIVED and value < 1:
                raise ConfigError(
                    f"parallelism.{name}={value}",
                    rule="a number of at least 1; -1 or null: what the ranks leave for it",
                    remedy=f"for example --parallelism.{name}=-1",
                )

    def mesh(self, ranks: int) -> tuple[int, int]:
        """Return (copies, ranks per copy) for a number of ranks.

        Raises:
            ConfigError: their product is not the number of ranks. The message gives the nearest
                ones.
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
        near = sorted(
            {
                max(n for n in whole if n <= asked),
                min((n for n in whole if n >= asked), default=ranks),
            }
        )
        fitting = " or ".join(
            f"--parallelism.{name}={n} --parallelism.{other}={ranks // n}" for n in near
        )
        product = math.prod(given.values())
        counts = sorted(
            {max(1, ranks // product) * product, (ranks // product + 1) * product} - {ranks}
        )
        return ConfigError(
            " x ".join(f"parallelism.{name}={value}" for name, value in given.items())
            + f" on {ranks} rank{'s' * (ranks != 1)}",
            rule="copies (dp_replicate) x ranks per copy (dp_shard) = ranks",
            remedy=f"{fitting}; or {' or '.join(map(str, counts))} ranks",
        )


def check_format(name: str, *, uploaded: bool) -> None:
    """Refuse a checkpoint format that holds nothing that is to be uploaded."""
    if name == "dcp" and uploaded:
        raise ConfigError(
            "checkpoint_format=dcp with policy.push_to_hub",
            rule="what is uploaded is LeRobot's model.safetensors, which shards alone do not hold",
            remedy="--checkpoint_format=both, or --policy.push_to_hub=false",
        )


def check_beside_sharding(ddp: DdpConfig) -> None:
    """Refuse options that have no effect on sharded weights."""
    plain = DdpConfig()
    for name, value, default in (
        ("bucket_mb", ddp.bucket_mb, plain.bucket_mb),
        ("compression", ddp.compression, plain.compression),
    ):
        if value != default:
            raise ConfigError(
                f"ddp.{name}={value} with parallelism.dp_shard",
                rule="gradients of weights in shards go to their shard, not through DDP's buckets",
                remedy=f"leave out --ddp.{name}, or --parallelism.dp_shard",
            )


ENGINES = ("auto", "native", "accelerate")


@dataclass(frozen=True, kw_only=True)
class FsdpConfig(Options):
    """The sharding of a policy by Accelerate's FSDP2."""

    at: ClassVar[str] = "fsdp."

    wrap: str = option(
        "units",
        "Modules that are gathered one by one: the policy's units, none (all at once), size (those "
        "of "
        "more than min_num_params parameters), or class names separated by commas.",
    )
    min_num_params: int = option(
        0, "Parameters of the smallest such module, with wrap=size.", least=0
    )
    reshard_after_forward: bool = option(
        True, "Give gathered weights back after the forward pass: less memory, more traffic."
    )

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.wrap == "size") != (self.min_num_params > 0):
            raise ConfigError(
                f"fsdp.wrap={self.wrap} with fsdp.min_num_params={self.min_num_params}",
                rule="modules are chosen by their size with both",
                remedy="--fsdp.wrap=size --fsdp.min_num_params=1000000, or leave out both",
            )
