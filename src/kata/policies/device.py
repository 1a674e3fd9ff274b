"""The device that computes, and torch's global switches."""

from __future__ import annotations

import torch

from kata.errors import PolicyError, did_you_mean

KINDS = ("cuda", "mps", "cpu")


def choose_device(asked: str | None) -> torch.device:
    """Return the device of that name; for None the best one present: cuda, then mps, then cpu.

    Raises:
        PolicyError: the device is unknown or absent. There is no fallback.
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


def set_switches(*, tf32: bool, deterministic: bool) -> None:
    """Allow TF32 in products if asked; let cuDNN search its fastest kernels unless
    `deterministic`.
    """
    torch.backends.cuda.matmul.allow_tf32 = tf32
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cudnn.benchmark = not deterministic
    torch.backends.cudnn.deterministic = deterministic


def _has(kind: str) -> bool:
    if kind == "cuda":
        return torch.cuda.is_available()
    return kind == "cpu" or torch.backends.mps.is_available()
