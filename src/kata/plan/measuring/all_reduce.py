"""A sweep of all-reduces over the GPUs of this machine: their bus bandwidth and latency."""

from __future__ import annotations

import json
import statistics
import tempfile
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from kata.plan.catalogue import Link
from kata.plan.step_time import HALF_BANDWIDTH_BYTES

SIZES = tuple(2**power for power in range(12, 29, 2))
"""Bytes that are summed, from 4 KiB to 256 MiB."""

TIMES = 5


def measured_link(ranks: int, kind: str, sizes: tuple[int, ...] = SIZES) -> Link:
    """Sum tensors over processes of this machine, and return the link between them.

    Args:
        ranks: number of processes; on GPUs each one has its own.
        kind: 'cuda' or 'cpu'.
        sizes: bytes, ascending.
    """
    with tempfile.TemporaryDirectory() as folder:
        spawn(_sweep, (ranks, kind, sizes, folder), nprocs=ranks)
        times = json.loads((Path(folder) / "times.json").read_text(encoding="utf-8"))
    return link_of(dict(zip(sizes, times, strict=True)), ranks)


def link_of(seconds: dict[int, float], ranks: int) -> Link:
    """Return the link that takes these seconds, by bytes, for an all-reduce.

    The sizes between the smallest and the largest one give the bandwidth. A sum of few bytes takes
    the latency and the time that HALF_BANDWIDTH_BYTES would take.
    """
    smallest, largest = min(seconds), max(seconds)
    passes = 2 * (ranks - 1) / ranks
    taken_s = max(seconds[largest] - seconds[smallest], 1e-9)
    bandwidth = passes * (largest - smallest) / taken_s
    latency_s = seconds[smallest] - passes * (smallest + HALF_BANDWIDTH_BYTES) / bandwidth
    return Link(bandwidth, max(latency_s, 0.0), f"measured with {ranks} processes")


def _sweep(rank: int, ranks: int, kind: str, sizes: tuple[int, ...], folder: str) -> None:
    """Measure the times on one rank; rank 0 writes them."""
    device = torch.device(kind, rank) if kind == "cuda" else torch.device(kind)
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo",
        init_method=f"file://{folder}/rendezvous",
        rank=rank,
        world_size=ranks,
        device_id=device if kind == "cuda" else None,
    )
    times: list[float] = []
    for size in sizes:
        values = torch.ones(size // 4, device=device)
        taken: list[float] = []
        for _ in range(TIMES + 1):
            dist.barrier()
            began_s = time.perf_counter()
            dist.all_reduce(values)
            if kind == "cuda":
                torch.cuda.synchronize(device)
            taken.append(time.perf_counter() - began_s)
        times.append(statistics.median(taken[1:]))
    if rank == 0:
        (Path(folder) / "times.json").write_text(json.dumps(times), encoding="utf-8")
    dist.destroy_process_group()
