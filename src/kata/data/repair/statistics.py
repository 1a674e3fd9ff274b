"""Repairs of statistics: ten figures per feature, of every episode and of the whole dataset."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kata.data.arrays import Pixels
from kata.data.check.stats import do_quantiles_rise
from kata.data.dataset.dataset import Dataset, open_dataset
from kata.data.edit.episode_frames import image_frames, video_frames
from kata.data.format.feature_stats import (
    QUANTILES,
    STATS,
    STATS_FILE,
    ImageCounts,
    Summary,
    load_stats,
    merge_summaries,
    quantiles,
    summarise,
)
from kata.data.repair.episodes_v2 import STATS_V2
from kata.data.repair.episodes_v3 import read_episodes_v3, write_episodes_v3
from kata.data.repair.working_copy import WorkingCopy
from kata.data.stats.dataset_stats import differences, episode_stats
from kata.data.storage.store import local_file
from kata.data.video.packet_index import open_index
from kata.data.writing.arrow_tables import stat_type
from kata.data.writing.running_stats import EXACT_VALUES
from kata.errors import DataError
from kata.spec import Stats


def repair_statistics(copy: WorkingCopy) -> None:
    """Measure what is missing, partial or not that of the frames; what is right stays as it is.

    Raises:
        DataError: The dataset cannot be opened, or a frame that must be measured cannot be decoded.
    """
    data = open_dataset(copy.root.name, root=copy.root)
    work = _Statistics(copy, data, _stored_whole(copy.root), dict(_stored_episodes(data)))
    work.run()


def _stored_whole(root: Path) -> Stats:
    path = root / STATS_FILE
    if not path.is_file():
        return {}
    try:
        return load_stats(path)
    except DataError:
        return {}  # a damaged file is written again


def _stored_episodes(data: Dataset) -> list[tuple[int, Stats]]:
    try:
        return episode_stats(data, list(data.columns))
    except DataError:
        return []


@dataclass
class _Statistics:
    """The stored figures, and those that take their place.

    Attributes:
        whole: The stored figures of all episodes together.
        episodes: The stored figures of each episode.
        remeasured: The new figures of episodes, by feature.
        whole_remeasured: The new figures of all episodes together.
        changes: Features, by the message about their change.
    """

    copy: WorkingCopy
    data: Dataset
    whole: Stats
    episodes: dict[int, Stats]
    remeasured: dict[str, dict[int, Summary]] = field(default_factory=dict)
    whole_remeasured: Stats = field(default_factory=dict)
    changes: dict[str, list[str]] = field(default_factory=dict)

    def run(self) -> None:
        """Compare or measure every feature, then write what has changed."""
        for key, column in self.data.columns.items():
            if column.is_camera:
                self._camera(key)
            elif column.dtype != "string":
                self._column(key)
        for what, keys in self.changes.items():
            self.copy.changed("statistics", f"{what}: {', '.join(keys)}")
        if self.remeasured:
            (self._write_v3 if self.data.info.is_v3 else self._write_v2)()
        if self.whole_remeasured:
            whole = {
                key: self.whole_remeasured.get(key, self.whole.get(key))
                for key in self.data.columns
            }
            plain = {key: _plain(stats) for key, stats in whole.items() if stats is not None}
            self.copy.write_json(STATS_FILE, plain)

    @property
    def _keeps_episodes(self) -> bool:
        return self.data.version != "v2.0"

    @property
    def _keeps_whole(self) -> bool:
        return self.data.version != "v2.1" or (self.copy.root / STATS_FILE).is_file()

    # --- columns --------------------------------------------------------------------------------

    def _column(self, key: str) -> None:
        """Compare the stored figures of a column with those of its frames."""
        values = self.data.column(key)
        starts = self.data.episodes.start.tolist()
        lengths = self.data.episodes.length.tolist()
        found: dict[int, Summary] = {}
        stale: list[int] = []
        for episode, start, length in zip(
            self.data.episodes.index.tolist(), starts, lengths, strict=True
        ):
            found[episode] = summarise(values[start : start + length])
            if self._keeps_episodes and not _is_right(
                found[episode], self.episodes.get(episode, {}).get(key, {})
            ):
                stale.append(episode)
        total = merge_summaries(list(found.values()))
        if values.size <= EXACT_VALUES:
            flat = values.reshape(-1, values.shape[-1] if values.ndim > 1 else 1)
            total |= quantiles(flat.astype(np.float64))
        is_stale = self._keeps_whole and not _is_right(total, self.whole.get(key, {}))
        if stale:
            self.remeasured[key] = {episode: found[episode] for episode in stale}
        if is_stale:
            self.whole_remeasured[key] = total
        self._tell(key, stale, is_stale, "")

    def _tell(self, key: str, stale: list[int], is_stale: bool, how: str) -> None:
        if not (stale or is_stale):
            return
        count = (
            "every episode"
            if len(stale) == len(self.data.episodes.index)
            else f"{len(stale)} episodes"
        )
        places = [count] * bool(stale) + ["the dataset"] * is_stale
        self.changes.setdefault(f"ten figures of {' and of '.join(places)}{how}", []).append(key)

    # --- cameras --------------------------------------------------------------------------------

    def _camera(self, key: str) -> None:
        """Measure the episodes of a camera that lack figures, over all their frames."""
        known = {
            episode: self._camera_figures(episode, key)
            for episode in self.data.episodes.index.tolist()
        }
        lacking = [episode for episode, figures in known.items() if figures is None]
        is_stale = self._keeps_whole and not self._is_whole_right(key, known)
        stale = lacking if self._keeps_episodes else []
        if not stale and not is_stale:
            return
        if lacking and self.copy.dry:
            self._tell(key, stale, is_stale, ", which measures every frame")
            return
        measured = self._measured_all(key, lacking)
        if measured is None:
            return
        self._tell(key, stale, is_stale, ", measured over every frame" if lacking else "")
        if stale:
            self.remeasured[key] = measured
        if is_stale:
            self.whole_remeasured[key] = merge_summaries(
                [measured.get(e) or known[e] or {} for e in known]
            )

    def _is_whole_right(self, key: str, known: Mapping[int, Summary | None]) -> bool:
        """Return whether the dataset's figures are complete, and over as many frames as those of
        the episodes."""
        whole = self.whole.get(key, {})
        if not set(STATS) <= set(whole):
            return False
        if not self._keeps_episodes:
            return not self.copy.is_shortened
        figures = [each for each in known.values() if each is not None]
        count = sum(int(each["count"].sum()) for each in figures)
        return len(figures) == len(known) and int(whole["count"].sum()) == count

    def _camera_figures(self, episode: int, key: str) -> Summary | None:
        """Return the stored figures of an episode, None where some lack or have another shape."""
        figures = self.episodes.get(episode, {}).get(key, {})
        channels = self.data.columns[key].shape[2]
        if not set(STATS) <= set(figures):
            return None
        if any(figures[stat].shape != (channels, 1, 1) for stat in STATS if stat != "count"):
            return None
        return {stat: figures[stat] for stat in STATS}

    def _measured_all(self, key: str, episodes: list[int]) -> dict[int, Summary] | None:
        """Measure some episodes of a camera; None when a frame cannot be decoded."""
        measured: dict[int, Summary] = {}
        if not episodes:
            return measured
        try:
            with self.copy.counting(f"episodes of '{key}' measured") as progress:
                for episode in episodes:
                    measured[episode] = self._measured(key, episode)
                    progress(len(measured), len(episodes))
        except DataError as error:
            said = f"'{key}' cannot be measured: {error.what}"
            self.copy.leave("statistics", said, "--exclude=[...] leaves episodes out")
            return None
        return measured

    def _measured(self, key: str, episode: int) -> Summary:
        counts = ImageCounts(self.data.columns[key].shape[2])
        for frame in self._frames(key, int(np.flatnonzero(self.data.episodes.index == episode)[0])):
            counts.add(frame)
        return counts.summary()

    def _frames(self, key: str, position: int) -> Iterator[Pixels]:
        column, layout = self.data.columns[key], self.data.layout
        length = int(layout.length[position])
        span = layout.videos[key] if column.dtype == "video" else layout.data
        path, first = self.copy.root / span.files[span.file[position]], int(span.first[position])
        if column.dtype == "video":
            return video_frames(open_index(local_file(path)), first, length)
        chunks = pq.read_table(path, columns=[key])[key].slice(first, length).chunks
        return image_frames(path, pa.concat_arrays(chunks), first, column.shape)

    # --- files ----------------------------------------------------------------------------------

    def _write_v3(self) -> None:
        table = read_episodes_v3(self.copy.root)
        index = table["episode_index"].to_pylist()
        for key, found in self.remeasured.items():
            for stat in STATS:
                name = f"stats/{key}/{stat}"
                known = (
                    table[name].to_pylist() if name in table.column_names else [None] * len(index)
                )
                values = [
                    found[e][stat].tolist() if e in found else old
                    for e, old in zip(index, known, strict=True)
                ]
                array = pa.array(values, stat_type(stat, self.data.columns[key].is_camera))
                place = table.schema.get_field_index(name)
                table = (
                    table.append_column(name, array)
                    if place < 0
                    else table.set_column(place, name, array)
                )
        write_episodes_v3(self.copy, table, {})

    def _write_v2(self) -> None:
        rows: list[Mapping[str, Any]] = []
        for episode in self.data.episodes.index.tolist():
            figures = {key: _plain(stats) for key, stats in self.episodes.get(episode, {}).items()}
            figures |= {
                key: _plain(found[episode])
                for key, found in self.remeasured.items()
                if episode in found
            }
            rows.append({"episode_index": episode, "stats": figures})
        self.copy.write_lines(STATS_V2, rows)


def _is_right(found: Summary, stored: Summary) -> bool:
    """Return whether stored figures are complete and right; quantiles need only rise."""
    if not set(STATS) <= set(stored):
        return False
    exact = {stat: value for stat, value in stored.items() if stat not in QUANTILES}
    return not differences({"": found}, {"": exact}) and do_quantiles_rise(stored)


def _plain(stats: Summary) -> dict[str, Any]:
    return {stat: np.asarray(value).tolist() for stat, value in stats.items()}
