"""How frames lie in batches: as recorded, resized, or as the planes that a decoder gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np

from kata.data.counters import CounterCollector
from kata.data.dataset.dataset import Dataset
from kata.data.dataset.mixture import Data, Mixture
from kata.data.storage.file_stamp import Stamp
from kata.data.video.color import colours_of, is_half_size
from kata.data.video.decoder import Decoder, Gop
from kata.data.video.packet_index import open_index
from kata.spec import Colours, Column

Size: TypeAlias = tuple[int, int]
"""Height and width in pixels."""


@dataclass(frozen=True)
class FrameFormat:
    """What becomes of frames on their way into a batch.

    size: (height, width) that they are resized to; None leaves them. colours: of the cameras whose
        frames stay planes of 4:2:0, half of RGB, for the device to convert; the others are RGB.
    """

    size: Size | None = None
    colours: Mapping[str, Colours] = field(default_factory=dict[str, Colours])

    def shape(self, key: str, column: Column) -> tuple[int, ...]:
        """Of a camera's frames: (H, W, C), or (H * 3 / 2, W, 1) for planes.

        These are the lines of Y, then those of U and of V, two to a line.
        """
        height, width, channels = column.shape
        if key in self.colours:
            return (height * 3 // 2, width, 1)
        return column.shape if self.size is None else (*self.size, channels)

    def under(self, names: Mapping[str, str]) -> FrameFormat:
        """The same with cameras named anew; those without another name are left out."""
        return FrameFormat(
            self.size,
            {names[key]: colours for key, colours in self.colours.items() if key in names},
        )


RECORDED = FrameFormat()
"""RGB of the size that was recorded."""


def colours_of_camera(data: Data, camera: str) -> Colours | str:
    """How a camera's frames are converted by the device, or why it cannot; told by the first frame
    of each dataset.

    Raises: DataError for a file that cannot be read, FrameError for a frame that cannot be decoded.
    """
    own = (
        [(part.dataset, part.own(camera)) for part in data.parts if camera in part.columns]
        if isinstance(data, Mixture)
        else [(data, camera)]
    )
    if any(dataset.columns[key].dtype == "image" for dataset, key in own):
        return "images"
    found = {_first_colours(dataset, key) for dataset, key in own}
    one = found.pop()
    return "other colours in each dataset" if found else one or "not 8-bit 4:2:0"


def _first_colours(dataset: Dataset, camera: str) -> Colours | None:
    span = dataset.layout.videos[camera]
    path = dataset.root / span.files[int(span.file[0])]
    index, first = open_index(path), np.zeros(1, np.int64)
    gop = Gop(index, Stamp.of(path.stat()), camera, first, first)
    kind = next(picture.kind for _, picture in Decoder(CounterCollector()).pictures(gop))
    return colours_of(kind) if is_half_size(kind.name, kind.width, kind.height) else None
