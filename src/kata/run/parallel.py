"""Options of training on several ranks."""

from __future__ import annotations

from dataclasses import dataclass

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
                f"ddp.bucket_mb={self.bucket_mb}", rule="at least 1 MiB", remedy="25, or 100 between fast cards"
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
            f"scale_lr={scale_lr}", rule=f"one of: {', '.join(SCALINGS)}", remedy=did_you_mean(scale_lr, SCALINGS)
        )
    if not by >= 0 or (by and scale_lr == "none"):
        raise ConfigError(
            f"scale_lr_by={by}",
            rule="how many times larger the batch has become, with --scale_lr=linear or sqrt",
            remedy="add --scale_lr=linear, or leave scale_lr_by out",
        )
