"""Rates that the files themselves show: time stamps of tables, times of video frames."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from kata.data.storage.store import local_file
from kata.data.video.packet_index import open_index
from kata.errors import DataError

_NEAR = 0.01
"""Share by which a rate may be off the whole number that it stands for: 29.97 is 30."""


def table_rate(path: Path) -> int | None:
    """Return the frames per second that the time stamps of a data file show, None without one."""
    try:
        table = pq.read_table(path, columns=["timestamp", "episode_index"])
    except (pa.ArrowException, UnicodeDecodeError, OSError, KeyError):
        return None
    if table["timestamp"].null_count or table["episode_index"].null_count:
        return None
    time_s = np.asarray(table["timestamp"].to_numpy(), dtype=np.float64)
    episode = np.asarray(table["episode_index"].to_numpy())
    return _whole_rate(np.diff(time_s)[np.diff(episode) == 0])


def video_rate(path: Path) -> int | None:
    """Return the frames per second of a video file, None when it is damaged or has no one rate."""
    try:
        index = open_index(local_file(path))
    except DataError:
        return None
    return _whole_rate(np.diff(index.pts[index.packet]) * index.tick_s)


def _whole_rate(steps_s: np.ndarray) -> int | None:
    if not len(steps_s) or not np.median(steps_s) > 0:
        return None
    rate = float(1 / np.median(steps_s))
    whole = round(rate)
    return whole if whole >= 1 and abs(rate - whole) <= _NEAR * whole else None
