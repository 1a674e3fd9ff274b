"""A LeRobot dataset opened for reading: episodes, columns, tasks, and notes for the user."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kata.config.keep_ranges import KeepRanges, check_keep_ranges
from kata.data.arrays import Int64, ranges
from kata.data.dataset.columns import Columns, schema_names
from kata.data.dataset.concat import Concat, join_columns, parts_of
from kata.data.dataset.windows import Episodes, episode_of
from kata.data.format.episode_table import EpisodeTable
from kata.data.format.info import Info, read_info
from kata.data.format.keep_ranges import cut_episodes
from kata.data.format.read import read_episode_table, refuse_empty
from kata.data.format.selection import choose, drop_absent_cameras, only_whole, refuse_pointers
from kata.data.format.source import Source, locate, refuse_outside
from kata.data.format.tasks import read_tasks, task_numbers
from kata.data.parquet.images import is_deep
from kata.data.storage.buffers import Empty
from kata.data.storage.store import Store, StoredFile
from kata.errors import DataError, did_you_mean
from kata.spec import BOOKKEEPING, Column, Feature, features_of


@dataclass(frozen=True, eq=False)
class Dataset:
    """The selected episodes of one dataset. `open_dataset` makes it; `subset` cuts it at no cost.

    Attributes:
        repo_id: name of the dataset.
        root: its folder, with metadata and tables.
        store: its files, from which cameras read.
        info: its declarations.
        columns: every readable feature by name, in the order of info.json, cameras as (H, W, C).
            Bookkeeping columns that info.json does not declare come last.
        tasks: instruction by task_index.
        layout: position of the selected episodes in the files.
        notes: messages for the user.
        total_episodes: number of recorded episodes.
    """

    repo_id: str
    root: Path
    store: Store
    info: Info
    columns: dict[str, Column]
    tasks: list[str]
    layout: EpisodeTable
    notes: list[str]
    total_episodes: int
    _storage: Columns
    _first: Int64 | None = None

    @property
    def version(self) -> str:
        """Return the format version: 'v3.0', 'v2.1' or 'v2.0'."""
        return self.info.version

    @property
    def fps(self) -> int:
        """Return the frames per second of every column and camera."""
        return self.info.fps

    @property
    def robot_type(self) -> str | None:
        """Return the recorded name of the robot, or None."""
        return self.info.robot_type

    @cached_property
    def episodes(self) -> Episodes:
        """Return the selected episodes."""
        length = self.layout.length
        return Episodes(self.layout.index, length, np.cumsum(length) - length, self.layout.tasks)

    @cached_property
    def num_frames(self) -> int:
        """Return the number of frames of all selected episodes."""
        return int(self.layout.length.sum())

    @property
    def cameras(self) -> dict[str, Column]:
        """Return the camera columns by name, with shapes (H, W, C)."""
        return {key: column for key, column in self.columns.items() if column.is_camera}

    @property
    def concat(self) -> dict[str, list[str]]:
        """Return the parts of each joined column, in order."""
        return {key: list(parts) for key, parts in self._storage.joined.items()}

    @property
    def is_whole(self) -> bool:
        """Return True if every episode of the recording is selected, with all of its frames."""
        return len(self.layout.index) == self.total_episodes and not self.is_cut

    @cached_property
    def first_frame(self) -> Int64:
        """Return the number of each episode's first frame in its recording, (E,); 0 if nothing is
        cut.
        """
        if self._first is None:
            return np.zeros_like(self.layout.index)
        position = np.searchsorted(self.opened.index, self.layout.index)
        start = np.cumsum(self.opened.length) - self.opened.length
        return self._first - start[position]

    @cached_property
    def is_cut(self) -> bool:
        """Return True if some episode lacks frames, or is read in several ranges."""
        whole = self.opened.length[np.searchsorted(self.opened.index, self.layout.index)]
        return bool((self.layout.length != whole).any())

    @property
    def num_episodes(self) -> int:
        """Return the number of recorded episodes; several ranges of one count once."""
        return len(np.unique(self.layout.index))

    @property
    def fingerprint(self) -> str:
        """Return 16 hex digits over version, fps, columns, episodes and file sizes.

        They are equal for equal data, wherever it is stored and whenever it was copied.
        """
        stamps = self.store.stamps(self.layout.files())
        sizes = {name: stamp.size for name, stamp in stamps.items()}
        columns = {key: [column.dtype, column.shape] for key, column in self.columns.items()}
        episodes = [self.layout.index.tolist(), self.layout.length.tolist()]
        if self.is_cut:
            episodes.append(self.first_frame.tolist())
        facts: list[Any] = [self.version, self.fps, columns, episodes, sizes]
        if self.concat:
            facts.append(self.concat)
        text = json.dumps(facts, sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    def features(self) -> dict[str, Feature]:
        """Return the columns that are inputs or outputs of a policy, cameras as (C, H, W)."""
        return features_of(self.columns)

    def column(self, key: str) -> NDArray[Any]:
        """Return all frames of a column that is no camera.

        Numbers of a dataset that is not cut are memory-mapped, so memory is needed only for the
        parts in use.

        Args:
            key: name of the column.

        Returns:
            (frames, *shape), or (frames,) for shape [1]; read-only. Floats are float32, integers
            int64, booleans bool, strings object.

        Raises:
            DataError: The name is unknown or a camera's, a file is damaged, or numbers are not
                finite.
        """
        self._check_key(key)
        if self._first is None:
            return self._storage.take(key, slice(None))
        return self._storage.take(key, ranges(self._first, self.layout.length))

    def take(self, key: str, rows: Int64) -> NDArray[Any]:
        """Return `column(key)[rows]` without reading other rows.

        Args:
            key: name of the column.
            rows: of any shape.

        Raises:
            DataError: See `column`.
            IndexError: A row is outside the dataset.
        """
        self._check_key(key)
        episode_of(rows, self.episodes)
        return self.gather(key, self.opened_rows(rows))

    def gather(self, key: str, opened: Int64, empty: Empty = np.empty) -> NDArray[Any]:
        """Return a table column at rows from `opened_rows`; neither is checked.

        Args:
            key: name of the column.
            opened: rows from `opened_rows`.
            empty: makes the array that numbers are written to.
        """
        return self._storage.gather(key, opened, empty)

    @property
    def opened(self) -> EpisodeTable:
        """Return the episodes that were opened; the selected ones are a subset of these."""
        return self._storage.layout

    def opened_rows(self, rows: Int64) -> Int64:
        """Return the same rows counted over `opened`; IndexError for a row outside the dataset."""
        if self._first is None:
            return rows
        position = episode_of(rows, self.episodes)
        return rows + (self._first - self.episodes.start)[position]

    def task_range(self) -> tuple[int, int]:
        """Return the smallest and the largest task_index of all opened frames."""
        return self._storage.task_range()

    def _check_key(self, key: str) -> None:
        if key not in self.columns or self.columns[key].is_camera:
            is_camera = key in self.columns
            known = [name for name, column in self.columns.items() if not column.is_camera]
            raise DataError(
                f"{self.repo_id} has no table column '{key}'",
                rule="cameras are read with a Reader" if is_camera else "the name of a feature",
                remedy=did_you_mean(key, known),
            )

    def subset(self, positions: Sequence[int]) -> Dataset:
        """Return some of the selected episodes, in ascending order; loaded data is shared.

        Args:
            positions: positions in `episodes`.

        Raises:
            DataError: Nothing is left, or a position does not exist.
        """
        count = len(self.layout.index)
        chosen = np.unique(np.asarray(positions, dtype=np.int64))
        if not chosen.size or chosen[0] < 0 or chosen[-1] >= count:
            raise DataError(
                f"{self.repo_id}: the subset {list(positions)[:5]} does not exist",
                rule=f"one or more positions from 0 to {count - 1}",
                remedy="choose among the selected episodes",
            )
        first = self.episodes.start if self._first is None else self._first
        return replace(self, layout=self.layout.take(chosen), _first=first[chosen])

    def keep(self, ranges: KeepRanges, known: Mapping[int, int] | None = None) -> Dataset:
        """Return the dataset without the frames outside of kept ranges; shares what is loaded.

        Each range is an episode from then on: windows end at its edges, and its index is that of
        the recorded episode, which several ranges may share.

        Args:
            ranges: [first, end) by episode index. An episode that is absent stays whole.
            known: the length of every recorded episode; None for those of this dataset.

        Raises:
            ConfigError: ranges that no dataset can have.
            DataError: ranges that this dataset does not have, or that leave nothing.
        """
        check_keep_ranges(ranges, "keep_ranges")
        assert not self.is_cut, "ranges count frames of whole episodes"
        layout = self.layout
        lengths = dict(zip(layout.index.tolist(), layout.length.tolist(), strict=True))
        pieces = cut_episodes(self.repo_id, known or lengths, layout.index, layout.length, ranges)
        first = self.episodes.start if self._first is None else self._first
        cut = layout.cut(pieces)
        return replace(
            self,
            layout=cut,
            notes=[*self.notes, _kept(layout, cut)],
            _first=first[pieces.position] + pieces.begin,
        )


def open_dataset(
    repo_id: str,
    *,
    root: str | Path | None = None,
    episodes: Sequence[int] | str | None = None,
    exclude_episodes: Sequence[int] | None = None,
    keep_ranges: KeepRanges | None = None,
    revision: str | None = None,
    concat: Concat | None = None,
    streaming: bool = False,
) -> Dataset:
    """Open a LeRobot dataset of format v3.0, v2.1 or v2.0; nothing is converted.

    Args:
        repo_id: '<owner>/<name>'; with `root` only a name for messages.
        root: the dataset's folder, or its address in a store: s3://bucket/folder and so on.
            Without it $HF_LEROBOT_HOME/<repo_id> is taken, else the Hub.
        episodes: episode indices; 'available' for those whose files are all here; None for all.
        exclude_episodes: episode indices to leave out.
        keep_ranges: ranges [first, end) of frames to read, by episode index; see `Dataset.keep`.
        revision: tag, branch or commit on the Hub; without it the newest format tag, else main.
        concat: columns to join, {"action": ["action.joints", "action.gripper"]}; see
            `kata.data.dataset.concat`.
        streaming: True to read videos of a dataset on the Hub from there, without a download.

    Raises:
        DataError: a dataset that is absent, damaged or incomplete; unknown episodes, ranges or
            columns.
        ConfigError: ranges that no dataset has.
    """
    return open_source(
        locate(repo_id, root, revision, streaming=streaming),
        episodes=episodes,
        exclude_episodes=exclude_episodes,
        keep_ranges=keep_ranges,
        concat=concat,
    )


def open_source(
    source: Source,
    *,
    episodes: Sequence[int] | str | None = None,
    exclude_episodes: Sequence[int] | None = None,
    keep_ranges: KeepRanges | None = None,
    concat: Concat | None = None,
) -> Dataset:
    """Open a dataset that has been located; see `open_dataset`."""
    repo_id = source.repo_id
    _refuse_links(source)
    info = read_info(source.root)
    notes = [*source.notes, *info.notes]
    whole = read_episode_table(source.root, info, source.ensure, notes)
    available = episodes == "available"
    layout = whole.take(choose(repo_id, whole.index, episodes, exclude_episodes))
    refuse_empty(source.root, layout)
    if not available or source.mirror is not None:
        source.ensure(layout.files())
    refuse_outside(source.root, layout.files())
    layout, absent = drop_absent_cameras(source.store, info, whole, layout, available=available)
    layout = only_whole(repo_id, source.store, layout, available=available)
    refuse_pointers(source.store, layout)
    readable, derived = readable_columns(source, info, layout, absent, notes)
    columns = join_columns(repo_id, readable, concat or {})
    tasks = read_tasks(source.root, info, layout, notes)
    tables = {key: column for key, column in columns.items() if not column.is_camera}
    storage = Columns(
        source.root,
        layout,
        tables,
        derived,
        info.fps,
        task_numbers(layout, tasks),
        parts_of(readable, concat or {}),
    )
    total = len(whole.index)
    data = Dataset(
        repo_id, source.root, source.store, info, columns, tasks, layout, notes, total, storage
    )
    if not keep_ranges:
        return data
    return data.keep(keep_ranges, _recorded_lengths(whole))


def _recorded_lengths(whole: EpisodeTable) -> dict[int, int]:
    """Return the frames of every recorded episode by its index."""
    return dict(zip(whole.index.tolist(), whole.length.tolist(), strict=True))


def _refuse_links(source: Source) -> None:
    """Refuse links out of the metadata."""
    meta = (str(path.relative_to(source.root)) for path in (source.root / "meta").rglob("*"))
    refuse_outside(source.root, ["meta/info.json", *meta])


def _kept(before: EpisodeTable, after: EpisodeTable) -> str:
    """Say what kept ranges leave of a dataset."""
    remaining = np.bincount(
        np.searchsorted(before.index, after.index), after.length, len(before.index)
    )
    cut = int(((remaining > 0) & (remaining < before.length)).sum())
    gone = int((remaining == 0).sum())
    return (
        f"keep_ranges: {cut} of {len(before.index)} episodes are cut, {gone} left out; "
        f"{int(after.length.sum()):,} of {int(before.length.sum()):,} frames are read"
    )


_REQUESTS = 16
"""Cameras whose first image is looked at side by side."""


def readable_columns(
    source: Source, info: Info, layout: EpisodeTable, absent: list[str], notes: list[str]
) -> tuple[dict[str, Column], set[str]]:
    """Return the columns that can be read, and the names of derived ones.

    A derived column is absent from the files and follows from the episode table.
    """
    notes += [f"'{key}' is left out: info.json declares it, but it has no files" for key in absent]
    first_name = layout.data.files[layout.data.file[0]]
    first_row = int(layout.data.first[0])
    present = schema_names(source.root / first_name)
    columns = {key: column for key, column in info.columns.items() if key not in absent}
    lacking = [
        key for key, column in columns.items() if column.dtype != "video" and key not in present
    ]
    derived = {key for key in lacking if key in BOOKKEEPING}
    for key in lacking:
        if key in derived:
            notes.append(f"'{key}' is not in the data files and is derived from the episode table")
        else:
            notes.append(f"'{key}' is left out: info.json declares it, but the data files lack it")
            del columns[key]
    images = [key for key, column in columns.items() if column.dtype == "image"]
    first = StoredFile(source.store, first_name)
    with ThreadPoolExecutor(_REQUESTS, "kata-images") as threads:
        deep = list(threads.map(lambda key: is_deep(first, key, first_row), images))
    for key, is_left_out in zip(images, deep, strict=True):
        if is_left_out:
            notes.append(
                f"'{key}' is left out: its images have more than 8 bits per channel, as depth maps "
                "do"
            )
            del columns[key]
    undeclared = [key for key in present if key not in info.columns]
    if undeclared:
        notes.append(
            f"columns that info.json does not declare are left out: {', '.join(undeclared)}"
        )
    return columns, derived
