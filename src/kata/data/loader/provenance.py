"""Locations of samples for messages: episode, frame, files."""

from __future__ import annotations

from typing import Any

import numpy as np

from kata.data.arrays import Int64
from kata.data.dataset.mixture import Mixture
from kata.data.dataset.windows import episode_of
from kata.data.loader.batches import Batches


def sample_locations(mixture: Mixture, rows: Int64) -> list[dict[str, Any]]:
    """Return the location of each sample.

    Args:
        mixture: the dataset or datasets that the samples are of.
        rows: anchors (n,).

    Returns:
        One entry per row: `episode`, `frame`, and `files`, the table's and each camera's below the
        dataset's folder. Where there are several datasets, `dataset` is the name of the sample's.
    """
    first_rows = mixture.first_rows
    found: list[dict[str, Any]] = []
    for row, number in zip(rows, mixture.part_of(rows), strict=True):
        part = mixture.parts[number]
        label = {} if mixture.is_single else {"dataset": part.name}
        dataset = part.dataset
        own = row - first_rows[number]
        at = int(episode_of(np.array([own]), dataset.episodes)[0])
        layout = dataset.layout
        spans = {"data": layout.data, **layout.videos}
        found.append(
            {
                **label,
                "episode": int(layout.index[at]),
                "frame": int(own - dataset.episodes.start[at] + dataset.first_frame[at]),
                "files": {name: span.files[span.file[at]] for name, span in spans.items()},
            }
        )
    return found


def step_locations(mixture: Mixture, batches: Batches, step: int) -> list[dict[str, Any]]:
    """Return the locations of the samples of one step (0 is the first), each with `position`.

    Nothing is read.
    """
    first = step * batches.batch_size
    found = sample_locations(mixture, batches.anchors(step))
    return [{"position": position, **place} for position, place in enumerate(found, start=first)]
