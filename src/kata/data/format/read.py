"""Reading of a dataset's episode table, whatever its version."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kata.data.format.episode_table import EpisodeTable, Fetch
from kata.data.format.info import Info
from kata.errors import DataError


def read_episode_table(root: Path, info: Info, fetch: Fetch, notes: list[str]) -> EpisodeTable:
    """The whole episode table of a dataset from its metadata; `fetch` gets files that only the Hub has.

    Raises: DataError when the metadata is absent, damaged or contradicts itself.
    """
    from kata.data.format import v2, v3

    layout = v3.read(root, info) if info.is_v3 else v2.read(root, info, fetch, notes)
    if not len(layout.index):
        raise DataError(
            f"{root} has no episodes", rule="at least one", remedy="record or download some"
        )
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
