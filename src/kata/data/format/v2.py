"""The episode table of formats v2.0 and v2.1: JSON lines; one file per episode and camera."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from kata.data.arrays import Int64
from kata.data.format.episode_table import EpisodeTable, Fetch, Span, TaskLists
from kata.data.format.info import V2_PATHS, Info, file_name
from kata.data.format.json_lines import json_lines


def read_v2(root: Path, info: Info, fetch: Fetch, notes: list[str]) -> EpisodeTable:
    """Read the episode table from meta/episodes.jsonl, ordered by episode index."""
    rows = sorted(
        json_lines(root / "meta" / "episodes.jsonl", ("episode_index", "length")), key=_number
    )
    index = np.array([row["episode_index"] for row in rows], dtype=np.int64)
    numbers, zeros = np.arange(len(rows), dtype=np.int64), np.zeros(len(rows), dtype=np.int64)

    def span(template: str, usual: str, key: str) -> Span:
        names = _names(info, template, index, key)
        if template != usual and rows:
            names = _really(root, fetch, notes, names, _names(info, usual, index, key))
        return Span(tuple(names), numbers, zeros)

    cameras = [key for key, column in info.columns.items() if column.dtype == "video"]
    return EpisodeTable(
        index=index,
        length=np.array([row["length"] for row in rows], dtype=np.int64),
        tasks=TaskLists.of(row.get("tasks") or () for row in rows),
        data=span(info.data_path, V2_PATHS[0], ""),
        videos={key: span(info.video_path, V2_PATHS[1], key) for key in cameras},
    )


def _names(info: Info, template: str, index: Int64, key: str) -> list[str]:
    return [
        file_name(
            template,
            episode_chunk=int(e) // info.chunks_size,
            chunk_index=int(e) // info.chunks_size,
            episode_index=int(e),
            video_key=key,
        )
        for e in index
    ]


def _really(
    root: Path, fetch: Fetch, notes: list[str], declared: list[str], usual: list[str]
) -> list[str]:
    """Return the names under which files exist.

    Some datasets declare a template that their files do not follow.
    """
    # The last episode distinguishes the two: the first one often has the same name under both.
    fetch([declared[-1], usual[-1]])
    as_declared = sum((root / name).is_file() for name in declared)
    as_usual = sum((root / name).is_file() for name in usual)
    if as_usual <= as_declared:
        return declared
    notes.append(f"files lie as '{usual[-1]}', not as info.json says ('{declared[-1]}')")
    return usual


def _number(row: dict[str, Any]) -> int:
    return int(row["episode_index"])
