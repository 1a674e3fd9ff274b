"""Options of adapters, with LeRobot's names. Torch-free."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from kata.config import Options, option
from kata.errors import PolicyError

ADAPTER_CONFIG, ADAPTER = "adapter_config.json", "adapter_model.safetensors"
"""The files of an adapter, as the package peft names them."""

_PLAIN: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "use_dora": (False, None),
    "use_rslora": (False, None),
    "bias": ("none", None),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "layers_to_transform": (None,),
    "exclude_modules": (None,),
    "fan_in_fan_out": (False, None),
    "target_parameters": (None, []),
    "lora_dropout": (0, None),
}
"""Entries of an adapter's config that change what it computes, and their values in kata."""


@dataclass(frozen=True, kw_only=True)
class PeftConfig(Options):
    """Low-rank adapters (LoRA, arXiv 2106.09685) on a frozen base."""

    at: ClassVar[str] = "peft."

    target_modules: list[str] | str | None = option(
        None,
        "Linear maps that get an adapter: endings of LeRobot's names, one regular expression for "
        "whole names, or all-linear; null takes the policy's own choice.",
    )
    full_training_modules: list[str] | None = option(
        None, "Modules that are trained in full beside the adapters, by endings of their names."
    )
    method_type: str = option(
        "LORA", "Kind of adapter; kata trains LoRA.", choices=("LORA", "lora")
    )
    init_type: str | None = option(
        None,
        "Initialization: null for peft's own, or gaussian. The adapter adds nothing at first.",
        choices=("gaussian", None),
    )
    r: int = option(16, "Rank of the adapters.", least=1)
    lora_alpha: int | None = option(
        None,
        "Adapters are scaled by lora_alpha / r; null takes r, a scale of 1 (LeRobot's null takes "
        "8).",
        least=1,
    )

    @property
    def alpha(self) -> int:
        """Return the alpha that is used: `lora_alpha`, or else the rank."""
        return self.r if self.lora_alpha is None else self.lora_alpha


def is_adapter(folder: Path) -> bool:
    """Return True if a folder holds an adapter instead of whole weights."""
    return (folder / ADAPTER_CONFIG).is_file()


def read_adapter_config(folder: Path) -> dict[str, Any]:
    """Return an adapter's config.

    Raises:
        PolicyError: it cannot be read, or asks for something other than plain LoRA.
    """
    file = folder / ADAPTER_CONFIG
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        wrong = [name for name, values in _PLAIN.items() if found.get(name) not in values]
    except (OSError, ValueError, AttributeError) as error:
        raise PolicyError(
            f"{file}: cannot be read ({error})",
            rule="a JSON object that the package peft has written",
            remedy="copy it again",
        ) from error
    lacking = [name for name in ("r", "target_modules", "lora_alpha") if name not in found]
    if lacking:
        raise PolicyError(
            f"{file}: has no {', '.join(lacking)}",
            rule="an adapter's rank, targets and alpha are written there",
            remedy="copy it again",
        )
    wrong = [name for name in wrong if name in found]
    if wrong:
        raise PolicyError(
            f"{file}: {wrong[0]}={found[wrong[0]]}",
            rule="kata reads adapters of plain LoRA",
            remedy="merge this adapter into its base with peft, and give the result",
        )
    return found


def adapter_options(folder: Path) -> PeftConfig:
    """Return the options with which an adapter was trained."""
    found = read_adapter_config(folder)
    return PeftConfig(
        target_modules=found["target_modules"],
        full_training_modules=found.get("modules_to_save"),
        r=found["r"],
        lora_alpha=found["lora_alpha"],
    )
