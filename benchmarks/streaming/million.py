"""Memory and time of the index, the order and the plan of a million episodes, without their files.

    python -m benchmarks.streaming.million [--episodes=1000000] [--out=<file>]

An episode table of format v3.0 with two cameras is written and read; the rest is arithmetic, as a
run does it up to its first batch: anchors, order, plan, and the rows of the first batch. Memory is
resident, its peak during a step (`peak_mb`) and what stays after it (`stays_mb`), beyond that at
the start. No video is indexed: `kata data index` has about two bytes per frame on the disk.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.streaming.latency import PeakMemory
from kata.data import anchor_rows
from kata.data.dataset.windows import Episodes, window_rows
from kata.data.format.info import read_info
from kata.data.format.read import read_episode_table
from kata.data.frames.gop_rows import GroupRows
from kata.data.frames.next_use import NextUse
from kata.data.loader.batches import FORESEEN
from kata.data.sampling.clip_order import ClipOrder, Clips
from kata.data.sampling.permutation import PermutationOrder

T = TypeVar("T")

CAMERAS = ("observation.images.front", "observation.images.wrist")
PER_FILE = 500
BATCH = 64


def write_table(root: Path, episodes: int, length: int) -> None:
    """Write meta/info.json and the episode table."""
    numbers = {"dtype": "int64", "shape": [1], "names": None}
    features: dict[str, Any] = dict.fromkeys(("index", "episode_index"), numbers)
    features |= dict.fromkeys(("frame_index", "task_index"), numbers)
    features |= {"timestamp": numbers | {"dtype": "float32"}}
    for camera in CAMERAS:
        features[camera] = {
            "dtype": "video",
            "shape": [480, 640, 3],
            "names": ["height", "width", "channels"],
        }
    info = {
        "codebase_version": "v3.0",
        "fps": 30,
        "features": features,
        "total_episodes": episodes,
        "total_frames": episodes * length,
        "total_tasks": 1,
        "chunks_size": 1000,
        "data_path": "data/chunk-{chunk_index:03d}/file-{file_index:03d}.parquet",
        "video_path": "videos/{video_key}/chunk-{chunk_index:03d}/file-{file_index:03d}.mp4",
    }
    (root / "meta/episodes/chunk-000").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    pq.write_table(pa.table({"task_index": [0], "task": ["task 0"]}), root / "meta/tasks.parquet")
    episode = np.arange(episodes)
    file = episode // PER_FILE
    table: dict[str, Any] = {
        "episode_index": episode,
        "tasks": pa.ListArray.from_arrays(
            pa.array(np.arange(episodes + 1), pa.int32()),
            pa.DictionaryArray.from_arrays(np.zeros(episodes, np.int32), ["task 0"]).cast("string"),
        ),
        "length": np.full(episodes, length),
        "dataset_from_index": episode * length,
        "dataset_to_index": (episode + 1) * length,
        "data/chunk_index": file // 1000,
        "data/file_index": file % 1000,
    }
    for camera in CAMERAS:
        table[f"videos/{camera}/chunk_index"] = file // 1000
        table[f"videos/{camera}/file_index"] = file % 1000
        begin_s = episode % PER_FILE * length / 30
        table[f"videos/{camera}/from_timestamp"] = begin_s
        table[f"videos/{camera}/to_timestamp"] = begin_s + length / 30
    pq.write_table(pa.table(table), root / "meta/episodes/chunk-000/file-000.parquet")


def measure(args: argparse.Namespace, root: Path) -> dict[str, dict[str, float]]:
    """Take the steps of a start one after the other."""
    steps: dict[str, dict[str, float]] = {}
    live: list[object] = []

    def take(name: str, step: Callable[[], T]) -> T:
        began_s = time.perf_counter()
        with PeakMemory() as own:
            found = step()
            live.append(found)
        seconds = time.perf_counter() - began_s
        with PeakMemory() as after:
            pass
        stays_mb = (after.most - base) / 1e6
        peak_mb = max((own.most - base) / 1e6, stays_mb)
        steps[name] = {
            "s": round(seconds, 2),
            "peak_mb": round(peak_mb),
            "stays_mb": round(stays_mb),
        }
        print(name, steps[name], flush=True)
        return found

    with PeakMemory() as start:
        pass
    base = start.most
    table = take(
        "episode_table", lambda: read_episode_table(root, read_info(root), lambda _: None, [])
    )
    length = table.length
    episodes = Episodes(table.index, length, np.cumsum(length) - length, table.tasks)
    dataset: Any = SimpleNamespace(episodes=episodes, repo_id="synthetic")
    rows = take("anchors", lambda: anchor_rows(dataset))
    take("gop_rows", lambda: [GroupRows(table.videos[key], episodes) for key in CAMERAS])
    positions = np.arange(FORESEEN)
    full = take("full_order", lambda: PermutationOrder(len(rows), 1))
    anchors = take("full_order_at", lambda: rows[full.at(positions)])
    clips = take("clips", lambda: Clips(length, 2 * args.gop, args.gop))
    order = take("clip_order", lambda: ClipOrder(clips, 4000, 1))
    take("clip_order_at", lambda: rows[order.at(positions)])
    steps_of = np.repeat(np.arange(FORESEEN // BATCH), BATCH)
    take("plan", lambda: NextUse(window_rows(anchors, (-1, 0), episodes)[0], steps_of))
    return steps


def main() -> None:
    """Measure, and keep the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--episodes", type=int, default=1_000_000)
    parser.add_argument("--length", type=int, default=300)
    parser.add_argument("--gop", type=int, default=30)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        write_table(Path(folder), args.episodes, args.length)
        steps = measure(args, Path(folder))
    result = {
        "machine": {"cores": os.cpu_count(), "system": platform.platform()},
        "settings": {"episodes": args.episodes, "length": args.length, "gop": args.gop},
        "steps": steps,
        "total_s": round(sum(step["s"] for step in steps.values()), 2),
        "peak_mb": max(step["peak_mb"] for step in steps.values()),
    }
    print(json.dumps(result, indent=1))
    if args.out is not None:
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
