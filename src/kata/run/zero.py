"""DeepSpeed's ZeRO as options, and what a DeepSpeed config file says of them. Torch-free."""

from __future__ import annotations

import base64
import binascii
import json
from dataclasses import dataclass, field
from pathlib import Path
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


_STATED = {
    "gradient_accumulation_steps": "accelerator.gradient_accumulation.steps",
    "gradient_clipping": "optimizer.grad_clip_norm",
    "train_micro_batch_size_per_gpu": "batch_size",
    "train_batch_size": "global_batch_size",
}
_OWN = {"optimizer": "--optimizer.type and its options", "scheduler": "--scheduler.type and its options"}
_NO_EFFECT = ("steps_per_print", "zero_allow_untested_optimizer", "zero_force_ds_cpu_optimizer", "wall_clock_breakdown")
"""What concerns only what DeepSpeed prints and refuses."""


def read_deepspeed_file(text: str) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """What a DeepSpeed config file states.

    text: its path, or the file itself in base64, as Accelerate allows.

    Returns: kata's options by dotted name; further settings of `zero_optimization`; names of what has no effect.

    Raises: ConfigError for a file that cannot be read, and for what kata does not do with DeepSpeed.
    """
    raw = {name: value for name, value in _read(text).items() if value != "auto"}
    found = {option: raw.pop(name) for name, option in _STATED.items() if name in raw}
    zero: dict[str, Any] = {name: value for name, value in raw.pop("zero_optimization", {}).items() if value != "auto"}
    if "stage" in zero:
        found["deepspeed.zero_stage"] = zero.pop("stage")
    for name in ("offload_optimizer", "offload_param"):
        device = (zero.pop(name, None) or {}).get("device", "none")
        if device not in ("none", "auto"):
            found[f"deepspeed.{name}_device"] = device
    for precision in ("bf16", "fp16"):
        if raw.pop(precision, {}).get("enabled") is True:
            found["accelerator.mixed_precision"] = precision
    # How DeepSpeed would write 16-bit weights: kata writes its own checkpoints.
    unused = [name for name in raw if name in _NO_EFFECT] + [name for name in zero if name.startswith("stage3_gather")]
    _refuse_the_rest({name: value for name, value in raw.items() if name not in unused})
    return found, {name: value for name, value in zero.items() if name not in unused}, sorted(unused)


def _refuse_the_rest(raw: dict[str, Any]) -> None:
    for name, where in _OWN.items():
        if name in raw:
            raise ConfigError(
                f"{name} in DeepSpeed's config", rule="kata makes it from its own options", remedy=f"use {where}"
            )
    unknown = sorted(name for name, value in raw.items() if value is not False)
    if unknown:
        raise ConfigError(
            f"{', '.join(unknown)} in DeepSpeed's config",
            rule="kata uses its ZeRO stages, with the settings of zero_optimization",
            remedy="leave it out of the file",
        )


def _read(text: str) -> dict[str, Any]:
    try:
        path = Path(text).expanduser()
        content = path.read_text(encoding="utf-8") if path.is_file() else base64.urlsafe_b64decode(text).decode()
        found = json.loads(content)
        if not isinstance(found, dict):
            raise TypeError("not an object")
    except (OSError, ValueError, TypeError, binascii.Error) as error:
        raise ConfigError(
            f"ACCELERATE_DEEPSPEED_CONFIG_FILE={text[:80]}: cannot be read ({error})",
            rule="a JSON object, by its path or in base64",
            remedy="check --deepspeed_config_file, or deepspeed_config_file in accelerate's YAML",
        ) from error
    return found
