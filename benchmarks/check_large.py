"""Measure how long `kata data check` takes for many episodes.

The script makes a dataset of links to one episode's files, and checks it.

    python benchmarks/check_large.py [--folder=<scratch folder>] [--episodes=10000] [--frames=300]
    [--version=v2.1]
        [--recording=true]

v2.1 is the harder one: a table and two videos per episode. v3.0 has fifty episodes in a file.
Prints one line of JSON: episodes, frames, files, wall and CPU seconds of the check, and the largest
memory of the process.
"""

from __future__ import annotations

import json
import os
import resource
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kata.config import parse_flags, plain
from kata.data.check import check_dataset
from kata.data.commands.options import SAMPLED_FRAMES
from kata.data.format.source import locate
from kata.data.video.encoder import VideoEncoder, VideoOptions
from kata.log import counting

FPS, SIZE, JOINTS, PER_FILE = 30, 64, 14, 50
CAMERAS = ("observation.images.top", "observation.images.wrist")


def main() -> None:
    options: dict[str, Any] = {"folder": None, "episodes": 10_000, "frames": 300, "version": "v2.1"}
    options |= {"recording": False}
    options |= plain(parse_flags(sys.argv[1:]))
    with tempfile.TemporaryDirectory(dir=options["folder"]) as scratch:
        root = Path(scratch) / "large"
        make(root, options["episodes"], options["frames"], options["version"] == "v3.0")
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        sampled = SAMPLED_FRAMES if options["recording"] else None
        report = check_dataset(
            locate("large", root, None), sampled_frames=sampled, counting=counting
        )
        wall_s, cpu_s = time.perf_counter() - began_s, time.process_time() - began_cpu_s
    print(report.text(3), file=sys.stderr)
    peak_gib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2
    figures = {"wall_s": round(wall_s, 1), "cpu_s": round(cpu_s, 1), "peak_gib": round(peak_gib, 2)}
    print(
        json.dumps(
            {
                "version": options["version"],
                "recording": options["recording"],
                **report.seen,
                **figures,
                "problems": len(report.problems),
            }
        )
    )


def make(root: Path, episodes: int, frames: int, many_per_file: bool) -> None:
    """A dataset whose video files are hard links to one file; tables are written in full."""
    per_file = PER_FILE if many_per_file else 1
    assert episodes % per_file == 0, f"a multiple of {per_file} episodes"
    (root / "meta").mkdir(parents=True)
    video = root / "video.mp4"
    noise = np.random.default_rng(0).integers(0, 255, (16, SIZE, SIZE, 3), dtype=np.uint8)
    options = VideoOptions(codec="h264", gop=2)
    with VideoEncoder(video, fps=FPS, height=SIZE, width=SIZE, options=options) as encoder:
        for number in range(frames * per_file):
            encoder.add(noise[number % len(noise)])
    rows: list[dict[str, Any]] = []
    for file in range(episodes // per_file):
        first = file * per_file
        data, videos = places(file, many_per_file)
        for name in (data, *videos):
            (root / name).parent.mkdir(parents=True, exist_ok=True)
        tables = [episode(e, frames) for e in range(first, first + per_file)]
        pq.write_table(pa.concat_tables(tables), root / data, row_group_size=frames)
        for name in videos:
            os.link(video, root / name)
        rows += [row(e, frames, file, e - first) for e in range(first, first + per_file)]
    video.unlink()
    write_metadata(root, rows, episodes, frames, many_per_file)


def places(file: int, many_per_file: bool) -> tuple[str, list[str]]:
    chunk = f"chunk-{file // 1000:03d}"
    if many_per_file:
        name = f"{chunk}/file-{file % 1000:03d}"
        return f"data/{name}.parquet", [f"videos/{key}/{name}.mp4" for key in CAMERAS]
    name = f"episode_{file:06d}"
    return f"data/{chunk}/{name}.parquet", [f"videos/{chunk}/{key}/{name}.mp4" for key in CAMERAS]


def episode(number: int, frames: int) -> pa.Table:
    frame = np.arange(frames)
    # A random walk that the state follows two frames later: the rules of recording measure it in
    # full.
    steps = np.random.default_rng(number).normal(size=(frames + 2, JOINTS))
    walk = np.cumsum(steps, axis=0).astype(np.float32)
    values = [walk[:-2].reshape(-1), walk[2:].reshape(-1)]
    vectors = [pa.FixedSizeListArray.from_arrays(pa.array(each), JOINTS) for each in values]
    return pa.table(
        {
            "observation.state": vectors[0],
            "action": vectors[1],
            "timestamp": (frame / FPS).astype(np.float32),
            "frame_index": frame,
            "episode_index": np.full(frames, number),
            "index": number * frames + frame,
            "task_index": np.zeros(frames, np.int64),
        }
    )


def row(number: int, frames: int, file: int, place: int) -> dict[str, Any]:
    chunk, name = divmod(file, 1000)
    found: dict[str, Any] = {"episode_index": number, "tasks": ["fold"], "length": frames}
    found |= {"data/chunk_index": chunk, "data/file_index": name}
    found |= {"dataset_from_index": number * frames, "dataset_to_index": (number + 1) * frames}
    for key in CAMERAS:
        found |= {f"videos/{key}/chunk_index": chunk, f"videos/{key}/file_index": name}
        found |= {
            f"videos/{key}/{edge}_timestamp": (place + n) * frames / FPS
            for n, edge in enumerate(("from", "to"))
        }
    return found


def write_metadata(
    root: Path, rows: list[dict[str, Any]], episodes: int, frames: int, many_per_file: bool
) -> None:
    features: dict[str, Any] = {
        key: {"dtype": "float32", "shape": [JOINTS], "names": None}
        for key in ("observation.state", "action")
    }
    features |= {
        key: {"dtype": "video", "shape": [SIZE, SIZE, 3], "names": ["height", "width", "channels"]}
        for key in CAMERAS
    }
    for key in ("timestamp", "frame_index", "episode_index", "index", "task_index"):
        features[key] = {
            "dtype": "float32" if key == "timestamp" else "int64",
            "shape": [1],
            "names": None,
        }
    info = {
        "codebase_version": "v3.0" if many_per_file else "v2.1",
        "fps": FPS,
        "features": features,
    }
    info |= {"total_episodes": episodes, "total_frames": episodes * frames, "total_tasks": 1}
    (root / "meta/info.json").write_text(json.dumps(info))
    if many_per_file:
        (root / "meta/episodes/chunk-000").mkdir(parents=True)
        pq.write_table(
            pa.Table.from_pylist(rows), root / "meta/episodes/chunk-000/file-000.parquet"
        )
        pq.write_table(pa.table({"task_index": [0], "task": ["fold"]}), root / "meta/tasks.parquet")
        return
    lines = [
        json.dumps({key: each[key] for key in ("episode_index", "tasks", "length")})
        for each in rows
    ]
    (root / "meta/episodes.jsonl").write_text("\n".join(lines))
    (root / "meta/tasks.jsonl").write_text(json.dumps({"task_index": 0, "task": "fold"}))


if __name__ == "__main__":
    main()
