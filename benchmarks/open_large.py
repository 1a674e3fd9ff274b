"""Opening a large dataset: time and memory of the first and of a later process, up to the first
batch.

    python benchmarks/open_large.py make /scratch/large --frames 30000000     # about 4 GB
    python benchmarks/open_large.py measure /scratch/large --cache /scratch/cache

`make` writes a v3.0 dataset of episodes of 300 frames with a state and an action of 14 numbers each
and two sentences. `measure` opens it twice, each time in a new process, and prints JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

LENGTH, WIDTH, FILE_ROWS = 300, 14, 900_000


def make(root: Path, frames: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    count = frames // LENGTH
    per_file = FILE_ROWS // LENGTH
    features = {
        name: {"dtype": "float32", "shape": [WIDTH], "names": None}
        for name in ("observation.state", "action")
    }
    features |= {
        name: {"dtype": "float32" if name == "timestamp" else "int64", "shape": [1], "names": None}
        for name in ("timestamp", "frame_index", "episode_index", "index", "task_index")
    }
    info = {
        "codebase_version": "v3.0", "fps": 30, "features": features, "total_episodes": count,
        "total_frames": count * LENGTH, "total_tasks": 2, "chunks_size": 1000,
    }  # fmt: skip
    (root / "meta/episodes/chunk-000").mkdir(parents=True)
    (root / "data/chunk-000").mkdir(parents=True)
    (root / "meta/info.json").write_text(json.dumps(info))
    episode = np.arange(count)
    table = {
        "episode_index": episode, "tasks": [[f"task {e % 2}"] for e in episode], "length": np.full(count, LENGTH),  # noqa: E501
        "data/chunk_index": np.zeros(count, int), "data/file_index": episode // per_file,
        "dataset_from_index": episode * LENGTH, "dataset_to_index": (episode + 1) * LENGTH,
    }  # fmt: skip
    pq.write_table(pa.table(table), root / "meta/episodes/chunk-000/file-000.parquet")
    pq.write_table(
        pa.table({"task_index": [0, 1], "task": ["task 0", "task 1"]}), root / "meta/tasks.parquet"
    )
    rng = np.random.default_rng(0)
    for number, first in enumerate(range(0, count, per_file)):
        episodes = np.arange(first, min(first + per_file, count))
        rows = len(episodes) * LENGTH
        frame = np.tile(np.arange(LENGTH), len(episodes))
        columns = {
            name: pa.FixedSizeListArray.from_arrays(
                pa.array(rng.random(rows * WIDTH, dtype=np.float32)), WIDTH
            )
            for name in ("observation.state", "action")
        }
        columns |= {
            "timestamp": (frame / 30).astype(np.float32), "frame_index": frame,
            "episode_index": np.repeat(episodes, LENGTH), "index": first * LENGTH + np.arange(rows),
            "task_index": np.repeat(episodes % 2, LENGTH),
        }  # fmt: skip
        pq.write_table(
            pa.table(columns),
            root / f"data/chunk-000/file-{number:03d}.parquet",
            row_group_size=rows,
        )


def memory_mb() -> dict[str, int]:
    lines = dict(
        line.split(":")
        for line in Path("/proc/self/status").read_text().splitlines()
        if ":" in line
    )
    return {
        name: int(lines[name].split()[0]) // 1024
        for name in ("VmHWM", "VmRSS", "RssAnon", "RssFile")
    }


def open_once(root: Path) -> None:
    from kata.data import Batches, Order, Reader, anchor_rows, open_dataset

    before = memory_mb()
    marks = [(time.perf_counter(), time.process_time())]
    data = open_dataset("large", root=root)
    marks.append((time.perf_counter(), time.process_time()))
    reader = Reader(data, {"action": tuple(range(100))})
    marks.append((time.perf_counter(), time.process_time()))
    opened = memory_mb()
    rows = anchor_rows(data)
    with reader, Batches(reader, rows, Order(len(rows), 0), 64) as batches:
        batches.at(0)
        marks.append((time.perf_counter(), time.process_time()))
        batch_mb = memory_mb()
    steps = ("open_dataset", "reader", "first_batch")
    times = {
        step: {"wall_s": round(b[0] - a[0], 3), "cpu_s": round(b[1] - a[1], 3)}
        for step, a, b in zip(steps, marks, marks[1:], strict=False)
    }
    found = {"frames": data.num_frames, "episodes": len(data.episodes.index), **times}
    print(
        json.dumps(
            found | {"memory_mb": {"imported": before, "opened": opened, "after_a_batch": batch_mb}}
        )
    )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", choices=["make", "measure", "once"])
    parser.add_argument("root", type=Path)
    parser.add_argument("--frames", type=int, default=30_000_000)
    parser.add_argument("--cache", type=Path)
    given = parser.parse_args()
    if given.what == "make":
        make(given.root, given.frames)
    elif given.what == "once":
        open_once(given.root)
    else:
        environ = os.environ | ({"KATA_CACHE": str(given.cache)} if given.cache else {})
        for run in ("first", "second"):
            code = [sys.executable, __file__, "once", str(given.root)]
            found = subprocess.run(code, env=environ, check=True, capture_output=True, text=True)
            print(json.dumps({"process": run, **json.loads(found.stdout)}, indent=1))


if __name__ == "__main__":
    main()
