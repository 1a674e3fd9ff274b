"""Bytes and requests of two epochs, by order and by the memory for fetched bytes.

    python -m benchmarks.streaming.amplification <dataset> [--episodes=60] [--out=<file>]

The store is a folder of this machine, and every batch of two epochs is read. Bytes are those that
the store sent per byte of the GOPs that the episodes show; packet indexes are not counted. The
first epoch ends with bytes that were fetched for the second. `--memory` lists fractions of the GOP
bytes that the pool holds; a last run has a quarter, and the disk tier of `--dataset.cache_dir`.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from benchmarks.streaming.latency import SleepingStore
from kata.data import Batches, Dataset, Reader, anchor_rows, open_dataset
from kata.data.dataset.mixture import Mixture
from kata.data.loader.shuffle import Shuffle, ShuffleChoice, make_order
from kata.data.storage.far_files import FarFiles
from kata.data.storage.fetch_pool import FetchPool
from kata.data.storage.kept_ranges import KeptRanges
from kata.data.storage.store import StoredFile
from kata.data.video.packet_index import open_index


@dataclass(frozen=True)
class Reading:
    """The figures of two epochs; `memory` is the fraction of the GOP bytes that the pool holds."""

    order: str
    memory: float
    has_disk: bool
    first_epoch_bytes: float
    second_epoch_bytes: float
    requests: int
    samples: int
    frames_decoded: int
    held_bytes: int
    wall_s: float


def gop_bytes(data: Dataset) -> int:
    """Return the bytes of all packets of the frames that the episodes show."""
    total = 0
    for span in data.layout.videos.values():
        for position, number in enumerate(span.file.tolist()):
            index = open_index(StoredFile(data.store, span.files[number]))
            first = int(span.first[position])
            end = first + int(data.layout.length[position])
            total += int(index.size[index.packet[first:end]].sum())
    return total


def measure(
    data: Dataset, order: str, memory: float, args: argparse.Namespace, kept: Path | None = None
) -> Reading:
    """Read two epochs."""
    size = gop_bytes(data)
    rows, mixture, cameras = anchor_rows(data), Mixture.of(data), tuple(data.cameras)
    frame_memory = int(args.frame_memory_mb * 1e6)
    choice = ShuffleChoice(Shuffle(order), frame_memory, args.batch_size, 3)
    shuffles, _ = choice.choose(mixture, {}, cameras, rows)
    samples = make_order(shuffles, mixture, {}, cameras, rows, 1)
    most = 0
    began_s = time.perf_counter()
    with FetchPool(max(int(memory * size), 1)) as pool:
        disk = None if kept is None else KeptRanges(kept, "benchmark")
        far = FarFiles(SleepingStore(data.root, args.latency_ms / 1000), pool, disk)
        with (
            Reader(replace(data, store=far), {}, threads=2, frame_memory=frame_memory) as reader,
            Batches(reader, rows, samples, args.batch_size) as batches,
        ):
            before = first = reader.work()
            steps = -(-len(rows) // args.batch_size)
            for step in range(2 * steps):
                batches.at(step)
                most = max(most, pool.held_bytes)
                if step == steps - 1:
                    first = reader.work().since(before)
            done = reader.work().since(before)
    return Reading(
        order=order,
        memory=memory,
        has_disk=kept is not None,
        first_epoch_bytes=round(first.bytes_fetched / size, 3),
        second_epoch_bytes=round((done.bytes_fetched - first.bytes_fetched) / size, 3),
        requests=done.requests,
        samples=2 * len(rows),
        frames_decoded=done.frames_decoded,
        held_bytes=most,
        wall_s=round(time.perf_counter() - began_s, 1),
    )


def main() -> None:
    """Read in each way, print the figures and keep them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--episodes", type=int, default=60)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--latency_ms", type=float, default=0)
    parser.add_argument("--frame_memory_mb", type=float, default=64)
    parser.add_argument("--memory", type=float, nargs="+", default=[0.1, 0.25, 0.5, 1.2])
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    found: list[Reading] = []
    with tempfile.TemporaryDirectory() as cache:
        os.environ["KATA_CACHE"] = cache
        data = open_dataset("bench/streaming", root=args.dataset)
        chosen = data.layout.index[: args.episodes].tolist()
        data = data.subset(chosen)
        size = gop_bytes(data)
        for order in ("full", "clips"):
            for memory in args.memory:
                found.append(measure(data, order, memory, args))
                print(found[-1], flush=True)
            found.append(measure(data, order, 0.25, args, Path(cache) / "kept" / order))
            print(found[-1], flush=True)
    if args.out is not None:
        settings = {name: value for name, value in vars(args).items() if name != "out"}
        kept = {
            "settings": settings | {"dataset": args.dataset.name},
            "gop_bytes": size,
            "readings": [asdict(each) for each in found],
        }
        args.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
