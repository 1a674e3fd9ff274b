"""What a process uses, as the kernel tells it (Linux): CPU seconds, memory, bytes read, and what
others use.
"""

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
    """Raises: ConfigError elsewhere, where memory and other load cannot be told in the same way."""
    if sys.platform != "linux":
        raise ConfigError(
            f"this system is {sys.platform}",
            rule="benchmarks are measured on Linux",
            remedy="run it on Linux",
        )


def cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0))


def busy_s() -> float:
    """CPU seconds that all processes of the machine have used since it started."""
    user, nice, system, _, _, irq, softirq = (
        int(word) for word in Path("/proc/stat").read_text().split()[1:8]
    )
    return (user + nice + system + irq + softirq) * _TICK_S


def cpu_s(process: int) -> float:
    """CPU seconds that a process of this machine has used."""
    words = (
        Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    )  # the name may hold spaces
    return (int(words[11]) + int(words[12])) * _TICK_S


def resident_bytes() -> int:
    """Memory of this process now."""
    return _status("VmRSS")


def peak_resident_bytes() -> int:
    """The most memory this process has had."""
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
    """Processor, cores, memory and system."""
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
    """Versions of what reads and decodes."""
    names = ("kata", "numpy", "pyarrow", "av", "pillow")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}
