"""AdamW with both running means in 8 bits (arXiv 2110.02861), through the package bitsandbytes."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import torch
from torch.optim import Optimizer

from kata.errors import ConfigError
from kata.optim.config import AdamW8bitConfig

BLOCK = 256
"""Numbers that share a scale."""

SMALLEST = 4096
"""Numbers of the smallest tensor whose state has 8 bits; smaller ones keep 32."""

SIGNED, UNSIGNED = "dynamic", "udynamic"
"""The library's names of the tables of 256 values that codes of the two means stand for."""


def quiet_bitsandbytes() -> None:
    """Drop the line in which bitsandbytes asks for a faster kernel of 4 bits on some processors.

    It says so whenever it is imported, which peft does too, also where nothing is in 4 bits.
    """
    logging.getLogger("bitsandbytes.backends.cpu.ops").addFilter(_is_no_hint)


def _is_no_hint(record: logging.LogRecord) -> bool:
    return "Failed to load CPU gemm_4bit_forward" not in record.msg


def bitsandbytes() -> Any:
    """Return the package bitsandbytes; ConfigError with the command that installs it."""
    quiet_bitsandbytes()
    try:
        return importlib.import_module("bitsandbytes")
    except ImportError as error:
        raise ConfigError(
            f"numbers in 8 or 4 bits need the package bitsandbytes ({error})",
            rule="it is an extra of kata",
            remedy="uv pip install 'kata[8bit]'",
        ) from error


def adamw_8bit(groups: list[dict[str, Any]], config: AdamW8bitConfig) -> Optimizer:
    """Return AdamW over these groups, whose state takes two bytes per number and a little more.

    Tensors of less than SMALLEST numbers keep a state of 32 bits. The host waits for the device
    in each step, because the library cannot skip a step on the device.

    Raises:
        ConfigError: the package bitsandbytes is not installed.
    """
    base: Any = bitsandbytes().optim.AdamW8bit

    class AdamW8bit(base):
        """The library's optimizer, with the state dict of torch's optimizers."""

        def state_dict(self) -> dict[str, Any]:
            """Return the state without the tables, which are the same for all tensors."""
            found = Optimizer.state_dict(self)
            kept: dict[int, dict[str, Any]] = {}
            for number, named in found["state"].items():
                kept[number] = {n: v for n, v in named.items() if not n.startswith("qmap")}
            return {**found, "state": kept}

        def load_state_dict(self, state_dict: dict[str, Any]) -> None:
            """Fill the state by number of the parameter. Options of groups stay."""
            params: list[Any] = []
            for group in self.param_groups:
                params += group["params"]
            for number, named in state_dict["state"].items():
                p = params[number]
                state: dict[str, Any] = {}
                for name, value in named.items():
                    state[name] = torch.as_tensor(value).to(p.device)
                state["step"] = int(state["step"])
                if state["state1"].dtype == torch.uint8:
                    for name, table in (("qmap1", SIGNED), ("qmap2", UNSIGNED)):
                        self.name2qmap[table] = self.name2qmap[table].to(p.device)
                        state[name] = self.name2qmap[table]
                self.state[p] = state

    return AdamW8bit(
        groups,
        lr=config.lr,
        betas=config.betas,
        eps=config.eps,
        weight_decay=config.weight_decay,
        min_8bit_size=SMALLEST,
    )
