"""Where episodes lie: one table for all format versions, so that nothing above it knows them apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np

from kata.data.info import Info
from kata.data.order import Int64
from kata.errors import DataError

Fetch: TypeAlias = Callable[[Sequence[str]], None]
"""Makes files of the dataset present where that is possible; a file that does not exist is left absent."""


@dataclass(frozen=True, eq=False)
class Span:
    """Where each episode lies in one series of files.

    files: paths below the dataset's folder. file: (E,) which of them. first: (E,) the row (table) or the
    frame number in presentation order (video) at which the episode starts in it.
    """

    files: tuple[str, ...]
    file: Int64
    first: Int64

    def take(self, positions: Int64) -> Span:
        """The span of some episodes; `files` stays whole so that numbers keep their meaning."""
        return Span(self.files, self.file[positions], self.first[positions])

    def used(self) -> list[str]:
        """Files that hold at least one of the episodes, in order."""
        return [self.files[number] for number in np.unique(self.file)]


@dataclass(frozen=True, eq=False)
class Layout:
    """Every episode with its place in the table files and in each video camera's files, by episode index."""

    index: Int64
    length: Int64
    tasks: tuple[tuple[str, ...], ...]
    data: Span
    videos: dict[str, Span]

    def take(self, positions: Int64) -> Layout:
        """The layout of some episodes, by position."""
        return Layout(
            self.index[positions],
            self.length[positions],
            tuple(self.tasks[position] for position in positions),
            self.data.take(positions),
            {key: span.take(positions) for key, span in self.videos.items()},
        )

    def without(self, keys: Sequence[str]) -> Layout:
        """The layout without some cameras."""
        videos = {key: span for key, span in self.videos.items() if key not in keys}
        return Layout(self.index, self.length, self.tasks, self.data, videos)

    def spans(self) -> list[Span]:
        """Table and videos alike."""
        return [self.data, *self.videos.values()]


def read_layout(root: Path, info: Info, fetch: Fetch, notes: list[str]) -> Layout:
    """The whole episode table of a dataset from its metadata; `fetch` gets files that only the Hub has.

    Raises: DataError when the metadata is absent, damaged or contradicts itself.
    """
    from kata.data import layout_v2, layout_v3

    layout = layout_v3.read(root, info) if info.is_v3 else layout_v2.read(root, info, fetch, notes)
    if not len(layout.index):
        raise DataError(f"{root} has no episodes", rule="at least one", remedy="record or download some")
    if len(np.unique(layout.index)) != len(layout.index):
        values, counts = np.unique(layout.index, return_counts=True)
        raise DataError(
            f"{root}/meta names episode {values[counts > 1][0]} more than once",
            rule="one entry per episode",
            remedy="repair the episode metadata, or download the dataset again",
        )
    if (layout.length < 1).any():
        bad = int(layout.index[layout.length < 1][0])
        raise DataError(
            f"{root}/meta gives episode {bad} no frames",
            rule="an episode has at least one frame",
            remedy=f"leave it out: --dataset.exclude_episodes=[{bad}]",
        )
    return layout
