"""CPU seconds and memory of a process, and the load of the machine, from the kernel (Linux)."""

from __future__ import annotations

import os
import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

from kata.errors import ConfigError

_TICK_S = 1 / os.sysconf("SC_CLK_TCK") if sys.platform == "linux" else 0.01


def require_linux() -> None:
    """Raise ConfigError on another system, which has no /proc for memory and load."""
    if sys.platform != "linux":
        raise ConfigError(
            f"this system is {sys.platform}",
            rule="benchmarks are measured on Linux",
            remedy="run it on Linux",
        )


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def busy_s() -> float:
    """Return the CPU seconds of all processes of the machine since it started."""
    user, nice, system, _, _, irq, softirq = (
        int(word) for word in Path("/proc/stat").read_text().split()[1:8]
    )
    return (user + nice + system + irq + softirq) * _TICK_S


def cpu_s(process: int) -> float:
    """Return the CPU seconds that a process of this machine has used."""
    words = (
        Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    )  # the name may hold spaces
    return (int(words[11]) + int(words[12])) * _TICK_S


def resident_bytes() -> int:
    """Return the resident bytes of this process."""
    return _status("VmRSS")


def peak_resident_bytes() -> int:
    """Return the peak of this process's resident bytes."""
    return _status("VmHWM")


def _status(name: str) -> int:
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) * 1024
    raise ConfigError(
        f"/proc/self/status has no {name}",
        rule="a Linux kernel's figures",
        remedy="run it on Linux",
    )


def machine() -> dict[str, Any]:
    """Return processor, cores, memory and system."""
    models = [
        line
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return {
        "processor": models[0].partition(":")[2].strip() if models else platform.machine(),
        "cores": cores(),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "system": platform.platform(),
    }


def versions() -> dict[str, str]:
    """Return the versions of the packages that read and decode."""
    names = ("kata", "numpy", "pyarrow", "av", "pillow")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}
