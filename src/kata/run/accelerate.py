"""What `accelerate launch`, its flags and its config files ask for, as kata's own options. Torch-free.

They reach a process as environment variables. Each is taken and said, or refused by name; none is passed over.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from kata.errors import ConfigError

PRECISION, ACCUMULATION = "ACCELERATE_MIXED_PRECISION", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"
_SHARDED = {
    "ACCELERATE_USE_FSDP": "FSDP",
    "ACCELERATE_USE_DEEPSPEED": "DeepSpeed",
    "ACCELERATE_USE_MEGATRON_LM": "Megatron-LM",
    "ACCELERATE_USE_PARALLELISM_CONFIG": "a parallelism_config",
}


def take_over(given: Mapping[str, Any], environment: Mapping[str, str], notes: list[str]) -> dict[str, Any]:
    """The options with those of Accelerate's environment in them.

    Raises: ConfigError for what kata cannot do, and where a flag or file of kata says something else.
    """
    taken: dict[str, Any] = copy.deepcopy(dict(given))
    for name, what in _SHARDED.items():
        if environment.get(name, "").lower() in ("true", "1"):
            raise ConfigError(
                f"{name}={environment[name]}: {what} was asked of accelerate launch",
                rule="kata trains with data parallelism (DDP): every rank holds the whole policy",
                remedy="launch with --multi_gpu, or choose MULTI_GPU in `accelerate config`",
            )
    backend = environment.get("ACCELERATE_DYNAMO_BACKEND", "no")
    if backend.lower() != "no":
        raise ConfigError(
            f"ACCELERATE_DYNAMO_BACKEND={backend}",
            rule="kata does not compile the policy as a whole",
            remedy="leave out --dynamo_backend",
        )
    if PRECISION in environment:
        _take_precision(taken, environment[PRECISION], notes)
    if ACCUMULATION in environment:
        _take(taken, "accelerator.gradient_accumulation.steps", environment[ACCUMULATION], ACCUMULATION, notes)
    if environment.get("ACCELERATE_USE_CPU", "").lower() == "true":
        _take(taken, "policy.device", "cpu", "ACCELERATE_USE_CPU", notes)
    return taken


def _take_precision(taken: dict[str, Any], precision: str, notes: list[str]) -> None:
    """'no' is what Accelerate says where nothing was asked: kata's own flag may then ask for more.

    `policy.use_amp` counts only where Accelerate does not set the precision, as LeRobot's guide says.
    """
    policy = taken.setdefault("policy", {})
    if isinstance(policy, dict):
        if policy.get("use_amp"):
            notes.append(f"policy.use_amp does not count: accelerate launch sets the precision ({precision})")
        policy["use_amp"] = False
    if precision != "no":
        _take(taken, "accelerator.mixed_precision", precision, PRECISION, notes)


def _take(taken: dict[str, Any], option: str, value: str, variable: str, notes: list[str]) -> None:
    *groups, name = option.split(".")
    at: Any = taken
    for group in groups:
        at = at.setdefault(group, {})
        if not isinstance(at, dict):
            raise ConfigError(f"{group}={at}: not a group of options", rule=f"{group} has options", remedy="see --help")
    if at.get(name) is not None and str(at[name]) != value:
        raise ConfigError(
            f"{option}={at[name]}, and {variable}={value} from accelerate launch",
            rule="an option is set in one place",
            remedy=f"leave out --{option}, or what sets it in accelerate's flags and config file",
        )
    at[name] = int(value) if value.isdigit() else value
    notes.append(f"{option}={value}, from accelerate launch ({variable})")
