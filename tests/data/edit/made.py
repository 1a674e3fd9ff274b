"""Datasets that are edited, and what is compared of them."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from kata.data import Reader, open_dataset
from kata.data.edit.assemble import Rules
from kata.data.edit.edit_source import Part, open_part
from kata.data.format.source import Source
from tests.data.dataset_maker import CAMERA, picture, write_video

RENUMBERED = ("index", "episode_index", "task_index")
LENGTHS = (5, 7, 4)


def part(root: Path, **options: Any) -> Part:
    return open_part(Source("local/x", root), **options)


def done(*_: object) -> None:
    """Takes progress and sentences."""


def items(root: Path, episodes: Sequence[int] | None = None) -> dict[str, Any]:
    """Every value and frame of a dataset by key; what an edit renumbers is left out."""
    data = open_dataset("local/x", root=root, episodes=episodes)
    with Reader(data, {}) as reader:
        batch = reader.read(np.arange(data.num_frames))
    return {key: np.asarray(value) for key, value in batch.items() if key not in RENUMBERED}


def assert_equal(found: dict[str, Any], expected: dict[str, Any]) -> None:
    assert found.keys() == expected.keys()
    for key, value in expected.items():
        np.testing.assert_array_equal(found[key], value, err_msg=key)


def joined(*parts: dict[str, Any]) -> dict[str, Any]:
    return {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}


def assert_numbered(root: Path) -> None:
    """What LeRobot relies on: rows in order, an episode per table row, times from 0, tasks by
    number.
    """
    data = open_dataset("local/x", root=root)
    lengths = data.episodes.length
    assert data.column("index").tolist() == list(range(data.num_frames))
    assert (
        data.column("episode_index").tolist()
        == np.repeat(np.arange(len(lengths)), lengths).tolist()
    )
    assert data.column("frame_index").tolist() == [k for n in lengths for k in range(n)]
    np.testing.assert_array_equal(
        data.column("timestamp"), (data.column("frame_index") / data.fps).astype(np.float32)
    )
    rows = episode_rows(root)
    assert [row["episode_index"] for row in rows] == list(range(len(rows)))
    assert rows[-1]["dataset_to_index"] == data.num_frames
    number, sentence = data.column("task_index"), data.tasks
    for row in rows:
        used = number[row["dataset_from_index"] : row["dataset_to_index"]]
        assert sorted(row["tasks"]) == sorted({sentence[n] for n in used})
    found = info(root)
    assert (found["total_episodes"], found["total_frames"]) == (len(rows), data.num_frames)
    assert found["codebase_version"] == "v3.0"


def episode_rows(root: Path) -> list[dict[str, Any]]:
    files = sorted((root / "meta/episodes").glob("*/*.parquet"))
    return [row for path in files for row in pq.read_table(path).to_pylist()]


def info(root: Path) -> dict[str, Any]:
    return json.loads((root / "meta/info.json").read_text())


def videos(root: Path, key: str = CAMERA) -> list[Path]:
    return sorted((root / "videos" / key).glob("*/*.mp4"))


def noisy(root: Path, per_file: int = 2, **encoding: Any) -> Path:
    """The videos of a made v3.0 dataset encoded in another way, with pictures that no two frames
    share.
    """
    for number, path in enumerate(videos(root)):
        episodes = range(len(LENGTHS))[number * per_file : (number + 1) * per_file]
        write_video(path, [picture(e, k) for e in episodes for k in range(LENGTHS[e])], **encoding)
    return root


RULES = Rules()


def picture_of(frame: int) -> np.ndarray:
    return picture(0, frame)
