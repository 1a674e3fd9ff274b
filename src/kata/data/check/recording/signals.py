"""State and action as signals: the scale, the noise and the speed of each dimension."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kata.data.dataset.dataset import Dataset
from kata.spec import ACTION, STATE

Floats = NDArray[np.float64]

_FRAMES_MAX = 100_000
"""Frames from which scales are measured: whole episodes, evenly spread over the dataset."""
_SMOOTH_HZ = 3.0
"""Von Neumann ratio below which a dimension moves, times fps; see also the bounds below.

White noise has a ratio of 1. That of a motion is near 0, and rises where few frames sample it.
"""
_SMOOTH_LEAST, _SMOOTH_MOST = 0.1, 0.5


@dataclass(frozen=True)
class Signal:
    """One column of numbers, with what the rules need to know about its dimensions.

    Attributes:
        key: the column, `observation.state` or `action`.
        names: one name per dimension.
        values: (frames, D) in the dataset's units, mapped from the cache folder.
        low, high: (D,) smallest and largest value.
        span: (D,) distance between the 1 % and the 99 % quantile.
        noise: (D,) robust standard deviation of white noise, from second differences.
        speed: (D,) 90 % quantile of the change per frame.
        moves: (D,) True for a dimension that moves smoothly, and not by noise alone.
    """

    key: str
    names: tuple[str, ...]
    values: NDArray[Any]
    low: Floats
    high: Floats
    span: Floats
    noise: Floats
    speed: Floats
    moves: NDArray[np.bool_]


@dataclass(frozen=True)
class EpisodeSpan:
    """One episode: its position among the opened ones, its index, and its rows [start, end)."""

    position: int
    index: int
    start: int
    end: int

    @property
    def length(self) -> int:
        """Return its number of frames."""
        return self.end - self.start

    def of(self, signal: Signal) -> Floats:
        """Return its part of a signal, (length, D)."""
        return signal.values[self.start : self.end].astype(np.float64)


def episodes_of(data: Dataset) -> list[EpisodeSpan]:
    """Return the episodes of a dataset in order."""
    table = data.episodes
    places = zip(table.index.tolist(), table.start.tolist(), table.length.tolist(), strict=True)
    return [
        EpisodeSpan(n, index, start, start + length)
        for n, (index, start, length) in enumerate(places)
    ]


def read_signal(data: Dataset, key: str) -> Signal | None:
    """Return a column as a signal, or None without such a column or an episode of three frames."""
    column = data.columns.get(key)
    if column is None or not column.dtype.startswith(("float", "int")) or len(column.shape) != 1:
        return None
    values = data.column(key).reshape(data.num_frames, -1)
    size = values.shape[1]
    names = column.names if column.names is not None and len(column.names) == size else None
    names = tuple(map(str, names or range(size)))
    return measure_signal(key, names, values, episodes_of(data), data.fps)


def measure_signal(
    key: str,
    names: tuple[str, ...],
    values: NDArray[Any],
    all_episodes: list[EpisodeSpan],
    fps: int,
) -> Signal | None:
    """Return values (frames, D) as a signal, or None without an episode of three frames."""
    episodes = list(_sampled(all_episodes))
    if not episodes:
        return None
    parts = [values[each.start : each.end].astype(np.float64) for each in episodes]
    pooled = np.concatenate(parts)
    inside = np.concatenate([part - part.mean(axis=0) for part in parts])
    steps = np.concatenate([np.diff(part, axis=0) for part in parts])
    bends = np.concatenate([np.diff(part, n=2, axis=0) for part in parts])
    span = np.quantile(pooled, 0.99, axis=0) - np.quantile(pooled, 0.01, axis=0)
    # Mean square successive difference over twice the variance.
    ratio = (steps**2).mean(axis=0) / np.maximum(2 * (inside**2).mean(axis=0), 1e-300)
    return Signal(
        key=key,
        names=names,
        values=values,
        low=values.min(axis=0).astype(np.float64),
        high=values.max(axis=0).astype(np.float64),
        span=span,
        noise=np.median(np.abs(bends), axis=0) * 1.4826 / 6**0.5,
        speed=np.quantile(np.abs(steps), 0.9, axis=0),
        moves=(span > 0) & (ratio < min(max(_SMOOTH_HZ / fps, _SMOOTH_LEAST), _SMOOTH_MOST)),
    )


def read_signals(data: Dataset) -> tuple[Signal | None, Signal | None]:
    """Return state and action, each None where the dataset lacks it."""
    return read_signal(data, STATE), read_signal(data, ACTION)


def _sampled(episodes: list[EpisodeSpan]) -> Iterator[EpisodeSpan]:
    """Yield whole episodes of at least three frames, as many as the bound on frames allows."""
    long = [each for each in episodes if each.length >= 3]
    frames = sum(each.length for each in long)
    every = max(1, -(-frames // _FRAMES_MAX))
    yield from long[::every]


def moved(signals: list[Signal], first: int, end: int) -> float:
    """Return the largest movement of a dimension over rows [first, end), as a share of its span."""
    most = 0.0
    for signal in signals:
        if end - first < 2 or not signal.moves.any():
            continue
        part = signal.values[first:end, signal.moves].astype(np.float64)
        most = max(most, float((np.ptp(part, axis=0) / signal.span[signal.moves]).max()))
    return most


def runs(flags: NDArray[np.bool_]) -> list[tuple[int, int]]:
    """Return the stretches [first, end) in which flags (N,) are True."""
    edges = np.flatnonzero(np.diff(flags, prepend=False, append=False))
    return list(zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True))
