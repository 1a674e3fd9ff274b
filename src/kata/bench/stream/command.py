"""`kata bench stream`: reads batches and drops them, prints the figures, and keeps them."""

from __future__ import annotations

import datetime
import os
import shlex
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any

import torch

from kata.bench import process_stats
from kata.bench.stream.node_figures import node_figures, nodes_of
from kata.bench.stream.options import StreamBench
from kata.bench.stream.rank_run import RankRun, open_streamed, read_rank
from kata.bench.stream.records import keep
from kata.config import encode, flags_of
from kata.dist.process_group import join
from kata.dist.world import read_world
from kata.log import redacted
from kata.tables import table_lines

LIMIT_S = 1800.0
"""Seconds after which a rank that does not answer has failed."""

_SHOWN = (
    ("frames_per_s_node", "frames/s", "{:.1f}"),
    ("samples_per_s", "samples/s", "{:.1f}"),
    ("first_batch_latency_s", "first s", "{:.2f}"),
    ("p50_sample_latency_ms", "p50 ms", "{:.2f}"),
    ("p95_sample_latency_ms", "p95 ms", "{:.2f}"),
    ("p99_sample_latency_ms", "p99 ms", "{:.2f}"),
    ("decoder_cache_hit_rate", "hits", "{:.0%}"),
    ("bytes_per_sample", "bytes", "{:.0f}"),
    ("read_amplification", "amplified", "{:.2f}"),
    ("requests_per_sample", "requests", "{:.3f}"),
    ("cpu_s_per_sample", "CPU s", "{:.5f}"),
    ("other_cores", "others", "{:.1f}"),
)
"""Name of a figure, its title in the table, its form."""


def stream(run: StreamBench) -> int:
    """Read on all ranks; rank 0 prints and keeps the figures. Return the exit status."""
    process_stats.require_linux()
    began = datetime.datetime.now(datetime.UTC)
    world = read_world(os.environ)
    with join(world, torch.device("cpu"), LIMIT_S) as group:
        own = read_rank(run, world.local_rank, partial(group.gather, None), world.size)
        ranks = group.gather(own)
        if world.is_first:
            record = record_of(run, began, ranks)
            print("\n".join(lines_of(record)))
            if run.out_dir is not None:
                paths = keep(Path(run.out_dir).expanduser(), began, record)
                print(f"all figures: {', '.join(map(str, paths))}")
    return 0


def record_of(run: StreamBench, began: datetime.datetime, ranks: list[RankRun]) -> dict[str, Any]:
    """Return everything that is kept of a reading."""
    dataset = open_streamed(run)
    return {
        "command": redacted(shlex.join(["kata", "bench", "stream", *flags_of(run)])),
        "began": began.isoformat(timespec="seconds"),
        "source": run.label,
        "mode": run.mode,
        "threads": run.num_workers or process_stats.cores(),
        "machine": process_stats.machine(),
        "versions": {**process_stats.versions(), "torch": torch.__version__},
        "settings": encode(run),
        "dataset": {
            "name": run.dataset.name,
            "fingerprint": dataset.fingerprint,
            "episodes": len(dataset.episodes.index),
            "frames": dataset.num_frames,
            "fps": dataset.fps,
            "cameras": {key: column.shape for key, column in dataset.cameras.items()},
        },
        "nodes": [node_figures(node) for node in nodes_of(ranks)],
        "ranks": [asdict(rank) for rank in ranks],
    }


def lines_of(record: dict[str, Any]) -> list[str]:
    """Return a table with a row per node, and what its columns mean."""
    rows = [["node", "ranks", *(title for _, title, _ in _SHOWN), "MB, budget"]]
    for number, node in enumerate(record["nodes"]):
        cells = [form.format(node[name]) for name, _, form in _SHOWN]
        memory = f"{node['peak_bytes'] / 1e6:.0f}, {node['budget_bytes'] / 1e6:.0f}"
        rows.append([str(number), str(node["ranks"]), *cells, memory])
    head = f"{record['source']}: {record['dataset']['name']}, {record['mode']}"
    return [
        head,
        *table_lines(rows, first_number=0),
        "bytes, requests, CPU s: per sample. amplified: bytes brought per byte of a new sample's "
        "frames in the\ndataset. hits: frames that were decoded already. others: cores that other "
        "processes used.\nMB: most resident memory.",
    ]
