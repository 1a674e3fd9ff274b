"""Throughput of streamed reading against local reading, at latencies of 20 and 200 ms.

    python -m benchmarks.streaming.latency <dataset> [--http [--apart --threads=1]] [--out=<file>]

The store is a folder of this machine whose reads sleep, so the engine is measured and no network:
the sleeps take no CPU time, and a real client does. With --http it is a server behind a proxy that
adds the latency, both in processes of their own, and 0 ms is a source, too. --apart gives the
reader the first core and the server and the proxy the others, so that they take no time of it; the
disk is read on the first core as well. All sources take turns in one run. Order, rows and budget
are the same for all, and a hash of every batch shows that the pixels are, too.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import statistics
import tempfile
import time
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Event, Thread

from benchmarks.streaming.servers.processes import served
from kata.bench import process_stats
from kata.data import Batches, Dataset, Reader, anchor_rows, open_dataset
from kata.data.dataset.mixture import Mixture
from kata.data.loader.shuffle import Shuffle, ShuffleChoice, make_order
from kata.data.storage.far_files import FarFiles
from kata.data.storage.fetch_pool import FetchPool
from kata.data.storage.file_stamp import Stamp
from kata.data.storage.store import LocalStore

LOCAL = "local"
NEAREST = "0 ms"
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
    bytes_fetched: int
    other_cores: float
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


@contextmanager
def streamed(latency_s: float | None, args: argparse.Namespace) -> Generator[Dataset]:
    """Open the dataset as it is read from this far away; None means the disk."""
    if args.apart:
        # Processes inherit their cores.
        os.sched_setaffinity(0, args.cores[1:])
    if latency_s is not None and args.http:
        with served(args.dataset, f"--latency_ms={1e3 * latency_s}") as address:
            _take_first_core(args)
            with FetchPool(int(args.encoded_memory_mb * 1e6)) as pool:
                data = open_dataset("bench/streaming", root=address)
                yield replace(data, store=FarFiles(data.store, pool))
        return
    _take_first_core(args)
    data = open_dataset("bench/streaming", root=args.dataset)
    if latency_s is None:
        yield data
        return
    with FetchPool(int(args.encoded_memory_mb * 1e6)) as pool:
        store = FarFiles(SleepingStore(data.root, latency_s), pool)
        yield replace(data, store=store)


def _take_first_core(args: argparse.Namespace) -> None:
    if args.apart:
        os.sched_setaffinity(0, args.cores[:1])


def measure(source: str, latency_s: float | None, args: argparse.Namespace) -> Round:
    """Read `args.batches` batches from one source, with a cold packet index."""
    with tempfile.TemporaryDirectory() as cache:
        os.environ["KATA_CACHE"] = cache
        with streamed(latency_s, args) as data:
            return measured(source, data, args)


def measured(source: str, data: Dataset, args: argparse.Namespace) -> Round:
    """Read batches of a dataset and return the figures."""
    rows = anchor_rows(data)
    windows = {key: tuple(args.window) for key in data.cameras} if args.window != [0] else {}
    memory = int(args.frame_memory_mb * 1e6)
    choice = ShuffleChoice(Shuffle("clips"), memory, args.batch_size, 3)
    mixture = Mixture.of(data)
    shuffles, _ = choice.choose(mixture, windows, tuple(data.cameras), rows)
    order = make_order(shuffles, mixture, windows, tuple(data.cameras), rows, 1)
    videos = sum((args.dataset / name).stat().st_size for name in _videos(data))
    digest = hashlib.sha256()
    with PeakMemory() as peak:
        began_s = time.perf_counter()
        with (
            Reader(data, windows, threads=args.threads, frame_memory=memory) as reader,
            Batches(reader, rows, order, args.batch_size) as batches,
        ):
            digest.update(_pixels(batches.at(0), data))
            first_s = time.perf_counter() - began_s
            for step in range(1, args.skip):
                digest.update(_pixels(batches.at(step), data))
            before, busy_s = reader.work(), process_stats.busy_s()
            began_s, began_cpu_s = time.perf_counter(), time.process_time()
            for step in range(args.skip, args.batches):
                digest.update(_pixels(batches.at(step), data))
            wall_s = time.perf_counter() - began_s
            cpu_s = time.process_time() - began_cpu_s
            busy_s = process_stats.busy_s() - busy_s
            work = reader.work()
    samples = (args.batches - args.skip) * args.batch_size
    return Round(
        source=source,
        samples_per_s=samples / wall_s,
        cpu_s_per_sample=cpu_s / samples,
        first_batch_s=first_s,
        bytes_per_video_byte=work.bytes_fetched / videos,
        requests=work.requests - before.requests,
        wall_s=wall_s,
        store_wait_s=work.store_wait_s - before.store_wait_s,
        bytes_fetched=work.bytes_fetched - before.bytes_fetched,
        other_cores=max(0.0, busy_s - cpu_s) / wall_s,
        peak_memory_mb=peak.mb,
        digest=digest.hexdigest()[:16],
    )


def _videos(data: Dataset) -> list[str]:
    names: list[str] = []
    for span in data.layout.videos.values():
        names.extend(span.used())
    return names


def _pixels(batch: dict, data: Dataset) -> bytes:
    """Return a few bytes of each camera's frames: to hash all would take longer than to decode."""
    return b"".join(batch[key].reshape(-1)[::4999].tobytes() for key in sorted(data.cameras))


def summarize(rounds: Sequence[Round]) -> dict[str, dict[str, float]]:
    """Return the medians of each source, and those of its ratios to the others of its round."""
    by_source: dict[str, list[Round]] = {}
    for each in rounds:
        by_source.setdefault(each.source, []).append(each)
    medians: dict[str, dict[str, float]] = {}
    for source, mine in by_source.items():
        kept = [asdict(each) for each in mine]
        numbers = [name for name, value in kept[0].items() if not isinstance(value, str)]
        medians[source] = {name: statistics.median(each[name] for each in kept) for name in numbers}
        # Turns of one round see about the same other load.
        for other, name in ((LOCAL, "of_local"), (NEAREST, "of_0ms")):
            if other in by_source:
                pairs = list(zip(mine, by_source[other], strict=True))
                medians[source][name] = statistics.median(
                    one.samples_per_s / near.samples_per_s for one, near in pairs
                )
                medians[source][f"cpu_{name}"] = statistics.median(
                    one.cpu_s_per_sample / near.cpu_s_per_sample for one, near in pairs
                )
    return medians


def main() -> None:
    """Measure all sources in turns, print the medians and keep everything."""
    args = _arguments()
    args.cores = sorted(os.sched_getaffinity(0))
    nearest = {NEAREST: 0.0} if args.http else {}
    sources = {LOCAL: None, **nearest, "20 ms": 0.02, "200 ms": 0.2}
    rounds: list[Round] = []
    for _ in range(args.rounds):
        for source, latency_s in sources.items():
            rounds.append(measure(source, latency_s, args))
            print(rounds[-1], flush=True)
    assert len({each.digest for each in rounds}) == 1, "streamed pixels differ from local ones"
    medians = summarize(rounds)
    print(json.dumps(medians, indent=1))
    if args.out is not None:
        settings = {name: str(value) for name, value in vars(args).items() if name != "out"}
        settings["dataset"] = args.dataset.name
        kept = {
            "machine": process_stats.machine(),
            "settings": settings,
            "load_average": os.getloadavg(),
            "medians": medians,
            "rounds": [asdict(r) for r in rounds],
        }
        args.out.write_text(json.dumps(kept, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--http", action="store_true", help="a server and a proxy, not sleeps")
    parser.add_argument("--apart", action="store_true", help="servers on cores of their own")
    parser.add_argument("--batches", type=int, default=150)
    parser.add_argument("--skip", type=int, default=1, help="first batches that are not measured")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--window", type=int, nargs="+", default=[0])
    parser.add_argument("--frame_memory_mb", type=float, default=400)
    parser.add_argument("--encoded_memory_mb", type=float, default=64)
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
