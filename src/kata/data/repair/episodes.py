"""Repairs of the episodes: those without frames or files go, the others are numbered from 0."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from kata.data.arrays import Int64, ranges
from kata.data.check.findings import numbers_text
from kata.data.format.episode_table import EpisodeTable, Span
from kata.data.format.info import Info, file_name, read_info
from kata.data.format.json_lines import json_lines
from kata.data.format.read import read_episode_table
from kata.data.format.selection import drop_absent_cameras
from kata.data.repair.episodes_v2 import EPISODES_V2, STATS_V2, repair_episodes_v2
from kata.data.repair.episodes_v3 import read_episodes_v3, repair_episodes_v3, write_episodes_v3
from kata.data.repair.table_file import rewrite_table
from kata.data.repair.working_copy import WorkingCopy
from kata.data.storage.store import LocalStore
from kata.errors import ConfigError


def repair_episodes(copy: WorkingCopy) -> None:
    """Correct the episode metadata, leave out what no file backs, number the rest without holes.

    Raises:
        DataError: The metadata cannot be read.
    """
    info = read_info(copy.root)
    (repair_episodes_v3 if info.is_v3 else repair_episodes_v2)(copy, info)
    whole = read_episode_table(copy.root, info, lambda _: None, [])
    layout, _ = drop_absent_cameras(LocalStore(copy.root), info, whole, whole)
    keep = _kept(copy, info, layout)
    if len(keep) == len(whole.index) and np.array_equal(whole.index, np.arange(len(keep))):
        return
    if not np.array_equal(
        np.lexsort((layout.data.first[keep], layout.data.file[keep])), np.arange(len(keep))
    ):
        copy.leave(
            "episode numbers",
            "the data files hold the episodes in another order than their numbers say",
        )
        return
    copy.is_shortened = len(keep) < len(whole.index)
    (_renumber_v3 if info.is_v3 else _renumber_v2)(copy, info, layout, keep)
    old, new = numbers_text(layout.index[keep].tolist()), numbers_text(range(len(keep)))
    if old != new:
        copy.changed("episode numbers", f"the episodes {old} are numbered {new} now")


def _kept(copy: WorkingCopy, info: Info, layout: EpisodeTable) -> Int64:
    """Return the positions of the episodes that have frames and all their files."""
    unwanted = _unwanted(copy, layout)
    empty = (layout.length < 1) & ~unwanted
    absent = np.zeros(len(layout.index), dtype=bool)
    spans = {"the table": layout.data, **layout.videos}
    for key, span in spans.items():
        here = np.array([(copy.root / name).is_file() for name in span.files], dtype=bool)
        if not here.any():
            _leave_absent(copy, key)
            absent[:] = False
            break
        absent |= ~here[span.file] & ~empty & ~unwanted
    if (absent | empty | unwanted).all():
        copy.leave("missing files", "no episode has frames and all its files", "download the rest")
        return np.arange(len(layout.index))
    for bad, why in (
        (unwanted, "as asked"),
        (empty, "without frames"),
        (absent, "whose files are absent"),
    ):
        if bad.any():
            said = numbers_text(layout.index[bad].tolist())
            copy.changed("episodes", f"left out {int(bad.sum())} of {len(bad)} {why}: {said}")
    return np.flatnonzero(~(absent | empty | unwanted))


def _unwanted(copy: WorkingCopy, layout: EpisodeTable) -> NDArray[np.bool_]:
    """Return which episodes the user leaves out."""
    wanted, unwanted = copy.answers.episodes, copy.answers.exclude
    unknown = np.setdiff1d([*unwanted, *(wanted or ())], layout.index)
    if unknown.size:
        raise ConfigError(
            f"there is no episode {numbers_text(unknown.astype(int).tolist())}",
            rule=f"episodes are numbered {layout.index.min()} to {layout.index.max()}",
            remedy="check --dataset.episodes and --dataset.exclude_episodes",
        )
    left_out = np.isin(layout.index, unwanted)
    return left_out if wanted is None else left_out | ~np.isin(layout.index, wanted)


def _leave_absent(copy: WorkingCopy, key: str) -> None:
    if key == "the table":
        copy.leave("missing files", "no data file is here", "download them")
        return
    copy.leave(
        "missing files",
        f"no video of '{key}' is here",
        "download the videos",
        f"--drop=[{key}] makes a copy without this camera",
    )


def _renumber_v2(copy: WorkingCopy, info: Info, layout: EpisodeTable, keep: Int64) -> None:
    """Names of files hold the numbers of their episodes."""
    dropped = np.setdiff1d(np.arange(len(layout.index)), keep)
    for span in layout.spans():
        for position in dropped.tolist():
            copy.remove(span.files[span.file[position]])
    for key, span in [("", layout.data), *layout.videos.items()]:
        template = info.video_path if key else info.data_path
        for new, position in enumerate(keep.tolist()):
            name = _name_v2(template, info, new, key)
            if name != span.files[span.file[position]]:
                copy.move(span.files[span.file[position]], name)
    numbers = {int(layout.index[position]): new for new, position in enumerate(keep.tolist())}
    _renumber_lines(copy, EPISODES_V2, numbers)
    if (copy.root / STATS_V2).is_file():
        _renumber_lines(copy, STATS_V2, numbers)


def _name_v2(template: str, info: Info, episode: int, key: str) -> str:
    chunk = episode // info.chunks_size
    return file_name(
        template, episode_chunk=chunk, chunk_index=chunk, episode_index=episode, video_key=key
    )


def _renumber_lines(copy: WorkingCopy, name: str, numbers: Mapping[int, int]) -> None:
    rows = [
        row
        for row in json_lines(copy.root / name, ("episode_index",))
        if int(row["episode_index"]) in numbers
    ]
    rows = [row | {"episode_index": numbers[int(row["episode_index"])]} for row in rows]
    copy.write_lines(name, sorted(rows, key=lambda row: row["episode_index"]))


def _renumber_v3(copy: WorkingCopy, info: Info, layout: EpisodeTable, keep: Int64) -> None:
    """Rows of data files are counted over the whole dataset; files keep their names."""
    dropped = np.setdiff1d(np.arange(len(layout.index)), keep)
    _remove_rows(copy, layout.data, layout.length, dropped, keep)
    for span in layout.videos.values():
        for number in np.setdiff1d(span.file[dropped], span.file[keep]).tolist():
            copy.remove(span.files[number])
    table = read_episodes_v3(copy.root).take(pa.array(keep))
    end = np.cumsum(layout.length[keep])
    columns = {
        "episode_index": np.arange(len(keep)),
        "dataset_from_index": end - layout.length[keep],
        "dataset_to_index": end,
    }
    write_episodes_v3(copy, table, columns)


def _remove_rows(copy: WorkingCopy, span: Span, length: Int64, dropped: Int64, keep: Int64) -> None:
    """Take the rows of dropped episodes out of the data files that are here."""
    for number in np.unique(span.file[dropped]).tolist():
        name = span.files[number]
        if not (copy.root / name).is_file():
            continue
        if number not in span.file[keep]:
            copy.remove(name)
            continue
        here = dropped[span.file[dropped] == number]
        rows = pq.read_metadata(copy.root / name).num_rows
        mask = np.ones(rows, dtype=bool)
        claimed = ranges(span.first[here], length[here])
        mask[claimed[claimed < rows]] = False
        if not mask.all():
            rewrite_table(copy, name, {}, mask)
