"""The device of a run, as far as it is known without torch."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

from kata.errors import ConfigError
from kata.run.config import Run

_DRIVERS = {
    "linux": ("libcuda.so.1", "libcuda.so"),
    "win32": ("nvcuda.dll",),
}
"""NVIDIA's driver library by platform."""

_ROCM = Path("/dev/kfd")
"""AMD's driver; torch calls its GPUs cuda too."""


def check_device(run: Run) -> None:
    """Refuse `policy.device` if this machine has no driver for it.

    torch is asked later which GPUs there are. Importing it takes seconds, and a machine without
    a driver has none.

    Raises: ConfigError for the device.
    """
    device = run.policy.device
    if device is None or _has_driver(device.partition(":")[0]):
        return
    raise ConfigError(
        f"policy.device={device}: not on this machine",
        rule="an NVIDIA or AMD driver for cuda, macOS for mps",
        remedy="leave out --policy.device to use the best device that is here",
    )


def _has_driver(kind: str) -> bool:
    if kind == "mps":
        return sys.platform == "darwin"
    return kind != "cuda" or _ROCM.exists() or _can_load_cuda()


def _can_load_cuda() -> bool:
    for name in _DRIVERS.get(sys.platform, ()):
        try:
            ctypes.CDLL(name)
        except OSError:
            continue
        return True
    return False
