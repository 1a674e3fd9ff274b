"""One dataset that goes into a new one: its features as format v3.0 writes them, and where its
episodes lie.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from kata.data.arrays import Int64
from kata.data.dataset.columns import schema_names
from kata.data.dataset.dataset import Dataset, open_dataset
from kata.data.format.episode_table import EpisodeTable
from kata.data.format.info import CAMERA_NAMES, raw_info
from kata.data.format.json_lines import json_lines
from kata.data.format.read import read_episode_table
from kata.data.format.source import Source
from kata.data.format.v3 import read_episode_rows
from kata.data.stats.dataset_stats import episode_stats
from kata.errors import DataError, did_you_mean
from kata.spec import BOOKKEEPING, Column, Stats

SUBTASKS = "meta/subtasks.parquet"
_META = (
    "info.json",
    "stats.json",
    "tasks.parquet",
    "tasks.jsonl",
    "episodes.jsonl",
    "episodes_stats.jsonl",
)
_EPISODE_FIELDS = ("episode_index", "tasks", "length", "dataset_from_index", "dataset_to_index")
_EPISODE_PREFIXES = ("data/", "videos/", "stats/", "meta/")

_REWRITTEN = (
    "codebase_version",
    "fps",
    "features",
    "robot_type",
    "splits",
    "chunks_size",
    "data_path",
    "video_path",
)
"""Entries of info.json that a copy writes itself."""


@dataclass(frozen=True, eq=False)
class Part:
    """An opened dataset with all that a copy needs beyond what a reader does.

    features: entries of info.json without the bookkeeping columns, cameras as (H, W, C), all with
        names.
    columns: the same as columns; depth maps and language columns, which are not read but copied,
        included.
    layout: the chosen episodes, with the videos of depth maps. bytes: (E,) about what each takes in
        its files.
    unread: columns that a reader leaves out. rest: further fields of info.json.
    """

    dataset: Dataset
    features: dict[str, dict[str, Any]]
    columns: dict[str, Column]
    layout: EpisodeTable
    bytes: Int64
    unread: tuple[str, ...]
    rest: dict[str, Any]
    notes: list[str]

    @property
    def root(self) -> Path:
        """The dataset's folder."""
        return self.dataset.root

    @property
    def name(self) -> str:
        """Return its name in messages."""
        return str(self.root)

    def take(self, positions: Sequence[int]) -> Part:
        """Some of the episodes, by position, ascending."""
        chosen = np.asarray(positions, dtype=np.int64)
        subset, layout = self.dataset.subset(positions), self.layout.take(chosen)
        return replace(self, dataset=subset, layout=layout, bytes=self.bytes[chosen])

    def stored_stats(self, keys: Sequence[str]) -> dict[int, Stats]:
        """Statistics that the dataset brings, by episode index."""
        return dict(episode_stats(self.dataset, keys))

    def extras(self) -> pa.Table:
        """Return the columns of the episode table beyond the format, a row per chosen episode,
        and each one's 'row'.
        """
        if self.dataset.info.is_v3:
            table = read_episode_rows(self.root)
            names = [
                n
                for n in table.column_names
                if n not in _EPISODE_FIELDS and not n.startswith(_EPISODE_PREFIXES)
            ]
            index = (
                table["episode_index"].to_numpy()
                if "episode_index" in table.column_names
                else np.arange(len(table))
            )
        else:
            rows = json_lines(self.root / "meta" / "episodes.jsonl", ("episode_index",))
            named = dict.fromkeys(itertools.chain(*rows))
            names = [name for name in named if name not in _EPISODE_FIELDS]
            columns: dict[str, pa.Array] = {}
            for name in ("episode_index", *names):
                columns[name] = pa.array([row.get(name) for row in rows])
            table = pa.table(columns)
            index = np.array([row["episode_index"] for row in rows])
        order = np.argsort(index, kind="stable")
        rows_of = order[np.searchsorted(index[order], self.layout.index)]
        return (
            table.select(names)
            .append_column("row", pa.array(range(len(table)), pa.int64()))
            .take(pa.array(rows_of))
        )


def open_part(
    source: Source,
    *,
    episodes: Sequence[int] | str | None = None,
    exclude: Sequence[int] | None = None,
    drop: Sequence[str] = (),
) -> Part:
    """Open a dataset for copying.

    Args:
        source: where its files are.
        episodes: as in `open_dataset`.
        exclude: episode indices to leave out.
        drop: features to leave out.

    Raises:
        DataError: as `open_dataset`, and for features that can neither be copied nor are dropped.
    """
    dataset = open_dataset(
        source.repo_id,
        root=source.root,
        episodes=episodes,
        exclude_episodes=exclude,
        revision=source.revision,
    )
    raw = raw_info(dataset.root)
    declared: dict[str, Any] = raw["features"]
    _require_known(dataset, declared, drop)
    unread = _unread_columns(dataset, declared, drop)
    layout, size = _with_videos(source, dataset, unread)
    unread = _present(dataset, layout, unread)
    own = {
        key: c for key, c in dataset.columns.items() if key not in drop and key not in BOOKKEEPING
    }
    columns = {key: {**own, **unread}[key] for key in declared if key in own or key in unread}
    return Part(
        dataset,
        {key: _entry(declared[key], column) for key, column in columns.items()},
        columns,
        layout.without([key for key in layout.videos if key not in columns]),
        size,
        tuple(unread),
        _further_info(raw),
        _notes_beside(dataset, unread) + _left_behind(dataset.root, drop),
    )


def _require_known(dataset: Dataset, declared: Mapping[str, Any], drop: Sequence[str]) -> None:
    first = dataset.layout.data.files[dataset.layout.data.file[0]]
    undeclared = [name for name in schema_names(dataset.root / first) if name not in declared]
    for name in drop:
        if name not in declared and name not in undeclared:
            raise DataError(
                f"drop: {dataset.root} has no feature '{name}'",
                rule="a feature, or a column of the data files",
                remedy=did_you_mean(name, [*declared, *undeclared]),
            )
        if name in BOOKKEEPING:
            raise DataError(
                f"drop: '{name}'",
                rule="every dataset has this column",
                remedy="leave it out of --drop",
            )
    unknown = [name for name in undeclared if name not in drop and name not in BOOKKEEPING]
    if unknown:
        raise DataError(
            f"{dataset.root} has columns that info.json does not declare: {', '.join(unknown)}",
            rule="a column is declared with dtype and shape; LeRobot opens no other dataset",
            remedy="declare them in meta/info.json, or leave them out with "
            f"--drop=[{','.join(unknown)}]",
        )


def _is_unread(spec: Mapping[str, Any]) -> bool:
    return spec["dtype"] == "language" or is_depth(spec)


def is_depth(spec: Mapping[str, Any]) -> bool:
    """Return True if an entry of info.json describes depth maps; the mark has three places."""
    extra = [spec.get(place) or {} for place in ("info", "video_info")]
    return any(found.get("is_depth_map") or found.get("video.is_depth_map") for found in extra)


def _column(spec: Mapping[str, Any]) -> Column:
    return Column(str(spec["dtype"]), tuple(spec["shape"]) or (1,))


def _with_videos(
    source: Source, dataset: Dataset, unread: Mapping[str, Column]
) -> tuple[EpisodeTable, Int64]:
    """The dataset's layout with the videos of features that it does not read, and the bytes of
    its episodes.
    """
    videos = {key: column for key, column in unread.items() if column.dtype == "video"}
    info = replace(dataset.info, columns={**dataset.info.columns, **videos})
    whole = read_episode_table(dataset.root, info, source.ensure, [])
    places = np.flatnonzero(np.isin(whole.index, dataset.layout.index))
    chosen = whole.take(places)
    found = {
        key: span
        for key, span in chosen.videos.items()
        if key in videos or key in dataset.layout.videos
    }
    used: list[str] = []
    for key in videos:
        used += found[key].used() if key in found else []
    source.ensure(used)
    layout = replace(dataset.layout, videos=found)
    size = np.zeros(len(places))
    for mine, span in [
        (layout.data, whole.data),
        *((found[key], whole.videos[key]) for key in found),
    ]:
        frames = np.bincount(span.file, whole.length, len(span.files))
        for number in np.unique(mine.file):
            here = mine.file == number
            size[here] += (
                (dataset.root / span.files[number]).stat().st_size
                * layout.length[here]
                / frames[number]
            )
    return layout, np.ceil(size).astype(np.int64)


def _entry(spec: Mapping[str, Any], column: Column) -> dict[str, Any]:
    """A feature as v3.0 declares it: names are there, cameras are (H, W, C), `info` is called
    so.
    """
    names = spec.get("names")
    if column.is_camera and not (
        isinstance(names, list) and len(names) == 3 and names[2] in ("channel", "channels")
    ):
        names = list(CAMERA_NAMES)
    entry: dict[str, Any] = {"dtype": column.dtype, "shape": list(column.shape), "names": names}
    info = spec.get("info") or spec.get("video_info")
    return entry | ({"info": dict(info)} if info else {})


def _left_behind(root: Path, drop: Sequence[str]) -> list[str]:
    """Sentences about what is in the folder and does not go into the new one."""
    notes = [f"left out as asked: {', '.join(drop)}"] if drop else []
    metas = [
        p.name
        for p in (root / "meta").iterdir()
        if p.name not in (*_META, "episodes", Path(SUBTASKS).name)
    ]
    others = [
        p.name
        for p in root.iterdir()
        if p.name not in ("meta", "data", "videos") and p.name[0] != "."
    ]
    found = sorted([f"meta/{name}" for name in metas] + others)
    return notes + ([f"{root} also holds {', '.join(found)}: not taken over"] if found else [])


def _unread_columns(
    dataset: Dataset, declared: dict[str, Any], drop: Sequence[str]
) -> dict[str, Column]:
    """Features that are copied although no sample can hold them."""
    found: dict[str, Column] = {}
    for key, spec in declared.items():
        is_absent_image = spec["dtype"] == "image" and key not in dataset.columns
        if key not in drop and (_is_unread(spec) or is_absent_image):
            found[key] = _column(spec)
    return found


def _present(
    dataset: Dataset, layout: EpisodeTable, columns: dict[str, Column]
) -> dict[str, Column]:
    """Those of the columns that have files, or a column in the tables."""
    in_tables = schema_names(dataset.root / layout.data.files[layout.data.file[0]])
    found: dict[str, Column] = {}
    for key, column in columns.items():
        if key in (layout.videos if column.dtype == "video" else in_tables):
            found[key] = column
    return found


def _further_info(raw: dict[str, Any]) -> dict[str, Any]:
    """Entries of info.json that a copy keeps as they are."""
    kept: dict[str, Any] = {}
    for key, value in raw.items():
        if key not in _REWRITTEN and not key.startswith("total_") and not key.endswith("_in_mb"):
            kept[key] = value
    return kept


def _notes_beside(dataset: Dataset, unread: dict[str, Column]) -> list[str]:
    """The dataset's notes but for those on features that a copy does not leave out."""
    obsolete = tuple(f"'{key}' is left out" for key in unread)
    return [note for note in dataset.notes if not note.startswith(obsolete)]
