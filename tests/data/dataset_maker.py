"""Small datasets for tests, written with pyarrow and PyAV: kata's own writer is no judge of its
reader.
"""

from __future__ import annotations

import io
import json
import os
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

from kata.data.counters import CounterCollector
from kata.data.video.decoder import Decoder, Gop
from kata.data.video.packet_index import FrameIndex

FPS = 10
HEIGHT, WIDTH = 32, 48
TASKS = ["pick", "place"]
CAMERA = "observation.images.top"
SHARED = Path(os.environ.get("KATA_SHARED_DATA", Path(__file__).parents[3] / "shared" / "data"))
GOLDEN = Path(__file__).parents[1] / "golden" / "data"


def level(episode: int, frame: int) -> int:
    """The brightness of a frame, by which a test tells that it is the right one."""
    return 20 + (37 * episode + 9 * frame) % 210


def picture(episode: int, frame: int) -> np.ndarray:
    return np.full((HEIGHT, WIDTH, 3), level(episode, frame), dtype=np.uint8)


def decoded(index: FrameIndex, frames: np.ndarray) -> dict[int, np.ndarray]:
    """Frames of one group of pictures by number."""
    decoder = Decoder(CounterCollector())
    found: dict[int, np.ndarray] = {}
    for place, one in decoder.pictures(Gop(index, index.file.stamp(), "c", frames, frames)):
        decoder.to_rgb(
            one,
            found.setdefault(
                int(frames[place]), np.empty((index.height, index.width, 3), np.uint8)
            ),
        )
    return found


def write_video(
    path: Path,
    pictures: Sequence[np.ndarray],
    *,
    b_frames: int = 0,
    gop: int = 4,
    first_pts: int = 0,
    rate: int = FPS,
    gap_after: int = 10**9,
    open_gop: bool = False,
) -> None:
    """An h264 file with its frame table in front of the data."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with av.open(str(path), "w", options={"movflags": "faststart"}) as container:
        stream: Any = container.add_stream("libx264", rate=rate)
        stream.width, stream.height, stream.pix_fmt = (
            pictures[0].shape[1],
            pictures[0].shape[0],
            "yuv420p",
        )
        stream.options = {
            "crf": "10",
            "g": str(gop),
            "bf": str(b_frames),
            "sc_threshold": "0",
            "threads": "1",
        }
        stream.options |= {"x264-params": "open-gop=1"} if open_gop else {}
        stream.time_base = stream.codec_context.time_base = Fraction(1, rate)
        for number, pixels in enumerate(pictures):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts = first_pts + number + (number > gap_after)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))


def png(pixels: np.ndarray) -> dict[str, Any]:
    data = io.BytesIO()
    Image.fromarray(pixels).save(data, "PNG")
    return {"bytes": data.getvalue(), "path": "frame.png"}


def features(camera: str, *, extra: dict[str, Any] | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {
        "observation.state": {
            "dtype": "float32",
            "shape": [3],
            "names": {"motors": ["a", "b", "c"]},
        },
        "action": {"dtype": "float64", "shape": [2], "names": [["x", "y"]]},
        "next.reward": {"dtype": "float32", "shape": [1], "names": None},
        "next.done": {"dtype": "bool", "shape": [1], "names": None},
        "grid": {"dtype": "float32", "shape": [2, 3], "names": None},
    }
    if camera:
        shape = [HEIGHT, WIDTH, 3]
        found[CAMERA] = {"dtype": camera, "shape": shape, "names": ["height", "width", "channels"]}
    for key in ("timestamp", "frame_index", "episode_index", "index", "task_index"):
        found[key] = {
            "dtype": "float32" if key == "timestamp" else "int64",
            "shape": [1],
            "names": None,
        }
    return found | (extra or {})


def rows(episode: int, length: int, first: int, camera: str) -> dict[str, Any]:
    """One episode's columns; every number tells episode and frame."""
    frame = np.arange(length)
    base = 100.0 * episode + frame
    columns: dict[str, Any] = {
        "observation.state": [[b, b + 0.25, b + 0.5] for b in base],
        "action": [[b, -b] for b in base],
        "next.reward": base.astype(np.float32),
        "next.done": frame == length - 1,
        "grid": [[[b, b + 1, b + 2], [b + 3, b + 4, b + 5]] for b in base],
        "timestamp": (frame / FPS).astype(np.float32),
        "frame_index": frame,
        "episode_index": np.full(length, episode),
        "index": first + frame,
        "task_index": np.full(length, episode % 2),
    }
    if camera == "image":
        columns[CAMERA] = [png(picture(episode, k)) for k in range(length)]
    return columns


def make(
    root: Path,
    *,
    version: str = "v3.0",
    lengths: Sequence[int] = (5, 7, 4),
    camera: str = "video",
    per_file: int = 2,
    b_frames: int = 0,
    extra: dict[str, Any] | None = None,
) -> Path:
    """A dataset with a state, action, scalar, bool, matrix and perhaps a camera ('video',
    'image' or '').
    """
    first = np.cumsum([0, *lengths])
    tables = [rows(e, n, int(first[e]), camera) for e, n in enumerate(lengths)]
    info = {
        "codebase_version": version, "fps": FPS, "robot_type": "made", "total_episodes": len(lengths),  # noqa: E501
        "total_frames": int(first[-1]), "total_tasks": 2, "chunks_size": 1000,
        "features": features(camera, extra=extra),
    }  # fmt: skip
    write_json(root / "meta" / "info.json", info)
    per_file = per_file if version == "v3.0" else 1
    groups = [list(range(len(lengths)))[i : i + per_file] for i in range(0, len(lengths), per_file)]
    for number, group in enumerate(groups):
        data, video = (_name(version, number, kind) for kind in ("data", "video"))
        merged = pa.concat_tables([pa.table(tables[e]) for e in group])
        (root / data).parent.mkdir(parents=True, exist_ok=True)
        pq.write_table(merged, root / data)
        if camera == "video":
            write_video(
                root / video,
                [picture(e, k) for e in group for k in range(lengths[e])],
                b_frames=b_frames,
            )
    (_meta_v3 if version == "v3.0" else _meta_v2)(root, lengths, groups, camera)
    return root


def _name(version: str, number: int, kind: str) -> str:
    if version == "v3.0":
        return (
            f"data/chunk-000/file-{number:03d}.parquet"
            if kind == "data"
            else f"videos/{CAMERA}/chunk-000/file-{number:03d}.mp4"
        )
    folder = "data/chunk-000" if kind == "data" else f"videos/chunk-000/{CAMERA}"
    return f"{folder}/episode_{number:06d}.{'parquet' if kind == 'data' else 'mp4'}"


def _meta_v3(root: Path, lengths: Sequence[int], groups: list[list[int]], camera: str) -> None:
    first = np.cumsum([0, *lengths])
    table: list[dict[str, Any]] = []
    for number, group in enumerate(groups):
        for episode in group:
            row: dict[str, Any] = {
                "episode_index": episode, "tasks": [TASKS[episode % 2]], "length": lengths[episode],
                "data/chunk_index": 0, "data/file_index": number,
                "dataset_from_index": int(first[episode]), "dataset_to_index": int(first[episode + 1]),  # noqa: E501
            }  # fmt: skip
            if camera == "video":
                start = int(first[episode] - first[group[0]])
                row |= {f"videos/{CAMERA}/chunk_index": 0, f"videos/{CAMERA}/file_index": number}
                row |= {
                    f"videos/{CAMERA}/from_timestamp": start / FPS,
                    f"videos/{CAMERA}/to_timestamp": (start + lengths[episode]) / FPS,
                }
            table.append(row)
    (root / "meta/episodes/chunk-000").mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.Table.from_pylist(table), root / "meta/episodes/chunk-000/file-000.parquet")
    pq.write_table(pa.table({"task_index": [0, 1], "task": TASKS}), root / "meta/tasks.parquet")


def _meta_v2(root: Path, lengths: Sequence[int], groups: list[list[int]], camera: str) -> None:
    del groups, camera
    episodes = [
        {"episode_index": e, "tasks": [TASKS[e % 2]], "length": n} for e, n in enumerate(lengths)
    ]
    (root / "meta/episodes.jsonl").write_text("\n".join(map(json.dumps, episodes)) + "\n")
    tasks = [{"task_index": number, "task": task} for number, task in enumerate(TASKS)]
    (root / "meta/tasks.jsonl").write_text("\n".join(map(json.dumps, tasks)) + "\n")


def write_json(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))


def change_info(root: Path, **fields: Any) -> None:
    """Set fields of info.json; None removes one."""
    path = root / "meta" / "info.json"
    info = json.loads(path.read_text()) | fields
    write_json(path, {key: value for key, value in info.items() if value is not None})


def change_table(path: Path, change: Any) -> None:
    """Rewrite a parquet file after `change(dict of columns)` has altered it in place."""
    columns = pq.read_table(path).to_pydict()
    change(columns)
    pq.write_table(pa.table(columns), path)


def cut(path: Path, share: float) -> None:
    """Keep only the first part of a file."""
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])
