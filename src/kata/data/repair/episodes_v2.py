"""Repairs of meta/episodes.jsonl: one line per episode, with the length that its files have."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kata.data.check.findings import episodes_text
from kata.data.format.info import Info
from kata.data.format.json_lines import json_lines
from kata.data.format.read import read_episode_table
from kata.data.format.selection import drop_absent_cameras
from kata.data.repair.working_copy import WorkingCopy
from kata.data.storage.store import LocalStore, local_file
from kata.data.video.packet_index import open_index
from kata.errors import DataError

EPISODES_V2, STATS_V2 = "meta/episodes.jsonl", "meta/episodes_stats.jsonl"


def repair_episodes_v2(copy: WorkingCopy, info: Info) -> None:
    """Remove lines that stand twice, and correct the lengths on which table and videos agree.

    Raises:
        DataError: The lines cannot be read.
    """
    rows = json_lines(copy.root / EPISODES_V2, ("episode_index", "length"))
    single = _single(copy, rows)
    if len(single) != len(rows):
        copy.write_lines(EPISODES_V2, single)
    lengths = _true_lengths(copy, info)
    if lengths:
        fixed = [
            row | {"length": lengths.get(int(row["episode_index"]), row["length"])}
            for row in single
        ]
        copy.write_lines(EPISODES_V2, fixed)
        copy.changed(
            "episode table",
            f"length is the number of rows and frames: {episodes_text(list(lengths))}",
        )


def _single(copy: WorkingCopy, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return each line once; two lines that differ name an episode twice, and both stay."""
    found: dict[str, dict[str, Any]] = {}
    twice: list[int] = []
    for row in rows:
        text = json.dumps(row, sort_keys=True)
        if text in found:
            twice.append(int(row["episode_index"]))
        found.setdefault(text, row)
    if twice:
        copy.changed(
            "episode table",
            f"lines that stood twice are there once: {episodes_text(twice)}",
        )
    return list(found.values())


def _true_lengths(copy: WorkingCopy, info: Info) -> dict[int, int]:
    """Return the lengths that every file of an episode has, where the metadata have another."""
    whole = read_episode_table(copy.root, info, lambda _: None, [])
    layout, _ = drop_absent_cameras(LocalStore(copy.root), info, whole, whole)
    lengths: dict[int, int] = {}
    for position, (episode, claimed) in enumerate(
        zip(layout.index.tolist(), layout.length.tolist(), strict=True)
    ):
        path = copy.root / layout.data.files[layout.data.file[position]]
        rows = _rows(path)
        if rows is None or rows == claimed:
            continue
        frames = {
            key: _frames(copy.root / span.files[span.file[position]])
            for key, span in layout.videos.items()
        }  # fmt: skip
        if set(frames.values()) <= {rows} and _counts_up(path, rows):
            lengths[episode] = rows
            continue
        said = ", ".join(f"'{key}' {found} frames" for key, found in frames.items())
        copy.leave(
            "episode table",
            f"episode {episode}: its metadata say {claimed} frames, its table has {rows} rows, "
            f"{said or 'which frame_index does not count'}",
            f"--exclude=[{episode}] leaves it out",
        )
    return lengths


def _rows(path: Path) -> int | None:
    try:
        return pq.read_metadata(path).num_rows
    except (pa.ArrowException, UnicodeDecodeError, OSError):
        return None


def _frames(path: Path) -> int | None:
    try:
        return len(open_index(local_file(path)))
    except (DataError, FileNotFoundError):
        return None


def _counts_up(path: Path, rows: int) -> bool:
    """Return whether frame_index, where there is one, counts every row."""
    if "frame_index" not in pq.read_schema(path).names:
        return True
    return np.array_equal(
        pq.read_table(path, columns=["frame_index"])["frame_index"].to_numpy(), np.arange(rows)
    )
