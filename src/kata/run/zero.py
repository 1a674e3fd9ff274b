"""DeepSpeed's ZeRO as options, and what a DeepSpeed config file says of them. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from kata.errors import ConfigError

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
        _one_of("deepspeed.zero_stage", self.zero_stage, STAGES, "2 shares out moments and gradients")
        for name, device in self.devices.items():
            _one_of(f"deepspeed.{name}", device, OFFLOAD, "cpu, or leave it out")
        if self.offload_param_device != "none" and self.zero_stage != 3:
            raise ConfigError(
                f"deepspeed.offload_param_device={self.offload_param_device} with zero_stage={self.zero_stage}",
                rule="weights are shared out in stage 3 alone",
                remedy="--deepspeed.zero_stage=3, or leave it out",
            )
        if self.zero_stage == 0 and (self.zero_optimization or self.offload_optimizer_device != "none"):
            raise ConfigError(
                "deepspeed: settings without a stage", rule="zero_stage 0 is off", remedy="--deepspeed.zero_stage=2"
            )
        stated = sorted({"stage", "offload_optimizer", "offload_param"} & set(self.zero_optimization))
        if stated:
            raise ConfigError(
                f"deepspeed.zero_optimization: {', '.join(stated)}",
                rule="what has an option of its own is set there",
                remedy="--deepspeed.zero_stage, --deepspeed.offload_optimizer_device, --deepspeed.offload_param_device",
            )

    @property
    def settings(self) -> dict[str, Any]:
        """DeepSpeed's group `zero_optimization`."""
        places = {"offload_optimizer": self.offload_optimizer_device, "offload_param": self.offload_param_device}
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
        raise ConfigError(f"{name}={value}", rule=f"one of: {', '.join(map(str, values))}", remedy=remedy)
