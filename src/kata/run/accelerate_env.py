"""The settings of `accelerate launch`, its flags and its config files as kata's options. Torch-
free.

They reach a process as environment variables. Each is taken over with a note, or refused by name;
none is ignored.
"""

from __future__ import annotations

import base64
import binascii
import copy
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kata.config import plain
from kata.errors import ConfigError

_STATED = {
    "gradient_accumulation_steps": "accelerator.gradient_accumulation.steps",
    "gradient_clipping": "optimizer.grad_clip_norm",
    "train_micro_batch_size_per_gpu": "batch_size",
    "train_batch_size": "global_batch_size",
}


_OWN = {
    "optimizer": "--optimizer.type and its options",
    "scheduler": "--scheduler.type and its options",
}


_NO_EFFECT = (
    "steps_per_print",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "wall_clock_breakdown",
)
"""Settings that only concern DeepSpeed's messages and refusals."""


def read_deepspeed_file(text: str) -> tuple[dict[str, Any], dict[str, Any], list[str]]:
    """Read the settings of a DeepSpeed config file.

    Args:
        text: its path, or the file itself in base64, as Accelerate allows.

    Returns: kata's options by dotted name; further settings of `zero_optimization`; names of
    settings without effect.

    Raises: ConfigError for a file that cannot be read, and for settings that kata does not support.
    """
    raw = {name: value for name, value in _read(text).items() if value != "auto"}
    found = {option: raw.pop(name) for name, option in _STATED.items() if name in raw}
    zero: dict[str, Any] = {
        name: value for name, value in raw.pop("zero_optimization", {}).items() if value != "auto"
    }
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
    unused = [name for name in raw if name in _NO_EFFECT] + [
        name for name in zero if name.startswith("stage3_gather")
    ]
    _refuse_the_rest({name: value for name, value in raw.items() if name not in unused})
    return (
        found,
        {name: value for name, value in zero.items() if name not in unused},
        sorted(unused),
    )


def _refuse_the_rest(raw: dict[str, Any]) -> None:
    for name, where in _OWN.items():
        if name in raw:
            raise ConfigError(
                f"{name} in DeepSpeed's config",
                rule="kata makes it from its own options",
                remedy=f"use {where}",
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
        content = (
            path.read_text(encoding="utf-8")
            if path.is_file()
            else base64.urlsafe_b64decode(text).decode()
        )
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


PRECISION, ACCUMULATION = "ACCELERATE_MIXED_PRECISION", "ACCELERATE_GRADIENT_ACCUMULATION_STEPS"


FSDP = "ACCELERATE_USE_FSDP"
ZERO = "ACCELERATE_USE_DEEPSPEED"
MESH = "ACCELERATE_USE_PARALLELISM_CONFIG"


PREFIXES = ("ACCELERATE_", "FSDP_", "PARALLELISM_CONFIG_", "MEGATRON_LM_")


OFF = ("", "no", "none", "false", "0")


_PLAIN = {ACCUMULATION: "accelerator.gradient_accumulation.steps"}


_OF_ZERO = {
    "ACCELERATE_GRADIENT_CLIPPING": "optimizer.grad_clip_norm",
    "ACCELERATE_DEEPSPEED_ZERO_STAGE": "deepspeed.zero_stage",
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "deepspeed.offload_optimizer_device",
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "deepspeed.offload_param_device",
}


_OF_FSDP = {
    "FSDP_RESHARD_AFTER_FORWARD": "fsdp.reshard_after_forward",
    "FSDP_ACTIVATION_CHECKPOINTING": "gradient_checkpointing",
}


_OF_MESH = {
    "PARALLELISM_CONFIG_DP_SHARD_SIZE": "parallelism.dp_shard",
    "PARALLELISM_CONFIG_DP_REPLICATE_SIZE": "parallelism.dp_replicate",
}


_REFUSED = {
    "ACCELERATE_USE_MEGATRON_LM": (
        (),
        "kata has no Megatron-LM",
        "--multi_gpu, --use_fsdp or --use_deepspeed",
    ),
    "ACCELERATE_USE_SAGEMAKER": (
        (),
        "kata does not run on SageMaker's own parallelism",
        "launch on the machines",
    ),
    "ACCELERATE_DYNAMO_BACKEND": (
        ("inductor",),
        "torch.compile with its own backend",
        "--dynamo_backend=inductor",
    ),
    "ACCELERATE_TORCH_DEVICE": (
        (),
        "each rank has the card of its number",
        "choose cards by CUDA_VISIBLE_DEVICES",
    ),
    "ACCELERATE_BYPASS_DEVICE_MAP": ((), "a policy lies on one device of a rank", "unset it"),
    "FSDP_VERSION": (
        ("2",),
        "kata shards with FSDP2",
        "--fsdp_version=2, or `accelerate to-fsdp2` for a config file",
    ),
    "FSDP_SHARDING_STRATEGY": (
        ("full_shard", "1"),
        "FSDP2 shards everything",
        "--fsdp_reshard_after_forward=false for SHARD_GRAD_OP, a parallelism_config for "
        "HYBRID_SHARD",
    ),
    "FSDP_OFFLOAD_PARAMS": (
        (),
        "sharded weights stay on the cards",
        "DeepSpeed with offload_param_device: cpu",
    ),
    "FSDP_FORWARD_PREFETCH": ((), "FSDP2 has no such setting", "leave out --fsdp_forward_prefetch"),
    "FSDP_IGNORED_MODULES": (
        (),
        "all of the policy is sharded",
        "leave out --fsdp_ignored_modules",
    ),
    "FSDP_ACTIVATION_CHECKPOINTING_OFFLOAD": ((), "what is recomputed is not kept", "leave it out"),
    "PARALLELISM_CONFIG_TP_SIZE": (
        ("1",),
        "kata shares out data and weights",
        "parallelism_config_tp_size: 1",
    ),
    "PARALLELISM_CONFIG_CP_SIZE": (
        ("1",),
        "kata shares out data and weights",
        "parallelism_config_cp_size: 1",
    ),
    "PARALLELISM_CONFIG_SP_SIZE": (
        ("1",),
        "kata shares out data and weights",
        "parallelism_config_sp_size: 1",
    ),
    "ACCELERATE_DEEPSPEED_MOE_LAYER_CLS_NAMES": (
        (),
        "kata's policies have no such layers",
        "leave it out",
    ),
    "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_NVME_PATH": (
        (),
        "the optimizer state goes to host memory at most",
        "cpu",
    ),
    "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_NVME_PATH": (
        (),
        "weights go to host memory at most",
        "cpu",
    ),
}
"""Variable -> (values without effect beside OFF, why others are refused, remedy)."""


_HANDLED = {
    *(PRECISION, FSDP, ZERO, MESH, "ACCELERATE_USE_CPU", "ACCELERATE_DEEPSPEED_CONFIG_FILE"),
    *("FSDP_AUTO_WRAP_POLICY", "FSDP_TRANSFORMER_CLS_TO_WRAP", "FSDP_MIN_NUM_PARAMS"),
    *_PLAIN, *_OF_ZERO, *_OF_FSDP, *_OF_MESH,
}  # fmt: skip


_QUIET = {
    "FSDP_BACKWARD_PREFETCH": (),
    "FSDP_USE_ORIG_PARAMS": ("true",),
    "FSDP_SYNC_MODULE_STATES": ("true",),
    "FSDP_CPU_RAM_EFFICIENT_LOADING": ("true",),
    "ACCELERATE_CONFIG_DS_FIELDS": ...,
    "ACCELERATE_CPU_AFFINITY": (),
    "ACCELERATE_DEEPSPEED_ZERO3_INIT": (),
    "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": (),
    "ACCELERATE_DYNAMO_MODE": ("default",),
    "ACCELERATE_DYNAMO_USE_FULLGRAPH": (),
    "ACCELERATE_DYNAMO_USE_DYNAMIC": (),
    "ACCELERATE_DYNAMO_USE_REGIONAL_COMPILATION": ("true",),
    "ACCELERATE_LOG_LEVEL": ...,
    "ACCELERATE_DISABLE_RICH": ...,
    "PARALLELISM_CONFIG_CP_BACKEND": ...,
    "PARALLELISM_CONFIG_SP_BACKEND": ...,
}
"""Values of the launcher without effect here (`...`: all of them); they are not mentioned."""


def take_over(
    given: Mapping[str, Any], environment: Mapping[str, str], notes: list[str]
) -> dict[str, Any]:
    """Return the options with those of Accelerate's environment, and the launcher's engine.

    Raises: ConfigError for settings that kata does not support or that contradict a flag or file of
    kata.
    """
    taken: dict[str, Any] = copy.deepcopy(dict(given))
    settings = {name: value for name, value in environment.items() if name.startswith(PREFIXES)}
    sharded, zero = _on(settings, FSDP), _on(settings, ZERO)
    launched = PRECISION in settings or sharded or zero
    if taken.get("engine", "auto") == "auto":
        taken["engine"] = "accelerate" if launched else "native"
    if not launched:
        return taken
    _refuse(settings)
    _take_the_plain(taken, settings, notes)
    options = dict(_PLAIN)
    if sharded:
        options |= _OF_FSDP | (_OF_MESH if _on(settings, MESH) else {})
        _take_wrapping(taken, settings, notes)
        if not _on(settings, MESH):
            _take(taken, "parallelism.dp_shard", -1, FSDP, notes)
    if zero:
        options |= _OF_ZERO
        _take_deepspeed(taken, settings, notes)
    for name, option in options.items():
        if name in settings and not _is_default(option, settings[name]):
            _take(taken, option, _value(settings[name]), name, notes)
    _name_the_rest(settings, notes)
    return taken


def _refuse(settings: Mapping[str, str]) -> None:
    for name, (harmless, rule, remedy) in _REFUSED.items():
        value = settings.get(name, "")
        if value.lower() not in (*OFF, *harmless):
            raise ConfigError(f"{name}={value}, from accelerate launch", rule=rule, remedy=remedy)


def _take_the_plain(taken: dict[str, Any], settings: Mapping[str, str], notes: list[str]) -> None:
    if PRECISION in settings:
        _take_precision(taken, settings[PRECISION], notes)
    if settings.get("ACCELERATE_DYNAMO_BACKEND", "").lower() == "inductor":
        _take(taken, "compile", True, "ACCELERATE_DYNAMO_BACKEND", notes)
    if _on(settings, "ACCELERATE_USE_CPU"):
        _take(taken, "policy.device", "cpu", "ACCELERATE_USE_CPU", notes)


def _take_precision(taken: dict[str, Any], precision: str, notes: list[str]) -> None:
    """Take the precision over. Accelerate says 'no' by default, so kata's flag may then ask for
    more.

    `policy.use_amp` counts only where Accelerate does not set the precision, as in LeRobot.
    """
    policy = taken.setdefault("policy", {})
    if isinstance(policy, dict):
        if plain(policy.get("use_amp")):
            notes.append(
                f"policy.use_amp does not count: accelerate launch sets the precision ({precision})"
            )
        policy["use_amp"] = False
    if precision != "no":
        _take(taken, "accelerator.mixed_precision", precision, PRECISION, notes)


def _take_wrapping(taken: dict[str, Any], settings: Mapping[str, str], notes: list[str]) -> None:
    """Take over which modules are gathered one by one; the default is the policy's own units."""
    policy = settings.get("FSDP_AUTO_WRAP_POLICY", "").upper()
    if policy == "NO_WRAP":
        _take(taken, "fsdp.wrap", "none", "FSDP_AUTO_WRAP_POLICY", notes)
    elif policy == "SIZE_BASED_WRAP":
        _take(taken, "fsdp.wrap", "size", "FSDP_AUTO_WRAP_POLICY", notes)
        _take(
            taken,
            "fsdp.min_num_params",
            _value(settings["FSDP_MIN_NUM_PARAMS"]),
            "FSDP_MIN_NUM_PARAMS",
            notes,
        )
    elif policy == "TRANSFORMER_BASED_WRAP" and "FSDP_TRANSFORMER_CLS_TO_WRAP" in settings:
        name = "FSDP_TRANSFORMER_CLS_TO_WRAP"
        _take(taken, "fsdp.wrap", settings[name], name, notes)


def _take_deepspeed(taken: dict[str, Any], settings: Mapping[str, str], notes: list[str]) -> None:
    if taken["engine"] != "accelerate":
        raise ConfigError(
            f"engine={taken['engine']}, and {ZERO}={settings[ZERO]} from accelerate launch",
            rule="DeepSpeed is an engine of Accelerate's",
            remedy="leave out --engine, or launch with --multi_gpu or --use_fsdp",
        )
    file = settings.get("ACCELERATE_DEEPSPEED_CONFIG_FILE", "none")
    if file != "none":
        stated, tuned, unused = read_deepspeed_file(file)
        for option, value in stated.items():
            _take(taken, option, value, "deepspeed_config_file", notes)
        if tuned:
            _take(taken, "deepspeed.zero_optimization", tuned, "deepspeed_config_file", notes)
        if unused:
            notes.append(f"without effect in deepspeed_config_file: {', '.join(unused)}")
    elif "ACCELERATE_DEEPSPEED_ZERO_STAGE" not in settings:
        _take(taken, "deepspeed.zero_stage", 2, ZERO, notes)  # Accelerate's own default


def _name_the_rest(settings: Mapping[str, str], notes: list[str]) -> None:
    known = {*_HANDLED, *_REFUSED}
    rest = [
        f"{name}={value}"
        for name, value in sorted(settings.items())
        if name not in known
        and (values := _QUIET.get(name, ())) is not ...
        and value.lower() not in (*OFF, *values)
    ]
    if rest:
        notes.append(f"without effect here, from accelerate launch: {', '.join(rest)}")


def _on(settings: Mapping[str, str], name: str) -> bool:
    return settings.get(name, "").lower() in ("true", "1", "yes")


def _is_default(option: str, text: str) -> bool:
    """Return True for the launcher's own default, which needs no note."""
    defaults = {"fsdp.reshard_after_forward": "true", "gradient_checkpointing": "false"}
    return text.lower() == defaults.get(option, "none" if option.endswith("_device") else "auto")


def _value(text: str) -> Any:
    try:
        return json.loads(text.lower())
    except json.JSONDecodeError:
        return text


def _take(taken: dict[str, Any], option: str, value: Any, variable: str, notes: list[str]) -> None:
    *groups, name = option.split(".")
    at: Any = taken
    for group in groups:
        at = at.setdefault(group, {})
        if not isinstance(at, dict):
            raise ConfigError(
                f"{group}={at}: not a group of options",
                rule=f"{group} has options",
                remedy="see --help",
            )
    # What the flags say may still be text.
    if at.get(name) is not None and at[name] != value and _value(str(at[name])) != value:
        raise ConfigError(
            f"{option}={at[name]}, and {variable}={value} from accelerate launch",
            rule="an option is set in one place",
            remedy=f"leave out --{option}, or what sets it in accelerate's flags and config file",
        )
    at[name] = value
    notes.append(f"taken from accelerate launch: {option}={value} ({variable})")
