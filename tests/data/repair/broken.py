"""Datasets of which check finds nothing, and ways to break them that a repair undoes."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kata.cli import main
from tests.data.dataset_maker import (
    CAMERA,
    change_info,
    change_table,
    picture,
    write_json,
    write_video,
)

LENGTHS = (5, 7, 4)
TABLE_V3, EPISODES_V3 = (
    "data/chunk-000/file-001.parquet",
    "meta/episodes/chunk-000/file-000.parquet",
)
VIDEO_V3 = f"videos/{CAMERA}/chunk-000/file-001.mp4"
TABLE_V2 = "data/chunk-000/episode_000002.parquet"

Fault = Callable[[Path], Any]


def tree_hash(root: Path) -> str:
    """Names, contents and times of all files."""
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*")):
        digest.update(str(path.relative_to(root)).encode())
        if path.is_file():
            digest.update(path.read_bytes() + str(path.stat().st_mtime_ns).encode())
    return digest.hexdigest()


def repair(root: Path, out: Path, *more: str) -> int:
    """Repair, and see that the dataset stays what it was; returns the exit status."""
    before = tree_hash(root)
    status = main(["data", "repair", str(root), f"--out={out}", *more])
    assert tree_hash(root) == before
    return status


def table(name: str, **changes: Any) -> Fault:
    """Columns of a parquet file get other values."""
    return lambda root: change_table(root / name, lambda columns: columns.update(changes))


def info(**fields: Any) -> Fault:
    return lambda root: change_info(root, **fields)


def feature(key: str, **fields: Any) -> Fault:
    """The entry of a feature in info.json gets other fields."""

    def harm(root: Path) -> None:
        features = json.loads((root / "meta/info.json").read_text())["features"]
        features[key] |= fields
        change_info(root, features=features)

    return harm


def lines(name: str, change: Callable[[list[dict[str, Any]]], Any]) -> Fault:
    """A file of JSON lines gets other lines; the change works in place."""

    def harm(root: Path) -> None:
        rows = [json.loads(line) for line in (root / name).read_text(encoding="utf-8").splitlines()]
        change(rows)
        (root / name).write_text(
            "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        )

    return harm


def gone(*names: str) -> Fault:
    return lambda root: [(root / name).unlink() for name in names]


def moved(old: str, new: str) -> Fault:
    return lambda root: (root / old).rename(root / new)


def encoded(name: str, text: str, encoding: str) -> Fault:
    """A word of a text file is replaced, and the file written in another encoding."""

    def harm(root: Path) -> None:
        found = (root / name).read_text(encoding="utf-8").replace("pick", text)
        (root / name).write_bytes(found.encode(encoding))

    return harm


def filmed(name: str, numbers: list[tuple[int, int]], **how: Any) -> Fault:
    """A video is made again from frames (episode, frame), with other times."""
    return lambda root: write_video(root / name, [picture(*each) for each in numbers], **how)


def stats(change: Callable[[dict[str, Any]], Any]) -> Fault:
    def harm(root: Path) -> None:
        found = json.loads((root / "meta/stats.json").read_text())
        change(found)
        write_json(root / "meta/stats.json", found)

    return harm


def plain_tasks(root: Path) -> None:
    """The sentences in the other order, without the note of pandas."""
    pq.write_table(
        pa.table({"task_index": [1, 0], "task": ["place", "pick"]}), root / "meta/tasks.parquet"
    )


def without_columns(name: str, *prefixes: str) -> Fault:
    def harm(root: Path) -> None:
        found = pq.read_table(root / name)
        pq.write_table(
            found.drop_columns([n for n in found.column_names if n.startswith(prefixes)]),
            root / name,
        )

    return harm


def marked(root: Path) -> None:
    """A byte order mark, as editors of Windows write it."""
    path = root / "meta/info.json"
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())


def shuffled(root: Path) -> None:
    """The rows of the episode table in another order."""
    pq.write_table(pq.read_table(root / EPISODES_V3).take([2, 0, 1]), root / EPISODES_V3)


def undeclared(root: Path) -> None:
    """A column in every data file that info.json does not name."""
    table("data/chunk-000/file-000.parquet", force=[1.0] * 12)(root)
    table(TABLE_V3, force=[1.0] * 4)(root)


def unfilmed(root: Path) -> None:
    """No video of the camera is here."""
    shutil.rmtree(root / "videos")
