"""Facts about this machine: plain values, gathered in a few seconds without torch."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import platform
import re
import resource
import shutil
from pathlib import Path
from typing import Any

import av.codec

from kata.launch.gpus import nvidia_smi, visible_gpus
from kata.launch.local import usable_cores

PACKAGES = (
    *("kata", "torch", "torchvision", "numpy", "av", "pyarrow", "huggingface_hub", "safetensors"),
    *("accelerate", "deepspeed", "torchcodec", "wandb", "tensorboard", "trackio"),
)
NCCL = ("nvidia-nccl-cu13", "nvidia-nccl-cu12")
VIDEO = ("h264", "hevc", "av1")
ENCODERS = ("libx264", "libx265", "libsvtav1")
TOLD = ("CUDA_VISIBLE_DEVICES", "OMP_NUM_THREADS", "HF_ENDPOINT", "HF_HUB_OFFLINE", "KATA_CACHE")
GPU_FIELDS = ("index", "name", "memory.total", "memory.used", "driver_version", "compute_cap")


def machine_facts() -> dict[str, Any]:
    """Return everything except speeds. Sizes are in bytes; null means absent or unknown."""
    return {
        "system": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "versions": {name: version(name) for name in PACKAGES},
        "cuda_of_torch": cuda_of_torch(),
        "nccl": next((found for name in NCCL if (found := version(name)) is not None), None),
        "gpus": gpus(),
        "device_files": sum(
            1 for p in Path("/dev").glob("nvidia*") if re.fullmatch(r"nvidia\d+", p.name)
        ),
        "visible_gpus": visible_gpus(),
        "links": links(nvidia_smi("topo", "-m")),
        "cores": usable_cores(),
        "cores_of_cgroup": cores_of_cgroup(),
        "memory": memory(),
        "shared_memory_bytes": shutil.disk_usage("/dev/shm").free
        if Path("/dev/shm").is_dir()
        else None,
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE)[0],
        "decoders": {name: decoders(name) for name in VIDEO},
        "encoders": [name for name in ENCODERS if _codec(name, "w") is not None],
        "environment": {
            name: value for name, value in sorted(os.environ.items()) if _is_told(name)
        },
        "slurm": shutil.which("sbatch") is not None,
    }


def _is_told(name: str) -> bool:
    return name in TOLD or name.startswith(("NCCL_", "TORCH_NCCL_", "GLOO_"))


def version(name: str) -> str | None:
    """Of an installed package."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def cuda_of_torch() -> str | None:
    """The CUDA version that torch was built for; None for a CPU build, or without torch."""
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    stated = Path(spec.origin).with_name("version.py")
    found = re.search(r"^cuda\b.*= '([\d.]+)'", stated.read_text(encoding="utf-8"), re.MULTILINE)
    return found[1] if found else None


def gpus() -> list[dict[str, Any]]:
    """As nvidia-smi sees them; memory in bytes."""
    listed = (
        nvidia_smi(f"--query-gpu={','.join(GPU_FIELDS)}", "--format=csv,noheader,nounits") or ""
    )
    found: list[dict[str, Any]] = []
    for line in listed.strip().splitlines():
        index, name, total, used, driver, capability = (cell.strip() for cell in line.split(","))
        named = {"index": index, "name": name, "driver_version": driver, "compute_cap": capability}
        found.append({**named, "memory_bytes": _mebibytes(total), "used_bytes": _mebibytes(used)})
    return found


def _mebibytes(text: str) -> int | None:
    return int(text) << 20 if text.isdigit() else None


def links(topology: str | None) -> dict[str, str]:
    """'0-1' -> 'NV18': how each pair of GPUs is joined, from `nvidia-smi topo -m`."""
    rows = [
        re.split(r"\s+", line.strip())
        for line in (topology or "").splitlines()
        if re.match(r"^GPU\d+\s", line)
    ]
    pairs: dict[str, str] = {}
    for number, row in enumerate(rows):
        for other in range(number + 1, len(rows)):
            pairs[f"{number}-{other}"] = row[other + 1]
    return pairs


def cores_of_cgroup() -> float | None:
    """Return the number of cores that the container may use; None without a limit."""
    limit = Path("/sys/fs/cgroup/cpu.max")
    if not limit.is_file():
        return None
    quota, _, period = limit.read_text().strip().partition(" ")
    return None if quota == "max" else int(quota) / int(period)


def memory() -> dict[str, int | None]:
    """Of the host: all, and what a new process may take."""
    source = Path("/proc/meminfo")
    lines = source.read_text().splitlines() if source.is_file() else []
    sizes = {line.partition(":")[0]: int(line.split()[1]) << 10 for line in lines}
    return {"total_bytes": sizes.get("MemTotal"), "available_bytes": sizes.get("MemAvailable")}


def decoders(name: str) -> list[str]:
    """PyAV's decoders of a video format."""
    known = {"av1": ("libdav1d", "libaom-av1"), "h264": ("h264",), "hevc": ("hevc",)}[name]
    return [each for each in known if _codec(each, "r") is not None]


def _codec(name: str, mode: str) -> av.codec.Codec | None:
    try:
        return av.codec.Codec(name, "w" if mode == "w" else "r")
    except ValueError:  # PyAV's UnknownCodecError is one
        return None
