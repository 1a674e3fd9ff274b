"""The matrix of `kata bench stream`: datasets, modes, and sources from a disk to 200 ms away.

    python -m benchmarks.streaming.matrix <folder of datasets> --datasets a b d --records=<folder>
    python -m benchmarks.streaming.matrix <folder of datasets> --records=<folder> --out=<file>

The first form adds rounds of records to a folder, the second one summarizes all that it holds. In
a round a case (dataset and mode) is read from every source, one after the other, and the decode
floor is measured; a ratio is the median of the ratios within a round. Sources are served over HTTP
by processes of their own. Every reading begins with an empty cache of metadata and indexes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.streaming.servers.processes import served
from kata.bench.process_stats import cores, machine, versions
from kata.bench.read_worker import Reading
from kata.data import open_dataset

LOCAL = "disk"
LATENCIES_MS = (0, 20, 200)
SINGLE_FRAMES_S = 120.0
SARM_FRAMES_S = 320.0
FLOOR_SHARE = 0.8
OF_LOCAL = {20: 0.95, 200: 0.9}
FIRST_BATCH_S = 2.0
AMPLIFICATION = 1.3
MEMORY_BYTES = 10**9
"""Targets. Rates are those at 20 ms; a codec whose floor is slower has to reach a share of it."""


def measure(args: argparse.Namespace) -> None:
    """Add rounds to the folder of records."""
    for _ in range(args.rounds):
        for name in args.datasets:
            for mode in args.modes:
                _floor(args, name, mode)
                _reading(args, name, mode, LOCAL, str(args.root / name))
                for latency_ms in args.latencies:
                    with served(args.root / name, f"--latency_ms={latency_ms}") as address:
                        _reading(args, name, mode, f"{latency_ms}ms", address)


def _reading(args: argparse.Namespace, name: str, mode: str, source: str, address: str) -> None:
    """Run `kata bench stream` in a process, over a whole epoch after a fifth of one."""
    epoch = open_dataset(name, root=args.root / name).num_frames // args.batch_size
    with tempfile.TemporaryDirectory() as cache:
        subprocess.run(
            [
                *(sys.executable, "-m", "kata", "bench", "stream"),
                f"--dataset.root={address}",
                f"--dataset.repo_id=bench/{name}",
                "--dataset.shuffle=clips",
                f"--dataset.frame_memory={args.frame_memory_mb}MB",
                *_buffer(args, source),
                f"--mode={mode}",
                f"--source={source}",
                f"--batch_size={args.batch_size}",
                f"--num_batches={args.num_batches or epoch}",
                f"--warmup_batches={1 + epoch // 5}",
                f"--out_dir={args.records}",
            ],
            env={**os.environ, "OMP_NUM_THREADS": "1", "KATA_CACHE": cache},
            check=True,
        )


def _buffer(args: argparse.Namespace, source: str) -> list[str]:
    """Return the option of the buffer, which counts decoded frames and fetched bytes together."""
    if source == LOCAL:
        return []
    return [f"--dataset.buffer_gb={(args.frame_memory_mb + args.encoded_memory_mb) / 1000}"]


def _floor(args: argparse.Namespace, name: str, mode: str) -> None:
    """Measure the decode floor of a case."""
    reading = Reading(
        root=str((args.root / name).resolve()),
        pattern=mode,
        way="floor",
        batch_size=args.batch_size,
        threads=cores(),
        seconds=args.floor_seconds,
        epoch_seconds=1.0,
        seed=0,
        frame_memory=0,
    )
    command = [sys.executable, "-m", "kata.bench.read_worker", json.dumps(asdict(reading))]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    args.records.mkdir(parents=True, exist_ok=True)
    number = len(list(args.records.glob(f"floor_{name}_{mode}_*.json")))
    (args.records / f"floor_{name}_{mode}_{number:03}.json").write_text(done.stdout)


def summarize(folder: Path) -> dict[str, Any]:
    """Return medians, ratios and verdicts of every case and source in a folder of records."""
    rounds: dict[str, dict[str, list[dict[str, Any]]]] = {}
    records: list[dict[str, Any]] = []
    for path in folder.glob("stream_*.json"):
        records.append(json.loads(path.read_text()))
    for record in sorted(records, key=lambda each: each["began"]):
        case = f"{record['dataset']['name'].removeprefix('bench/')} {record['mode']}"
        rounds.setdefault(case, {}).setdefault(record["source"], []).append(record["nodes"][0])
    cases: dict[str, Any] = {}
    for case, sources in rounds.items():
        name, mode = case.split()
        floors = [
            json.loads(path.read_text())["cpu_ms"]
            for path in sorted(folder.glob(f"floor_{name}_{mode}_*.json"))
        ]
        cases[case] = _summary(mode, sources, floors)
    return {"settings": _settings(records), "cases": cases, "rounds": rounds}


def _settings(records: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Return what all readings have in common, without folders of this machine."""
    if not records:
        return {}
    settings = records[0]["settings"]
    chosen = {name: settings["dataset"][name] for name in ("shuffle", "frame_memory")}
    buffers = {record["settings"]["dataset"]["buffer_gb"] for record in records} - {None}
    for name in ("batch_size", "prefetch_factor", "seed"):
        chosen[name] = settings[name]
    return chosen | {"threads": records[0]["threads"], "buffer_gb": sorted(buffers)}


def _summary(
    mode: str, sources: Mapping[str, Sequence[dict[str, Any]]], floors: Sequence[float]
) -> dict[str, Any]:
    """Return the medians of each source of a case."""
    found: dict[str, Any] = {}
    for source, nodes in sources.items():
        medians = {name: _median(nodes, name) for name in nodes[0]}
        pairs = list(zip(nodes, sources[LOCAL], strict=True))
        medians["of_local"] = statistics.median(
            one["frames_per_s_node"] / near["frames_per_s_node"] for one, near in pairs
        )
        medians["of_local_per_free_core"] = statistics.median(
            _per_free_core(one) / _per_free_core(near) for one, near in pairs
        )
        medians["cpu_of_local"] = statistics.median(
            one["cpu_s_per_sample"] / near["cpu_s_per_sample"] for one, near in pairs
        )
        medians["floor_share"] = statistics.median(
            floor / (1e3 * node["cpu_s_per_sample"])
            for floor, node in zip(floors, nodes, strict=True)
        )
        medians["targets"] = _targets(mode, source, medians)
        found[source] = medians
    return found


def _median(nodes: Sequence[Mapping[str, float]], name: str) -> float:
    return statistics.median(node[name] for node in nodes)


def _per_free_core(node: Mapping[str, float]) -> float:
    """Return the frames per second and core that other processes left, which servers here use."""
    return node["frames_per_s_node"] / (cores() - node["other_cores"])


def _targets(mode: str, source: str, medians: Mapping[str, float]) -> dict[str, Any]:
    """Return each target of a source with what was measured."""
    checks: dict[str, tuple[float, float, bool]] = {}

    def at_least(what: str, measured: float, wanted: float) -> None:
        checks[what] = (measured, wanted, measured >= wanted)

    def at_most(what: str, measured: float, wanted: float) -> None:
        checks[what] = (measured, wanted, measured <= wanted)

    at_most(
        "resident beyond the budget", medians["peak_bytes"] - medians["budget_bytes"], MEMORY_BYTES
    )
    if source != LOCAL:
        at_most("bytes brought per byte", medians["read_amplification"], AMPLIFICATION)
    if source == "20ms":
        wanted = SINGLE_FRAMES_S if mode == "single" else SARM_FRAMES_S
        at_least("frames per second", medians["frames_per_s_node"], wanted)
        if medians["frames_per_s_node"] < wanted:
            at_least("share of the decode floor", medians["floor_share"], FLOOR_SHARE)
        at_most("seconds to the first batch", medians["first_batch_latency_s"], FIRST_BATCH_S)
    for latency_ms, share in OF_LOCAL.items():
        if source == f"{latency_ms}ms":
            at_least("of the local throughput", medians["of_local"], share)
    return {
        what: {"measured": measured, "wanted": wanted, "reached": reached}
        for what, (measured, wanted, reached) in checks.items()
    }


def _printed(summary: Mapping[str, Any]) -> list[str]:
    """Return a line per case and source, and one per target that is missed."""
    lines: list[str] = []
    for case, sources in summary["cases"].items():
        for source, found in sources.items():
            lines.append(
                f"{case:20} {source:6} {found['frames_per_s_node']:8.1f} frames/s "
                f"{found['of_local']:5.0%} of local, "
                f"{found['of_local_per_free_core']:5.0%} per free core, "
                f"CPU {found['cpu_of_local']:4.2f}, "
                f"{found['floor_share']:4.0%} of the floor, first "
                f"{found['first_batch_latency_s']:.2f} s, amplified "
                f"{found['read_amplification']:.2f}, {found['peak_bytes'] / 1e6:.0f} MB of "
                f"{found['budget_bytes'] / 1e6:.0f}, others {found['other_cores']:.1f}"
            )
            for what, target in found["targets"].items():
                if not target["reached"]:
                    lines.append(
                        f"  not reached: {what} {target['measured']:.4g}, wanted "
                        f"{target['wanted']:.4g}"
                    )
    return lines


def main() -> None:
    """Measure, or summarize what was measured."""
    args = _arguments()
    if args.datasets:
        measure(args)
    summary = summarize(args.records)
    print("\n".join(_printed(summary)))
    if args.out is not None:
        head = {
            "machine": machine() | {"system": platform.platform()},
            "versions": versions(),
            "load_average": os.getloadavg(),
        }
        args.out.write_text(json.dumps(head | summary, indent=1) + "\n")


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("root", type=Path, help="folder of the datasets")
    parser.add_argument("--datasets", nargs="*", default=[], help="folders below it")
    parser.add_argument("--modes", nargs="+", default=["single", "sarm"])
    parser.add_argument("--latencies", nargs="*", type=int, default=LATENCIES_MS)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--num_batches", type=int, default=0, help="0: an epoch")
    parser.add_argument("--frame_memory_mb", type=int, default=400)
    parser.add_argument("--encoded_memory_mb", type=int, default=8)
    parser.add_argument("--floor_seconds", type=float, default=1.0)
    parser.add_argument("--records", type=Path, required=True, help="folder of the records")
    parser.add_argument("--out", type=Path, help="the summary, as JSON")
    return parser.parse_args()


if __name__ == "__main__":
    main()
