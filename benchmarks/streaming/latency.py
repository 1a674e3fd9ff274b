"""Throughput of streamed reading against local reading, at latencies of 20 and 200 ms.

    python benchmarks/streaming/latency.py <dataset> [--out <file>]

The store is a folder of this machine whose reads sleep, so the engine is measured and no network:
the sleeps take no CPU time, and a real client does. All sources take turns in one run. Order, rows
and budget are the same for all, and a hash of every batch shows that the pixels are, too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Event, Thread

from kata.data import Batches, Dataset, Reader, anchor_rows, open_dataset
from kata.data.dataset.mixture import Mixture
from kata.data.loader.shuffle import Shuffle, ShuffleChoice, make_order
from kata.data.storage.far_files import FarFiles
from kata.data.storage.fetch_pool import FetchPool
from kata.data.storage.file_stamp import Stamp
from kata.data.storage.store import LocalStore

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


class SleepingStore:
    """The files of a folder, as if they were `latency_s` away."""

    def __init__(self, root: Path, latency_s: float) -> None:
        self._near, self._latency_s = LocalStore(root), latency_s

    def path(self, name: str) -> None:
        """Return None: the files count as far."""

    def location(self, name: str) -> str:
        """Return the path, for messages."""
        return self._near.location(name)

    def stamps(self, names: Iterable[str]) -> dict[str, Stamp]:
        """Return the stamps of the folder's files."""
        return self._near.stamps(names)

    def packed_index(self, name: str, stamp: Stamp) -> bytes | None:
        """Return None: the index is built from the file, with requests."""

    def read_into(self, name: str, begin: int, pieces: Sequence[memoryview], stamp: Stamp) -> None:
        """Read after the latency."""
        time.sleep(self._latency_s)
        self._near.read_into(name, begin, pieces, stamp)


@dataclass(frozen=True)
class Round:
    """The figures of one source in one round; `digest` is over all batches."""

    source: str
    samples_per_s: float
    cpu_s_per_sample: float
    first_batch_s: float
    bytes_per_video_byte: float
    requests: int
    wall_s: float
    store_wait_s: float
    peak_memory_mb: float
    digest: str


class PeakMemory:
    """The largest resident memory while the context is open, beyond that at its start."""

    def __enter__(self) -> PeakMemory:
        self._base = self.most = _resident()
        self._end = Event()
        self._thread = Thread(target=self._watch, daemon=True)
        self._thread.start()
        return self

    def _watch(self) -> None:
        while not self._end.wait(0.02):
            self.most = max(self.most, _resident())

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    @property
    def mb(self) -> float:
        """Return the growth in MB."""
        return (self.most - self._base) / 1e6


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES


def measure(source: str, data: Dataset, latency_s: float | None, args: argparse.Namespace) -> Round:
    """Read `args.batches` batches from one source, with a cold packet index."""
    rows = anchor_rows(data)
    windows = {key: tuple(args.window) for key in data.cameras} if args.window != [0] else {}
    memory = int(args.frame_memory_mb * 1e6)
    choice = ShuffleChoice(Shuffle("clips"), memory, args.batch_size, 3)
    mixture = Mixture.of(data)
    shuffles, _ = choice.choose(mixture, windows, tuple(data.cameras), rows)
    order = make_order(shuffles, mixture, windows, tuple(data.cameras), rows, 1)
    videos = sum((data.root / name).stat().st_size for name in _videos(data))
    digest = hashlib.sha256()
    with (
        tempfile.TemporaryDirectory() as cache,
        FetchPool(int(args.encoded_memory_mb * 1e6)) as pool,
        PeakMemory() as peak,
    ):
        os.environ["KATA_CACHE"] = cache
        if latency_s is not None:
            store = FarFiles(SleepingStore(data.root, latency_s), pool)
            data = replace(data, store=store)
        began_s = time.perf_counter()
        with (
            Reader(data, windows, threads=args.threads, frame_memory=memory) as reader,
            Batches(reader, rows, order, args.batch_size) as batches,
        ):
            digest.update(_pixels(batches.at(0), data))
            first_s = time.perf_counter() - began_s
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            for step in range(1, args.batches):
                digest.update(_pixels(batches.at(step), data))
            wall_s = time.perf_counter() - began_s
            cpu_s = time.process_time() - began_cpu_s
            work = reader.work()
    samples = (args.batches - 1) * args.batch_size
    return Round(
        source=source,
        samples_per_s=samples / wall_s,
        cpu_s_per_sample=cpu_s / samples,
        first_batch_s=first_s,
        bytes_per_video_byte=work.bytes_fetched / videos,
        requests=work.requests,
        wall_s=wall_s,
        store_wait_s=work.store_wait_s,
        peak_memory_mb=peak.mb,
        digest=digest.hexdigest()[:16],
    )


def _videos(data: Dataset) -> list[str]:
    return [name for span in data.layout.videos.values() for name in span.used()]


def _pixels(batch: dict, data: Dataset) -> bytes:
    """Return a few bytes of each camera's frames: to hash all would take longer than to decode."""
    return b"".join(batch[key].reshape(-1)[::4999].tobytes() for key in sorted(data.cameras))


def main() -> None:
    """Measure all sources in turns, print the medians and keep everything."""
    parser = argparse.ArgumentParser()
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--batches", type=int, default=150)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=int, nargs="+", default=[0])
    parser.add_argument("--frame_memory_mb", type=float, default=400)
    parser.add_argument("--encoded_memory_mb", type=float, default=64)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    data = open_dataset("bench/streaming", root=args.dataset)
    sources = {"local": None, "20 ms": 0.02, "200 ms": 0.2}
    rounds: list[Round] = []
    for _ in range(args.rounds):
        for source, latency_s in sources.items():
            rounds.append(measure(source, data, latency_s, args))
            print(rounds[-1], flush=True)
    assert len({each.digest for each in rounds}) == 1, "streamed pixels differ from local ones"
    medians: dict[str, dict[str, float]] = {}
    for source in sources:
        mine = [asdict(each) for each in rounds if each.source == source]
        numbers = [name for name, value in mine[0].items() if not isinstance(value, str)]
        medians[source] = {name: statistics.median(each[name] for each in mine) for name in numbers}
        # Turns of one round see about the same other load.
        locals_ = [each for each in rounds if each.source == "local"]
        own = [each for each in rounds if each.source == source]
        pairs = list(zip(own, locals_, strict=True))
        medians[source]["of_local"] = statistics.median(
            one.samples_per_s / near.samples_per_s for one, near in pairs
        )
        medians[source]["cpu_of_local"] = statistics.median(
            one.cpu_s_per_sample / near.cpu_s_per_sample for one, near in pairs
        )
    print(json.dumps(medians, indent=1))
    if args.out is not None:
        settings = {name: str(value) for name, value in vars(args).items() if name != "out"}
        settings["dataset"] = args.dataset.name
        kept = {
            "settings": settings,
            "load_average": os.getloadavg(),
            "medians": medians,
            "rounds": [asdict(r) for r in rounds],
        }
        args.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
