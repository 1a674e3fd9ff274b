"""A long streamed read through a faulty proxy: its order and pixels are those of the disk, its
memory stays flat.

    python -m benchmarks.streaming.soak <dataset> --batches=2000 [--minutes=25] [--out=<file>]

The dataset is served over HTTP by a process of its own, and a proxy in another one adds latency,
limits the bandwidth, and fails a share of the requests: 429 with Retry-After, 500, resets,
truncated bodies, wrong lengths. The same batches are then read from the disk, and hashes compared.

Beside the resident memory stands what the program has asked of malloc and not given back
(`in_use_mb`), and the number of Python's objects that may hold others, whose memory is not part of
it. If the first grows and these do not, malloc keeps freed memory, and nothing leaks.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import hashlib
import json
import os
import platform
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.streaming.servers.processes import served
from kata.data import Batches, Dataset, Order, Reader, anchor_rows, open_dataset
from kata.data.remote.remote_store import RemoteStore
from kata.data.storage.far_files import FarFiles
from kata.data.storage.fetch_pool import FetchPool

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_POINTS = 40
"""Moments at which memory is noted."""

_OF_THE_PROXY = ("latency_ms", "mib_per_s", "share", "seed")
"""Options that the proxy takes too."""


@dataclass(frozen=True)
class Pass:
    """The figures of one pass over the batches."""

    source: str
    batches: int
    order: str
    pixels: str
    wall_s: float
    cpu_s: float
    retries: int
    requests: int
    resident_mb: list[float]
    in_use_mb: list[float]
    objects: list[int]


class _MallocInfo(ctypes.Structure):
    """The result of glibc's mallinfo2, in bytes over all arenas."""

    _fields_ = (
        ("arena", ctypes.c_size_t),
        ("ordblks", ctypes.c_size_t),
        ("smblks", ctypes.c_size_t),
        ("hblks", ctypes.c_size_t),
        ("hblkhd", ctypes.c_size_t),
        ("usmblks", ctypes.c_size_t),
        ("fsmblks", ctypes.c_size_t),
        ("uordblks", ctypes.c_size_t),
        ("fordblks", ctypes.c_size_t),
        ("keepcost", ctypes.c_size_t),
    )


def read(source: str, data: Dataset, args: argparse.Namespace, count: int) -> Pass:
    """Read batches until the time is over, and hash what they hold."""
    rows = anchor_rows(data)
    order, pixels = hashlib.sha256(), hashlib.sha256()
    resident_mb: list[float] = []
    in_use_mb: list[float] = []
    objects: list[int] = []
    began_s = time.perf_counter()
    began_cpu_s = time.process_time()
    with (
        Reader(data, {}, threads=2, frame_memory=int(args.frame_memory_mb * 1e6)) as reader,
        Batches(reader, rows, Order(len(rows), seed=args.seed), args.batch_size) as batches,
    ):
        done = 0
        for step in range(count):
            batch = batches.at(step)
            order.update(batches.anchors(step).tobytes())
            for key in data.cameras:
                pixels.update(batch[key].data)
            done = step + 1
            if step % max(args.batches // _POINTS, 1) == 0:
                gc.collect()
                resident_mb.append(round(_resident_mb(), 1))
                in_use_mb.append(round(_in_use_mb(), 1))
                objects.append(len(gc.get_objects()))
                if source == "store" and time.perf_counter() - began_s > 60 * args.minutes:
                    break
        requests = reader.work().requests
    store = data.store.store if isinstance(data.store, FarFiles) else None
    return Pass(
        source=source,
        batches=done,
        order=order.hexdigest(),
        pixels=pixels.hexdigest(),
        wall_s=round(time.perf_counter() - began_s, 2),
        cpu_s=round(time.process_time() - began_cpu_s, 2),
        retries=store.retries if isinstance(store, RemoteStore) else 0,
        requests=requests,
        resident_mb=resident_mb,
        in_use_mb=in_use_mb,
        objects=objects,
    )


def _in_use_mb() -> float:
    """Return what malloc has given out, in its arenas and as mappings of their own."""
    libc = ctypes.CDLL("libc.so.6")
    libc.mallinfo2.restype = _MallocInfo
    found = libc.mallinfo2()
    return (found.uordblks + found.hblkhd) / 1e6


def _resident_mb() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES / 1e6


def main() -> None:
    """Read both ways, compare, and write the result."""
    args = _arguments()
    faults = [f"--{name}={vars(args)[name]}" for name in _OF_THE_PROXY]
    with tempfile.TemporaryDirectory() as cache:
        os.environ["KATA_CACHE"] = cache
        with (
            served(args.dataset, *faults) as address,
            FetchPool(int(args.encoded_memory_mb * 1e6)) as pool,
        ):
            data = open_dataset("soak/set", root=address)
            far = read("store", replace(data, store=FarFiles(data.store, pool)), args, args.batches)
        print(f"store: {far.batches} batches in {far.wall_s} s", flush=True)
        near = read("disk", open_dataset("soak/set", root=args.dataset), args, far.batches)
    half = len(far.resident_mb) // 2
    growth_mb = max(far.resident_mb[half:]) - max(far.resident_mb[:half])
    last_quarter = far.resident_mb[len(far.resident_mb) * 3 // 4 :]
    settings = {name: value for name, value in vars(args).items() if name != "out"}
    result = {
        "machine": {"cores": os.cpu_count(), "system": platform.platform()},
        "settings": settings | {"dataset": args.dataset.name},
        "same_order": near.order == far.order,
        "same_pixels": near.pixels == far.pixels,
        "growth_mb_second_half": round(growth_mb, 1),
        "growth_mb_last_quarter": round(last_quarter[-1] - last_quarter[0], 1),
        "in_use_growth_mb_second_half": round(
            max(far.in_use_mb[half:]) - max(far.in_use_mb[:half]), 1
        ),
        "passes": [asdict(near), asdict(far)],
    }
    text = json.dumps(result, indent=1)
    print(text)
    if args.out is not None:
        args.out.write_text(text + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--batches", type=int, default=2000)
    parser.add_argument("--minutes", type=float, default=1e9, help="most time to stream for")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--latency_ms", type=float, default=20)
    parser.add_argument("--mib_per_s", type=float, default=270)
    parser.add_argument("--share", type=float, default=0.05)
    parser.add_argument("--frame_memory_mb", type=float, default=64)
    parser.add_argument("--encoded_memory_mb", type=float, default=32)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
