"""What a device can compute in, and the global switches that go with it."""

from __future__ import annotations

import torch

from kata.errors import ConfigError


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
