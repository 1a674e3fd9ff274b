"""Where episodes lie: one table for all format versions, so that nothing above it knows them
apart.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from kata.data.arrays import Int64, ranges
from kata.data.format.keep_ranges import Pieces

Fetch: TypeAlias = Callable[[Sequence[str]], None]
"""Makes files of the dataset present where that is possible; a file that does not exist is left
absent.
"""


@dataclass(frozen=True, eq=False)
class Span:
    """Where each episode lies in one series of files.

    files: paths below the dataset's folder. file: (E,) which of them. first: (E,) the row (table)
        or the frame number in presentation order (video) at which the episode starts in it.
    """

    files: tuple[str, ...]
    file: Int64
    first: Int64

    def take(self, positions: Int64) -> Span:
        """The span of some episodes; `files` stays whole so that numbers keep their meaning."""
        return Span(self.files, self.file[positions], self.first[positions])

    def shifted(self, frames: Int64) -> Span:
        """Return the span of episodes that begin later, by (E,) frames."""
        return Span(self.files, self.file, self.first + frames)

    def used(self) -> list[str]:
        """Files that hold at least one of the episodes, in order."""
        return [self.files[number] for number in np.unique(self.file)]


class TaskLists:
    """The distinct sentences of each episode, in two arrays for all of them: `lists[position]`
    gives a tuple.

    Args:
        names: all sentences.
        number: (N,) places in `names`, episode after episode.
        end: (E,) where each episode's numbers end.
    """

    def __init__(self, names: Sequence[str], number: Int64, end: Int64) -> None:
        self._names, self._number, self._end = names, number, end

    @classmethod
    def of(cls, lists: Iterable[Sequence[str]]) -> TaskLists:
        """From one sequence of sentences per episode."""
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
        """The sentences of some episodes, by position."""
        length = np.diff(self._end, prepend=0)[positions]
        rows = ranges(self._end[positions] - length, length)
        return TaskLists(self._names, self._number[rows], np.cumsum(length))

    def first(self) -> Int64:
        """(E,) place in `names` of each episode's first sentence, -1 without any."""
        length = np.diff(self._end, prepend=0)
        known = np.append(self._number, -1)
        return np.where(length > 0, known[np.minimum(self._end - length, len(self._number))], -1)

    @property
    def names(self) -> Sequence[str]:
        """All sentences of the dataset."""
        return self._names


@dataclass(frozen=True, eq=False)
class EpisodeTable:
    """Every episode with its place in the table files and in each video camera's files, by
    episode index.
    """

    index: Int64
    length: Int64
    tasks: TaskLists
    data: Span
    videos: dict[str, Span]

    def take(self, positions: Int64) -> EpisodeTable:
        """The layout of some episodes, by position."""
        return EpisodeTable(
            self.index[positions],
            self.length[positions],
            self.tasks.take(positions),
            self.data.take(positions),
            {key: span.take(positions) for key, span in self.videos.items()},
        )

    def cut(self, pieces: Pieces) -> EpisodeTable:
        """Return the layout of parts of episodes, each with the index of the whole one."""
        part = self.take(pieces.position)
        return EpisodeTable(
            part.index,
            pieces.length,
            part.tasks,
            part.data.shifted(pieces.begin),
            {key: span.shifted(pieces.begin) for key, span in part.videos.items()},
        )

    def without(self, keys: Sequence[str]) -> EpisodeTable:
        """The layout without some cameras."""
        videos = {key: span for key, span in self.videos.items() if key not in keys}
        return EpisodeTable(self.index, self.length, self.tasks, self.data, videos)

    def spans(self) -> list[Span]:
        """Table and videos alike."""
        return [self.data, *self.videos.values()]
