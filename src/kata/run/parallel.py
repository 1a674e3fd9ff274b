"""Options of training on several ranks."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any

from kata.errors import ConfigError, did_you_mean

SCALINGS = ("none", "linear", "sqrt")


COMPRESSIONS = ("none", "bf16")


@dataclass(frozen=True, kw_only=True)
class DdpConfig:
    """How ranks exchange gradients: in buckets of `bucket_mb` MiB while the backward pass runs, `compression` 'bf16'
    as half the bytes, summed in that precision.
    """

    bucket_mb: int = 25
    compression: str = "none"

    def __post_init__(self) -> None:
        if self.bucket_mb < 1:
            raise ConfigError(
                f"ddp.bucket_mb={self.bucket_mb}",
                rule="at least 1 MiB",
                remedy="25, or 100 between fast cards",
            )
        if self.compression not in COMPRESSIONS:
            raise ConfigError(
                f"ddp.compression={self.compression}",
                rule=f"one of: {', '.join(COMPRESSIONS)}",
                remedy=did_you_mean(self.compression, COMPRESSIONS),
            )


def check_scaling(scale_lr: str, by: float) -> None:
    """ConfigError for a way of scaling the learning rate that there is not, or a number without one."""
    if scale_lr not in SCALINGS:
        raise ConfigError(
            f"scale_lr={scale_lr}",
            rule=f"one of: {', '.join(SCALINGS)}",
            remedy=did_you_mean(scale_lr, SCALINGS),
        )
    if not by >= 0 or (by and scale_lr == "none"):
        raise ConfigError(
            f"scale_lr_by={by}",
            rule="how many times larger the batch has become, with --scale_lr=linear or sqrt",
            remedy="add --scale_lr=linear, or leave scale_lr_by out",
        )


STAGES = (0, 1, 2, 3)


OFFLOAD = ("none", "cpu")


@dataclass(frozen=True, kw_only=True)
class DeepSpeedConfig:
    """DeepSpeed, with `--engine=accelerate` and the extra `deepspeed`. `zero_stage` 1 shares out the moments of the
    optimiser among the ranks, 2 gradients too, 3 weights too; 0 is off. `offload_optimizer_device` 'cpu' keeps moments
    in host memory, `offload_param_device` 'cpu' (stage 3) weights. `zero_optimization`: further settings of DeepSpeed's
    group of that name.
    """

    zero_stage: int = 0
    offload_optimizer_device: str = "none"
    offload_param_device: str = "none"
    zero_optimization: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        _one_of(
            "deepspeed.zero_stage", self.zero_stage, STAGES, "2 shares out moments and gradients"
        )
        for name, device in self.devices.items():
            _one_of(f"deepspeed.{name}", device, OFFLOAD, "cpu, or leave it out")
        if self.offload_param_device != "none" and self.zero_stage != 3:
            raise ConfigError(
                f"deepspeed.offload_param_device={self.offload_param_device} with zero_stage={self.zero_stage}",
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
                rule="what has an option of its own is set there",
                remedy="--deepspeed.zero_stage, --deepspeed.offload_optimizer_device, --deepspeed.offload_param_device",
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
        """Where moments and weights are kept, by option."""
        return {
            "offload_optimizer_device": self.offload_optimizer_device,
            "offload_param_device": self.offload_param_device,
        }


def _one_of(name: str, value: object, values: tuple[object, ...], remedy: str) -> None:
    if value not in values:
        raise ConfigError(
            f"{name}={value}", rule=f"one of: {', '.join(map(str, values))}", remedy=remedy
        )


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
    """ConfigError for a checkpoint format that there is not, or that holds nothing that is to be uploaded."""
    if name == "dcp" and uploaded:
        raise ConfigError(
            "checkpoint_format=dcp with policy.push_to_hub",
            rule="what is uploaded is LeRobot's model.safetensors, which pieces alone do not hold",
            remedy="--checkpoint_format=both, or --policy.push_to_hub=false",
        )
    if name not in FORMATS:
        raise ConfigError(
            f"checkpoint_format={name}",
            rule=f"one of: {', '.join(FORMATS)}",
            remedy=did_you_mean(name, FORMATS),
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


ENGINES = ("auto", "native", "accelerate")


@dataclass(frozen=True, kw_only=True)
class FsdpConfig:
    """Sharding by Accelerate's FSDP2: which modules are gathered one by one (`wrap`), and whether they are given back
    after the forward pass (`reshard_after_forward`).

    wrap: 'units' are the policy's own; 'none' gathers all at once; 'size' those of more than `min_num_params`
    parameters; else class names, separated by commas.
    """

    wrap: str = "units"
    min_num_params: int = 0
    reshard_after_forward: bool = True

    def __post_init__(self) -> None:
        if (self.wrap == "size") != (self.min_num_params > 0):
            raise ConfigError(
                f"fsdp.wrap={self.wrap} with fsdp.min_num_params={self.min_num_params}",
                rule="modules are chosen by their size with both",
                remedy="--fsdp.wrap=size --fsdp.min_num_params=1000000, or leave out both",
            )
