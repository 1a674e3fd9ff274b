"""Where samples come from, in the words of whoever looks for them: episode, frame, files."""

from __future__ import annotations

from typing import Any

import numpy as np

from kata.data.arrays import Int64
from kata.data.dataset.dataset import Dataset
from kata.data.dataset.mixture import Data, Mixture
from kata.data.dataset.windows import episode_of
from kata.data.loader.batches import Batches


def sample_locations(dataset: Dataset, rows: Int64) -> list[dict[str, Any]]:
    """One entry per row: `episode`, `frame`, and `files`, the table's and each camera's below
    the dataset's folder.
    """
    layout = dataset.layout
    spans = {"data": layout.data, **layout.videos}
    positions = episode_of(rows, dataset.episodes)
    return [
        {
            "episode": int(layout.index[at]),
            "frame": int(row - dataset.episodes.start[at] + dataset.first_frame[at]),
            "files": {name: span.files[span.file[at]] for name, span in spans.items()},
        }
        for row, at in zip(rows, positions, strict=True)
    ]


def mixture_sample_locations(mixture: Mixture, rows: Int64) -> list[dict[str, Any]]:
    """The same over the rows of a mixture, with `dataset`, the name that the mixture has for it."""
    numbers = mixture.part_of(rows)
    found: list[dict[str, Any]] = []
    for row, number in zip(rows, numbers, strict=True):
        part = mixture.parts[number]
        place = sample_locations(part.dataset, np.array([row - mixture.first_rows[number]]))[0]
        found.append({"dataset": part.name, **place})
    return found


def locations_in(data: Data, rows: Int64) -> list[dict[str, Any]]:
    """`sample_locations` or `mixture_sample_locations`."""
    return (
        mixture_sample_locations(data, rows)
        if isinstance(data, Mixture)
        else sample_locations(data, rows)
    )


def step_locations(data: Data, batches: Batches, step: int) -> list[dict[str, Any]]:
    """The samples of one step (0 is the first) by `position`, with their places in `data`; reads
    nothing.
    """
    first = step * batches.batch_size
    found = locations_in(data, batches.anchors(step))
    return [{"position": position, **place} for position, place in enumerate(found, start=first)]
