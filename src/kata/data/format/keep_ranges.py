"""Kept ranges of a dataset: episodes that are cut into the parts to read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from kata.config.keep_ranges import KeepRanges
from kata.data.arrays import Int64
from kata.errors import DataError


@dataclass(frozen=True)
class Pieces:
    """The kept parts of the opened episodes, in order. Each part is read as one episode.

    Attributes:
        position: (P,) position of the episode.
        begin: (P,) first frame of the part in the episode.
        length: (P,) frames.
    """

    position: Int64
    begin: Int64
    length: Int64


def cut_episodes(
    repo_id: str, known: Mapping[int, int], index: Int64, length: Int64, keep: KeepRanges
) -> Pieces:
    """Cut episodes into their kept ranges.

    Args:
        repo_id: the dataset, for messages.
        known: the length of every episode of the dataset, by index.
        index, length: (E,) the selected episodes.
        keep: checked by `check_keep_ranges`.

    Raises:
        DataError: an episode that the dataset lacks, a range beyond its end, or nothing left.
    """
    for name, ranges in keep.items():
        if int(name) not in known:
            raise _refused(
                f"{repo_id} has no episode {name}",
                f"episodes are numbered {min(known)} to {max(known)}",
            )
        if ranges and ranges[-1][1] > known[int(name)]:
            raise _refused(
                f"{repo_id}: episode {name} is kept up to frame {ranges[-1][1]}",
                f"a range ends within its episode, which has {known[int(name)]} frames",
            )
    pieces: list[tuple[int, int, int]] = []
    for position, (episode, frames) in enumerate(zip(index.tolist(), length.tolist(), strict=True)):
        for first, end in keep.get(str(episode), [(0, frames)]):
            pieces.append((position, first, end - first))
    if not pieces:
        raise _refused(
            f"no frame of {repo_id} is left: keep_ranges leaves all {len(index)} episodes out",
            "at least one range",
        )
    return Pieces(*np.array(pieces, dtype=np.int64).T)


def _refused(what: str, rule: str) -> DataError:
    remedy = "write the file for this dataset: kata data check <folder> --write_ranges=<file>"
    return DataError(what, rule=rule, remedy=remedy)
