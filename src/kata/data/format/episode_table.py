"""The episode table: position of every episode in the files, one form for all format versions."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from kata.data.arrays import Int64, ranges
from kata.data.format.keep_ranges import Pieces

Fetch: TypeAlias = Callable[[Sequence[str]], None]
"""fetch(names) downloads files of the dataset if that is possible; others stay absent."""


@dataclass(frozen=True, eq=False)
class Span:
    """The position of each episode in one series of files.

    Attributes:
        files: paths below the dataset's folder.
        file: (E,) number of the file in `files`.
        first: (E,) first row in a table file, or first frame in presentation order in a video.
    """

    files: tuple[str, ...]
    file: Int64
    first: Int64

    def take(self, positions: Int64) -> Span:
        """Return the span of some episodes; `files` stays complete so that numbers keep their
        meaning.
        """
        return Span(self.files, self.file[positions], self.first[positions])

    def shifted(self, frames: Int64) -> Span:
        """Return the span of episodes that begin later, by (E,) frames."""
        return Span(self.files, self.file, self.first + frames)

    def used(self) -> list[str]:
        """Return the files that hold at least one of the episodes, in order."""
        return [self.files[number] for number in np.unique(self.file)]


class TaskLists:
    """The distinct sentences of each episode, in two arrays: `lists[position]` returns a tuple.

    A tuple of strings per episode would take about 200 bytes; large datasets have 100,000 episodes.

    Args:
        names: all sentences.
        number: (N,) places in `names`, episode after episode.
        end: (E,) end of each episode's part of `number`.
    """

    def __init__(self, names: Sequence[str], number: Int64, end: Int64) -> None:
        self._names = names
        self._number = number
        self._end = end

    @classmethod
    def of(cls, lists: Iterable[Sequence[str]]) -> TaskLists:
        """Build the lists from one sequence of sentences per episode."""
        # Most episodes share a few sentences, so each sentence is stored once.
        places: dict[str, int] = {}
        number, end = array("q"), array("q")
        for sentences in lists:
            number.extend(places.setdefault(str(sentence), len(places)) for sentence in sentences)
            end.append(len(number))
        return cls(list(places), np.array(number, dtype=np.int64), np.array(end, dtype=np.int64))

    def __len__(self) -> int:
        return len(self._end)

    def __getitem__(self, position: int) -> tuple[str, ...]:
        start = self._end[position - 1] if position else 0
        return tuple(
            self._names[int(number)]
            for number in self._number[start : self._end[position]].tolist()
        )

    def __iter__(self) -> Iterator[tuple[str, ...]]:
        return (self[position] for position in range(len(self)))

    def take(self, positions: Int64) -> TaskLists:
        """Return the sentences of some episodes, by position."""
        length = np.diff(self._end, prepend=0)[positions]
        rows = ranges(self._end[positions] - length, length)
        return TaskLists(self._names, self._number[rows], np.cumsum(length))

    def first(self) -> Int64:
        """Return the place in `names` of each episode's first sentence, (E,) int64; -1 without
        any.
        """
        length = np.diff(self._end, prepend=0)
        # The appended -1 stands for episodes without a sentence at the end of the table.
        known = np.append(self._number, -1)
        return np.where(length > 0, known[np.minimum(self._end - length, len(self._number))], -1)

    @property
    def names(self) -> Sequence[str]:
        """Return all sentences of the dataset."""
        return self._names


@dataclass(frozen=True, eq=False)
class EpisodeTable:
    """Every episode with its position in the table files and in each video camera's files.

    Attributes:
        index: (E,) episode indices of the dataset.
        length: (E,) frames.
        tasks: the sentences of each episode.
        data: position in the table files.
        videos: position in the video files, by camera.
    """

    index: Int64
    length: Int64
    tasks: TaskLists
    data: Span
    videos: dict[str, Span]

    def take(self, positions: Int64) -> EpisodeTable:
        """Return the table of some episodes, by position."""
        return EpisodeTable(
            self.index[positions],
            self.length[positions],
            self.tasks.take(positions),
            self.data.take(positions),
            {key: span.take(positions) for key, span in self.videos.items()},
        )

    def cut(self, pieces: Pieces) -> EpisodeTable:
        """Return the table of parts of episodes, each with the index of the whole episode."""
        part = self.take(pieces.position)
        return EpisodeTable(
            part.index,
            pieces.length,
            part.tasks,
            part.data.shifted(pieces.begin),
            {key: span.shifted(pieces.begin) for key, span in part.videos.items()},
        )

    def without(self, keys: Sequence[str]) -> EpisodeTable:
        """Return the table without some cameras."""
        videos = {key: span for key, span in self.videos.items() if key not in keys}
        return EpisodeTable(self.index, self.length, self.tasks, self.data, videos)

    def spans(self) -> list[Span]:
        """Return the spans of the table files and of all videos."""
        return [self.data, *self.videos.values()]

    def files(self) -> list[str]:
        """Return all files that hold at least one of the episodes, below the dataset's folder."""
        return list(itertools.chain.from_iterable(span.used() for span in self.spans()))
