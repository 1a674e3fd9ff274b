"""Windows of frames around anchors: index arithmetic on whole batches; no data is read."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kata.data.arrays import Int64
from kata.data.dataset.anchors import AnchorRows
from kata.data.format.episode_table import TaskLists
from kata.errors import DataError

if TYPE_CHECKING:
    from kata.data.dataset.dataset import Dataset
    from kata.data.dataset.mixture import Mixture


@dataclass(frozen=True, eq=False)
class Episodes:
    """The selected episodes as a struct of arrays, ascending by index.

    Args:
        index: LeRobot's episode_index (E,).
        length: frames (E,).
        start: the row of the first frame in `Dataset.column` arrays (E,).
        tasks: the distinct instructions of each episode.
    """

    index: Int64
    length: Int64
    start: Int64
    tasks: TaskLists


def anchor_rows(dataset: Dataset | Mixture, drop_last: int = 0) -> AnchorRows:
    """Return the rows that may start a sample: all but the last `drop_last` of each episode.

    Args:
        dataset: a dataset, or a mixture.
        drop_last: frames at the end of each episode that start no sample.

    Returns:
        The rows in ascending order (N,).

    Raises:
        DataError: no frame is left, or `drop_last` is negative.
    """
    episodes = dataset.episodes
    if drop_last < 0:
        raise DataError(
            f"drop_last is {drop_last}", rule="0 or more frames", remedy="give a number from 0 on"
        )
    keep = np.maximum(episodes.length - drop_last, 0)
    rows = AnchorRows(episodes.start, keep)
    if not len(rows):
        longest = int(episodes.length.max(initial=0))
        raise DataError(
            f"no frame of {dataset.repo_id} can start a sample: drop_last is {drop_last}, the "
            f"longest of {len(episodes.length)} episodes has {longest} frames",
            rule="an episode gives samples when it is longer than drop_last",
            remedy="use longer episodes, or a policy with a shorter horizon",
        )
    return rows


def episode_of(rows: Int64, episodes: Episodes) -> Int64:
    """Return the position of each row's episode in the episode table, of the rows' shape.

    Raises:
        IndexError: a row is outside the dataset.
    """
    total = int(episodes.start[-1] + episodes.length[-1])
    if rows.size and (rows.min() < 0 or rows.max() >= total):
        raise IndexError(
            f"rows reach from {rows.min()} to {rows.max()}; the dataset has rows 0 to {total - 1}"
        )
    return episodes.start.searchsorted(rows, side="right") - 1


def window_rows(
    rows: Int64, offsets: tuple[int, ...], episodes: Episodes
) -> tuple[Int64, NDArray[np.bool_]]:
    """Return the rows of a window (B, T) and its mask, True for frames outside of the episode.

    Such frames are replaced by the first or the last frame of the episode.
    """
    position = episode_of(rows, episodes)
    # Rows count over the whole dataset, so the edges of the episode are rows as well.
    first = episodes.start[position][:, None]
    last = first + episodes.length[position][:, None] - 1
    wanted = rows[:, None] + _array(offsets)
    inside = np.minimum(np.maximum(wanted, first), last)
    return inside, inside != wanted


@functools.lru_cache(maxsize=64)
def _array(offsets: tuple[int, ...]) -> Int64:
    return np.array(offsets, dtype=np.int64)
