"""Problems of a machine, each with its remedy. Pure functions of the facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

from kata.units import bytes_text

Facts = Mapping[str, Any]
GIB = 1 << 30

DRIVER_OF_CUDA = {11: 450, 12: 525, 13: 580}
"""The first driver series that runs programs built for a CUDA version (NVIDIA's compatibility
table).
"""


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong, and its remedy."""

    what: str
    remedy: str


def findings(facts: Facts) -> list[Finding]:
    """Return all that would spoil or slow a run on this machine."""
    return list(chain.from_iterable(check(facts) for check in CHECKS))


def _torch(facts: Facts) -> Iterator[Finding]:
    stated = facts["versions"]["torch"]
    if stated is None:
        yield Finding(
            "torch is not installed", "install kata with its dependencies: pip install <kata>"
        )
        return
    major, minor = (int(part) for part in stated.split(".")[:2])
    if (major, minor) < (2, 11):
        yield Finding(
            f"torch {stated} is too old",
            "kata needs torch 2.11 or newer: pip install 'torch>=2.11,<3'",
        )


def _driver(facts: Facts) -> Iterator[Finding]:
    gpus, cuda = facts["gpus"], facts["cuda_of_torch"]
    if not gpus and facts["device_files"]:
        yield Finding(
            f"{facts['device_files']} GPU device files, but nvidia-smi does not answer",
            "the driver is not loaded or does not fit its library: reboot, or install the driver "
            "again",
        )
    if not gpus:
        return
    if cuda is None:
        yield Finding(
            "this torch is a CPU build, and there are GPUs",
            "install a CUDA build of torch (see pytorch.org for the command)",
        )
        return
    needed = DRIVER_OF_CUDA.get(int(cuda.split(".")[0]))
    series = str(gpus[0]["driver_version"]).split(".")[0]
    if needed is not None and series.isdigit() and int(series) < needed:
        yield Finding(
            f"driver {gpus[0]['driver_version']} is too old for torch's CUDA {cuda}",
            f"install driver {needed} or newer, or a torch built for an older CUDA",
        )


def _gpus(facts: Facts) -> Iterator[Finding]:
    gpus, stated = facts["gpus"], facts["environment"].get("CUDA_VISIBLE_DEVICES")
    if stated is not None and gpus:
        wrong = [n for n in facts["visible_gpus"] if n.isdigit() and int(n) >= len(gpus)]
        if wrong:
            yield Finding(
                f"CUDA_VISIBLE_DEVICES={stated} names GPU {wrong[0]}; there are {len(gpus)}",
                f"name GPUs from 0 to {len(gpus) - 1}, or unset it",
            )
        elif not facts["visible_gpus"]:
            yield Finding(
                f"CUDA_VISIBLE_DEVICES='{stated}' hides all {len(gpus)} GPUs",
                "unset it, or name those to use",
            )
    for gpu in gpus:
        if (gpu["used_bytes"] or 0) > GIB:
            yield Finding(
                f"GPU {gpu['index']}: {bytes_text(gpu['used_bytes'])} are taken by others",
                "end them (`nvidia-smi` names them), or leave it out with CUDA_VISIBLE_DEVICES",
            )
    slow = [pair for pair, link in facts["links"].items() if link == "SYS"]
    if slow:
        yield Finding(
            f"GPUs {', '.join(slow)} are joined across CPU sockets (SYS)",
            "use GPUs of one socket together where there is a choice",
        )


def _nccl(facts: Facts) -> Iterator[Finding]:
    if len(facts["gpus"]) > 1 and facts["cuda_of_torch"] and facts["nccl"] is None:
        yield Finding("no NCCL package", "reinstall torch: its CUDA builds bring nvidia-nccl")
    for name in ("NCCL_P2P_DISABLE", "NCCL_SHM_DISABLE"):
        if facts["environment"].get(name) == "1":
            yield Finding(
                f"{name}=1: GPUs of this machine talk the slow way",
                f"unset {name} unless it works around a fault",
            )
    shared = facts["shared_memory_bytes"]
    if len(facts["gpus"]) > 1 and shared is not None and shared < GIB:
        yield Finding(
            f"/dev/shm has {bytes_text(shared)} free",
            "NCCL needs room there: docker run --shm-size=8g (or --ipc=host)",
        )


def _video(facts: Facts) -> Iterator[Finding]:
    for name, found in facts["decoders"].items():
        if not found:
            yield Finding(
                f"PyAV cannot decode {name}",
                "install PyAV's own wheel: pip install --force-reinstall av",
            )


def _host(facts: Facts) -> Iterator[Finding]:
    available = facts["memory"]["available_bytes"]
    if available is not None and available < 4 * GIB:
        yield Finding(
            f"{bytes_text(available)} of memory are free",
            "end other programs, or lower --num_workers and --batch_size",
        )
    limit, cores = facts["cores_of_cgroup"], facts["cores"]
    usable = cores if limit is None else min(cores, limit)
    if limit is not None and limit < cores:
        yield Finding(
            f"the container may use {limit:g} of {cores} cores",
            f"raise its CPU limit, or set OMP_NUM_THREADS={max(1, int(limit))}",
        )
    threads = facts["environment"].get("OMP_NUM_THREADS", "")
    if threads.isdigit() and int(threads) > usable:
        yield Finding(
            f"OMP_NUM_THREADS={threads} on {usable:g} cores",
            "unset it: kata launch divides the cores by ranks",
        )
    if facts["open_files"] < 1024:
        yield Finding(f"at most {facts['open_files']} open files", "ulimit -n 65536")


def _disk(facts: Facts) -> Iterator[Finding]:
    disk = facts["disk"]
    if disk["free_bytes"] < 10 * GIB:
        yield Finding(
            f"{disk['folder']}: {bytes_text(disk['free_bytes'])} free",
            "checkpoints need room: another --output_dir, or --keep_last=2",
        )
    if disk.get("error"):
        yield Finding(
            f"{disk['folder']} cannot be written: {disk['error']}", "another --output_dir"
        )
        return
    for way in ("write", "read"):
        speed = disk[f"{way}_bytes_per_s"]
        if speed < 50e6:
            yield Finding(
                f"{disk['folder']}: {way}s {bytes_text(speed)} per second",
                "put datasets and runs on a local disk; --dataset.cache=frames keeps decoded "
                "frames in memory",
            )


CHECKS: tuple[Callable[[Facts], Iterator[Finding]], ...] = (
    _torch,
    _driver,
    _gpus,
    _nccl,
    _video,
    _host,
    _disk,
)
