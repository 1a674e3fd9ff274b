"""Which device a run uses, and the global switches that go with it."""

from __future__ import annotations

import torch

from kata.errors import ConfigError, PolicyError, did_you_mean

KINDS = ("cuda", "mps", "cpu")


def choose_device(asked: str | None) -> torch.device:
    """The device asked for, or the best one here: cuda, then mps, then cpu.

    Raises PolicyError when the one asked for is not on this machine: nothing falls back silently.
    """
    present = [kind for kind in KINDS if _has(kind)]
    if asked is None:
        return torch.device(present[0])
    kind, _, number = asked.partition(":")
    if kind not in KINDS or (number and not number.isdigit()):
        raise PolicyError(
            f"policy.device={asked}: unknown",
            rule=f"one of: {', '.join(KINDS)}",
            remedy=did_you_mean(kind, KINDS),
        )
    count = torch.cuda.device_count() if kind == "cuda" else 1
    if kind not in present or int(number or 0) >= count:
        raise PolicyError(
            f"policy.device={asked}: not on this machine",
            rule=f"devices here: {', '.join(present)}",
            remedy="leave out --policy.device to use the best one",
        )
    return torch.device(asked)


def _has(kind: str) -> bool:
    if kind == "cuda":
        return torch.cuda.is_available()
    return kind == "cpu" or torch.backends.mps.is_available()


def check_precision(precision: str, device: torch.device) -> None:
    """ConfigError when the device cannot compute in this precision."""
    if precision == "fp16" and device.type != "cuda":
        raise ConfigError(
            f"accelerator.mixed_precision=fp16 on {device.type}",
            rule="fp16 needs a CUDA device",
            remedy="use bf16, or no",
        )
    if precision == "bf16" and device.type == "cuda" and not torch.cuda.is_bf16_supported():
        raise ConfigError(
            f"accelerator.mixed_precision=bf16 on {torch.cuda.get_device_name(device)}",
            rule="bf16 needs compute capability 8.0",
            remedy="use fp16, or no",
        )


def set_switches(*, tf32: bool, deterministic: bool) -> None:
    """Tensor cores for fp32 products where allowed; cuDNN picks its fastest kernels unless asked for determinism."""
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = not deterministic
    torch.backends.cudnn.deterministic = deterministic
