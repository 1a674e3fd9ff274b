"""Frames as the planes that a decoder gives, where that is 8-bit 4:2:0: half of RGB, converted later or elsewhere."""

from __future__ import annotations

import numpy as np

from kata.data.counters import Tally
from kata.data.dataset.dataset import Dataset
from kata.data.dataset.mixture import Data, Mixture
from kata.data.storage.file_stamp import Stamp
from kata.data.video.color import colours_of, is_half_size
from kata.data.video.decoder import Decoder, Gop
from kata.data.video.packet_index import open_index
from kata.spec import Colours


def colours_of_camera(data: Data, camera: str) -> Colours | str:
    """How a camera's frames are converted by the device, or why it cannot; told by the first frame of each dataset.

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
    kind = next(picture.kind for _, picture in Decoder(Tally()).pictures(gop))
    return colours_of(kind) if is_half_size(kind.name, kind.width, kind.height) else None
