"""The format of frames in batches: as recorded, resized, or as planes of a decoder."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from kata.data.counters import CounterCollector
from kata.data.dataset.dataset import Dataset
from kata.data.dataset.mixture import Mixture
from kata.data.storage.store import StoredFile
from kata.data.video.color import colours_of, is_half_size
from kata.data.video.decoder import Decoder, Gop
from kata.data.video.packet_index import open_index
from kata.spec import Colours, Column

Size: TypeAlias = tuple[int, int]
"""Height and width in pixels."""


@dataclass(frozen=True)
class FrameFormat:
    """The format of frames in a batch.

    Attributes:
        sizes: height and width that frames are resized to, by camera; frames of other cameras keep
            the recorded size.
        colours: conversion of the cameras whose frames stay 4:2:0 planes, half the bytes of RGB,
            for the device to convert. Frames of other cameras are RGB.
    """

    sizes: Mapping[str, Size] = field(default_factory=dict[str, Size])
    colours: Mapping[str, Colours] = field(default_factory=dict[str, Colours])

    def shape(self, key: str, column: Column) -> tuple[int, ...]:
        """Return the shape of a camera's frames: (H, W, C), or (H * 3 / 2, W, 1) for planes.

        Planes are the lines of Y, then those of U and of V, two to a line.
        """
        height, width, channels = column.shape
        if key in self.colours:
            return (height * 3 // 2, width, 1)
        return (*self.sizes.get(key, (height, width)), channels)

    def under(self, names: Mapping[str, str]) -> FrameFormat:
        """Return the same format with renamed cameras.

        Args:
            names: new name by old name; cameras without a new name are left out.
        """
        return FrameFormat(
            {names[key]: size for key, size in self.sizes.items() if key in names},
            {names[key]: colours for key, colours in self.colours.items() if key in names},
        )


RECORDED = FrameFormat()
"""RGB in the recorded size."""


def colours_of_camera(mixture: Mixture, camera: str) -> Colours | str:
    """Return how the device converts a camera's frames, or the reason why it cannot.

    The first frame of each dataset decides; later frames are compared while they are decoded.

    Raises:
        DataError: A file cannot be read.
        FrameError: A frame cannot be decoded.
    """
    own = [(part.dataset, part.own(camera)) for part in mixture.parts if camera in part.columns]
    if any(dataset.columns[key].dtype == "image" for dataset, key in own):
        return "images"
    # One conversion serves a whole batch, so all datasets must have the same.
    found = {_first_colours(dataset, key) for dataset, key in own}
    one = found.pop()
    return "other colours in each dataset" if found else one or "not 8-bit 4:2:0"


def _first_colours(dataset: Dataset, camera: str) -> Colours | None:
    """Return the conversion of the first frame of a camera, or None if it is not 8-bit 4:2:0."""
    span = dataset.layout.videos[camera]
    file = StoredFile(dataset.store, span.files[int(span.file[0])])
    index, first = open_index(file), np.zeros(1, np.int64)
    gop = Gop(index, file.stamp(), camera, first, first)
    kind = next(picture.kind for _, picture in Decoder(CounterCollector()).pictures(gop))
    return colours_of(kind) if is_half_size(kind.name, kind.width, kind.height) else None
