"""CPU time of streamed reading by that of local reading, in turns of about a second.

    python -m benchmarks.streaming.turns <dataset> --latencies 0 20 200 --out=<file>

For machines with other work, whose CPU time for the same frames varies by a quarter within minutes.
A process reads from the disk, and one for each latency from a server behind a proxy over HTTP. They
take turns of a few batches, and one that is not its turn stands still, with all of its threads. A
ratio is the median of the ratios within a round of turns. Servers run in processes of their own.

Requests are answered while a process stands still, so its waits for the store (`store_wait_s`) say
little here: `latency.py` shows those. Where a reader never waits, its throughput follows from its
CPU time.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import torch

from benchmarks.streaming.servers.processes import served
from kata.bench import process_stats
from kata.bench.cases import windows_of
from kata.closing import Closing
from kata.data import open_dataset
from kata.loader import Loader

LOCAL = "disk"
_ROOT = Path(__file__).parents[2]


def read(args: argparse.Namespace) -> None:
    """Read in turns: a line of figures after each, then stand still. Runs in a process."""
    data = open_dataset("bench/turns", root=args.dataset)
    windows, keys = windows_of(args.mode, data)
    times = {key: [offset / data.fps for offset in window] for key, window in windows.items()}
    with Loader(
        data,
        args.batch_size,
        delta_timestamps=times,
        keys=keys,
        image_dtype=torch.uint8,
        num_workers=args.threads,
        shuffle="clips",
        frame_memory=args.frame_memory_mb * 10**6,
        global_batch=args.batch_size,
        encoded_memory=args.encoded_memory_mb * 10**6,
    ) as loader:
        batches = iter(loader)
        for _ in range(args.skip):
            next(batches)
        print("ready", flush=True)
        while True:
            os.kill(os.getpid(), signal.SIGSTOP)
            cpu_s, wall_s, before = time.process_time(), time.perf_counter(), loader.reader.work()
            for _ in range(args.turn):
                next(batches)
            work = loader.reader.work()
            figures = {
                "cpu_s": time.process_time() - cpu_s,
                "wall_s": time.perf_counter() - wall_s,
                "requests": work.requests - before.requests,
                "bytes": work.bytes_fetched - before.bytes_fetched,
                "store_wait_s": work.store_wait_s - before.store_wait_s,
            }
            print(json.dumps(figures), flush=True)


class Child(Closing):
    """A process that reads in turns, and stands still between them."""

    def __init__(self, args: argparse.Namespace, address: str, cache: str) -> None:
        words = [f"--{name}={vars(args)[name]}" for name in _OF_A_CHILD]
        self._process = subprocess.Popen(
            [sys.executable, "-m", "benchmarks.streaming.turns", address, "--child", *words],
            env={**os.environ, "KATA_CACHE": cache},
            stdout=subprocess.PIPE,
            text=True,
            cwd=_ROOT,
        )
        self._line()

    def turn(self) -> dict[str, float]:
        """Let it read for a turn, and return the figures."""
        self._process.send_signal(signal.SIGCONT)
        return json.loads(self._line())

    def _line(self) -> str:
        """Return its next line, once it stands still."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit("a reading process has ended; see its message above")
        os.waitid(os.P_PID, self._process.pid, os.WSTOPPED)
        return line

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()
        if self._process.stdout is not None:
            self._process.stdout.close()


_OF_A_CHILD = (
    "mode",
    "batch_size",
    "threads",
    "skip",
    "turn",
    "frame_memory_mb",
    "encoded_memory_mb",
)


def measure(args: argparse.Namespace) -> list[dict[str, dict[str, float]]]:
    """Return the figures of every source, by round."""
    rounds: list[dict[str, dict[str, float]]] = []
    with ExitStack() as live:
        cache = live.enter_context(tempfile.TemporaryDirectory())
        folder = Path(args.dataset).resolve()
        children = {LOCAL: live.enter_context(Child(args, str(folder), cache))}
        for latency_ms in args.latencies:
            address = live.enter_context(served(folder, f"--latency_ms={latency_ms}"))
            children[f"{latency_ms} ms"] = live.enter_context(Child(args, address, cache))
        for number in range(args.rounds):
            # Each source comes first as often: what one leaves in the caches disturbs the next.
            names = list(children)
            first = number % len(names)
            turns = {name: children[name].turn() for name in names[first:] + names[:first]}
            rounds.append({name: turns[name] for name in names})
    return rounds


def summarize(rounds: list[dict[str, dict[str, float]]], samples: int) -> dict[str, Any]:
    """Return the medians of each source, and of its ratios to the disk and the nearest server."""
    found: dict[str, Any] = {}
    names = list(rounds[0])
    for name in names:
        turns = [each[name] for each in rounds]
        found[name] = {
            "cpu_ms_per_sample": 1e3 * statistics.median(turn["cpu_s"] for turn in turns) / samples,
            "requests_per_sample": sum(turn["requests"] for turn in turns) / len(turns) / samples,
            "bytes_per_sample": sum(turn["bytes"] for turn in turns) / len(turns) / samples,
            "store_wait_s": sum(turn["store_wait_s"] for turn in turns),
        }
        for other in names[:2]:
            ratios = [each[other]["cpu_s"] / each[name]["cpu_s"] for each in rounds]
            low, middle, high = statistics.quantiles(ratios, n=4)
            found[name][f"samples_per_cpu_s_of_{other}"] = middle
            found[name][f"quartiles_of_{other}"] = [low, high]
    return found


def main() -> None:
    """Measure, print the ratios, and keep everything."""
    args = _arguments()
    if args.child:
        read(args)
        return
    # Ended from outside, this still ends the processes that stand still.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    rounds = measure(args)
    summary = summarize(rounds, args.turn * args.batch_size)
    print(json.dumps(summary, indent=1))
    if args.out is not None:
        settings = {name: value for name, value in vars(args).items() if name != "out"}
        kept = {
            "machine": process_stats.machine(),
            "versions": process_stats.versions(),
            "load_average": os.getloadavg(),
            "settings": settings | {"dataset": Path(args.dataset).name},
            "summary": summary,
            "rounds": rounds,
        }
        args.out.write_text(json.dumps(kept, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", help="folder")
    parser.add_argument("--mode", default="single", help="or sarm, as in kata bench stream")
    parser.add_argument("--latencies", nargs="+", type=int, default=[0, 20, 200])
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--turn", type=int, default=25, help="batches of a turn")
    parser.add_argument("--skip", type=int, default=100, help="first batches, not measured")
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--frame_memory_mb", type=int, default=1000)
    parser.add_argument("--encoded_memory_mb", type=int, default=64)
    parser.add_argument("--child", action="store_true", help="read; for processes started here")
    parser.add_argument("--out", type=Path)
    return parser.parse_args()


if __name__ == "__main__":
    main()
