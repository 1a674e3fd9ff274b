"""LoRA adapters (arXiv 2106.09685) in a policy, through the package peft (extra `peft`)."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterable
from typing import Any

from torch import nn

from kata.errors import ConfigError, PolicyError
from kata.optim.eight_bit import quiet_bitsandbytes
from kata.policies.base import Policy
from kata.run.peft import PeftConfig

EVERY = "all-linear"
_NAME = "default"
"""The name under which peft keeps the only adapter of a policy."""


def peft_library() -> Any:
    """Return the package peft; ConfigError with the command that installs it."""
    quiet_bitsandbytes()
    try:
        return importlib.import_module("peft")
    except ImportError as error:
        raise ConfigError(
            f"adapters need the package peft ({error})",
            rule="it is an extra of kata",
            remedy="uv pip install 'kata[peft]'",
        ) from error


def adapt(policy: Policy, options: PeftConfig) -> None:
    """Freeze a policy, and put adapters beside its targets, which add nothing at first.

    Args:
        policy: is changed in place; only adapters and `full_training_modules` are trained then.
        options: targets, rank and alpha.

    Raises:
        PolicyError: a target is no linear map, lies in a frozen part, or does not exist.
        ConfigError: the package peft is not installed.
    """
    library = peft_library()
    _refuse_moving_weights(policy)
    full = full_names(policy, options)
    targets = [name for name in target_names(policy, options) if name not in full]
    _refuse_frozen(policy, [*targets, *full])
    policy.requires_grad_(False)
    config = library.LoraConfig(
        r=options.r,
        lora_alpha=options.alpha,
        target_modules="|".join(re.escape(name) for name in targets),
        init_lora_weights=options.init_type or True,
    )
    library.inject_adapter_in_model(config, policy, _NAME)
    for name, parameter in policy.named_parameters():
        is_adapter = ".lora_" in name
        parameter.requires_grad_(is_adapter)
        if is_adapter:
            parameter.data = parameter.data.float()
    for name in full:
        policy.get_submodule(name).requires_grad_(True)


def target_names(policy: Policy, options: PeftConfig) -> list[str]:
    """Return the policy's own names of the linear maps that get an adapter.

    Raises:
        PolicyError: nothing fits, or something fits that is no linear map.
    """
    wanted = options.target_modules or policy.config.lora_targets
    stored = lerobot_names(policy)
    linear = [name for name in stored if _is_linear(policy, name)]
    if wanted == EVERY:
        frozen = _frozen_modules(policy)
        return [name for name in linear if policy.get_submodule(name) not in frozen]
    found = [name for name in stored if _fits(stored[name], wanted)]
    other = [name for name in found if name not in linear]
    if found and not other:
        return found
    what = f"is no linear map: {stored[other[0]]}" if other else "fits no module"
    names = sorted({stored[name].rpartition(".")[2] for name in linear})
    raise PolicyError(
        f"peft.target_modules={wanted}: {what}",
        rule=f"linear maps of {policy.config.type}, whose names end in: {', '.join(names)}",
        remedy="leave it out for the policy's own choice, or name some of these, such as "
        f"--peft.target_modules=[{names[0] if names else ''}]",
    )


def full_names(policy: Policy, options: PeftConfig) -> list[str]:
    """Return the policy's own names of the modules that are trained in full."""
    stored = lerobot_names(policy)
    found: list[str] = []
    for ending in options.full_training_modules or []:
        mine = [name for name in stored if _fits(stored[name], [ending])]
        if not mine:
            raise PolicyError(
                f"peft.full_training_modules={ending}: fits no module",
                rule="names, or their endings, of modules with weights",
                remedy=f"for example {', '.join(list(stored.values())[-3:])}",
            )
        found += mine
    return list(dict.fromkeys(found))


def lerobot_names(policy: Policy) -> dict[str, str]:
    """Return LeRobot's names of the modules that hold weights themselves, by the policy's own."""
    found: dict[str, str] = {}
    for name, module in policy.named_modules():
        if name and list(module.parameters(recurse=False)):
            found[name] = lerobot_name(policy, name)
    return found


def lerobot_name(policy: Policy, name: str) -> str:
    """Return LeRobot's name of a module of the policy."""
    return policy.key_map().to_lerobot(f"{name}.weight").removesuffix(".weight")


def adapted(policy: Policy) -> list[str]:
    """Return the policy's own names of the linear maps that have an adapter."""
    return [name for name, _ in _lora_layers(policy)]


def stored_name(policy: Policy, name: str) -> str:
    """Return the name in peft's files of a tensor of an adapter or of a module trained in full."""
    other = policy.key_map().to_lerobot(name).replace(f".{_NAME}.weight", ".weight")
    return f"base_model.model.{other}"


def merge_adapters(policy: Policy) -> None:
    """Add the adapters to the weights beside them, and remove them."""
    for name, layer in _lora_layers(policy):
        layer.merge()
        parent, _, last = name.rpartition(".")
        setattr(policy.get_submodule(parent), last, layer.base_layer)


def _lora_layers(policy: Policy) -> list[tuple[str, Any]]:
    if "peft" not in sys.modules:
        return []
    kind = importlib.import_module("peft.tuners.lora").LoraLayer
    return [(name, module) for name, module in policy.named_modules() if isinstance(module, kind)]


def _is_linear(policy: Policy, name: str) -> bool:
    """Return True for a linear map that its module calls.

    The output map of a packed attention is left out: LeRobot's attention reads its weights without
    calling it, so an adapter beside it would do nothing there.
    """
    parent = policy.get_submodule(name.rpartition(".")[0])
    is_packed = "in_proj_weight" in dict(parent.named_parameters(recurse=False))
    return isinstance(policy.get_submodule(name), nn.Linear) and not is_packed


def _fits(name: str, wanted: list[str] | str) -> bool:
    """Return True if a name of LeRobot's is wanted, by the rules of peft."""
    if isinstance(wanted, str):
        return re.fullmatch(wanted, name) is not None
    return any(name == ending or name.endswith(f".{ending}") for ending in wanted)


def _frozen_modules(policy: Policy) -> set[nn.Module]:
    found: set[nn.Module] = set()
    for module in policy.frozen_modules():
        found.update(module.modules())
    return found


def _refuse_frozen(policy: Policy, names: Iterable[str]) -> None:
    """Refuse adapters in a part that is computed without gradients."""
    frozen = _frozen_modules(policy)
    stored = lerobot_names(policy)
    inside = [stored[name] for name in names if policy.get_submodule(name) in frozen]
    if inside:
        raise PolicyError(
            f"{len(inside)} targets lie in a part that the policy keeps frozen: "
            + ", ".join(inside[:5])
            + (", ..." if len(inside) > 5 else ""),
            rule="an adapter is trained through the part that it is in",
            remedy="--policy.train_expert_only=false and --policy.freeze_vision_encoder=false let "
            "gradients through; or other --peft.target_modules",
        )


def _refuse_moving_weights(policy: Policy) -> None:
    """Refuse a policy that changes weights or buffers other than by gradients."""
    moves = policy.moves_weights()
    if moves or any(isinstance(module, nn.BatchNorm2d) for module in policy.modules()):
        raise PolicyError(
            f"peft with policy {policy.config.type}",
            rule="beside an adapter the base stays as it is, and training this policy changes "
            + ("networks without gradients" if moves else "the statistics of its batch norms"),
            remedy="leave out --peft.*"
            if moves
            else "leave out --peft.*, or --policy.use_group_norm=true with a base that has it",
        )
