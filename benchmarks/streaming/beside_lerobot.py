"""kata's streaming beside LeRobot 0.6.1's streaming reader, on the same files, in turns.

    python -m benchmarks.streaming.beside_lerobot <folder of datasets> --datasets b a --out=<file>

kata runs in this environment and LeRobot in its own (.peer of the repository). A round reads each
case by both from a folder and from an HTTP server in a process of its own. LeRobot takes only its
videos from the server: it reads tables and metadata from the folder, which favors it.

`floor` is the CPU time of decoding, in one thread and as recorded, the frames that a sample adds,
and converting what it shows: no reader that decodes each frame once can take less.

LeRobot shuffles in a buffer of 1000 samples with decoded frames. It is measured while the buffer is
full: before, it decodes and gives nothing; at the end of an epoch it gives without decoding. kata
is measured over a whole epoch in clip order. Both batches are of 8 samples with frames as uint8.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.lab.lerobot_env import Peer, peer_python
from benchmarks.streaming.servers.processes import served
from kata.bench.process_stats import machine, versions
from kata.bench.read_worker import Reading
from kata.data import open_dataset

BATCH = 8
TARGETS = {"b": 10.0, "a": 4.0}
"""LeRobot's CPU time per sample by kata's, at least: b is h264 with a keyframe every 30 frames, a
AV1 with one every 2.
"""
MEMORY_RATIO = 5.0
"""LeRobot's resident memory by kata's, at least."""


def by_kata(args: argparse.Namespace, name: str, mode: str, address: str) -> dict[str, Any]:
    """Return the figures of `kata bench stream` in a process of its own."""
    epoch = open_dataset(name, root=args.root / name).num_frames // BATCH
    with tempfile.TemporaryDirectory() as folder:
        words = [
            f"--dataset.root={address}",
            "--dataset.shuffle=clips",
            f"--mode={mode}",
            f"--batch_size={BATCH}",
            f"--num_batches={epoch}",
            f"--warmup_batches={1 + epoch // 5}",
            f"--out_dir={folder}/records",
        ]
        if address.startswith("http"):
            words.append(f"--dataset.buffer_gb={(args.frame_memory_mb + 4) / 1000}")
        subprocess.run(
            [
                *(sys.executable, "-m", "kata", "bench", "stream"),
                f"--dataset.frame_memory={args.frame_memory_mb}MB",
                *words,
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1", "KATA_CACHE": f"{folder}/cache"},
            stdout=subprocess.DEVNULL,
            check=True,
        )
        (record,) = Path(folder, "records").glob("stream_*.json")
        node = json.loads(record.read_text())["nodes"][0]
    return {
        "cpu_ms": 1e3 * node["cpu_s_per_sample"],
        "samples_s": node["samples_per_s"],
        "first_batch_s": node["first_batch_latency_s"],
        "peak_bytes": node["peak_bytes"],
        "episodes_per_batch": node["episodes_per_batch"],
        "samples": node["samples"],
    }


def by_lerobot(
    args: argparse.Namespace, peer: Peer, name: str, mode: str, address: str
) -> dict[str, Any]:
    """Return the figures of LeRobot's streaming reader, or its error."""
    return peer.measure(
        {
            "root": str((args.root / name).resolve()),
            "pattern": mode,
            "mode": "stream",
            "address": address if address.startswith("http") else "",
            "batch_size": BATCH,
            "workers": 0,
            "seconds": args.seconds,
            "batches": 4,
            "seed": 0,
        }
    )


def floor(args: argparse.Namespace, name: str, mode: str) -> dict[str, Any]:
    """Return the figures of decoding alone."""
    reading = Reading(
        root=str((args.root / name).resolve()),
        pattern=mode,
        way="floor",
        batch_size=BATCH,
        threads=1,
        seconds=args.seconds,
        epoch_seconds=1.0,
        seed=0,
        frame_memory=0,
    )
    command = [sys.executable, "-m", "kata.bench.read_worker", json.dumps(asdict(reading))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def measure(args: argparse.Namespace, python: Path) -> Iterator[dict[str, Any]]:
    """Yield all figures so far by case, place and reader, after each of them."""
    found: dict[str, dict[str, dict[str, list[Any]]]] = {}
    for _ in range(args.rounds):
        for name in args.datasets:
            for mode in args.modes:
                case = found.setdefault(f"{name} {mode}", {})
                with served(args.root / name) as address:
                    places = {"folder": str(args.root / name), "http": address}
                    for place in args.places:
                        both = case.setdefault(place, {"kata": [], "lerobot": [], "floor": []})
                        both["kata"].append(by_kata(args, name, mode, places[place]))
                        # A process for each reading: its memory is that of this one alone.
                        with Peer(python) as peer:
                            figures = by_lerobot(args, peer, name, mode, places[place])
                        both["lerobot"].append(figures)
                        both["floor"].append(floor(args, name, mode))
                        print(name, mode, place, {side: each[-1] for side, each in both.items()})
                        yield found


def summarize(found: Mapping[str, Mapping[str, Mapping[str, Sequence[Any]]]]) -> dict[str, Any]:
    """Return the ratios of each case and place: medians of the ratios within a round."""
    summary: dict[str, Any] = {}
    for case, places in found.items():
        for place, sides in places.items():
            errors = [each["error"] for each in sides["lerobot"] if "error" in each]
            if errors:
                summary[f"{case} {place}"] = {"error": errors[0]}
                continue
            pairs = list(zip(sides["lerobot"], sides["kata"], strict=True))
            cpu = statistics.median(peer["cpu_ms"] / own["cpu_ms"] for peer, own in pairs)
            memory = statistics.median(
                peer["peak_resident_bytes"] / own["peak_bytes"] for peer, own in pairs
            )
            wanted = TARGETS.get(case.split()[0])
            alone = [each["cpu_ms"] for each in sides["floor"]]
            peers = [each["cpu_ms"] for each in sides["lerobot"]]
            owns = [each["cpu_ms"] for each in sides["kata"]]
            summary[f"{case} {place}"] = {
                "times_less_cpu": cpu,
                "times_less_cpu_of_floor": _ratio(peers, alone),
                "share_of_floor": _ratio(alone, owns),
                "times_less_memory": memory,
                "wanted": {"times_less_cpu": wanted, "times_less_memory": MEMORY_RATIO},
                "reached": (wanted is None or cpu >= wanted) and memory >= MEMORY_RATIO,
            }
    return summary


def _ratio(over: Sequence[float], under: Sequence[float]) -> float:
    """Return the median of the ratios within a round."""
    return statistics.median(one / other for one, other in zip(over, under, strict=True))


def main() -> None:
    """Measure, print the ratios, and keep everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, help="folder of the datasets")
    parser.add_argument("--datasets", nargs="+", default=["b", "a"])
    parser.add_argument("--modes", nargs="+", default=["single", "sarm"])
    parser.add_argument("--places", nargs="+", default=["folder", "http"])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--frame_memory_mb", type=int, default=100)
    parser.add_argument("--peer_python")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    summary: dict[str, Any] = {}
    for found in measure(args, peer_python(args.peer_python)):
        summary = summarize(found)
        if args.out is not None:
            _keep(args, summary, found)
    print(json.dumps(summary, indent=1))


def _keep(args: argparse.Namespace, summary: Mapping[str, Any], found: Mapping[str, Any]) -> None:
    settings = {name: str(value) for name, value in vars(args).items() if name != "out"}
    settings |= {"root": args.root.name, "peer_python": ""}
    kept = {
        "machine": machine(),
        "versions": versions(),
        "load_average": os.getloadavg(),
        "settings": settings,
        "summary": summary,
        "rounds": found,
    }
    args.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
