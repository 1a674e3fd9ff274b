"""GPUs that this process may use, found without torch."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

ASK_S = 20.0
"""Time limit of nvidia-smi, whose first call after a boot loads the driver."""


def visible_gpus() -> list[str]:
    """The entries of CUDA_VISIBLE_DEVICES where that is set, else the numbers of the GPUs that the
    machine has.

    As CUDA does, the list ends before the first entry that is no device (-1, or nothing).
    """
    stated = os.environ.get("CUDA_VISIBLE_DEVICES")
    if stated is None:
        return [str(number) for number in range(_installed())]
    entries: list[str] = []
    for entry in stated.split(","):
        if not entry.strip() or entry.strip().startswith("-"):
            break
        entries.append(entry.strip())
    return entries


def _installed() -> int:
    listed = nvidia_smi("-L")
    if listed is not None:
        return len(re.findall(r"^GPU \d+:", listed, re.MULTILINE))
    return sum(
        1 for device in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", device.name)
    )


def nvidia_smi(*args: str) -> str | None:
    """Return the output of nvidia-smi; None if it is absent, fails or does not answer."""
    if shutil.which("nvidia-smi") is None:
        return None
    try:
        done = subprocess.run(
            ["nvidia-smi", *args], capture_output=True, text=True, timeout=ASK_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    return done.stdout if done.returncode == 0 else None
