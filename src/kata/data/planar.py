"""Frames as the planes that a decoder gives, where that is 8-bit 4:2:0: half of RGB, converted later or elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import av
import numpy as np
from av.error import FFmpegError

from kata.data.colour import colours_of
from kata.data.dataset import Dataset
from kata.data.index import FORMATS, open_index
from kata.data.mixture import Data, Mixture
from kata.data.video import Decoder, Gop, Stamp
from kata.data.work import Tally
from kata.spec import Colours

_HALF_SIZE = ("yuv420p", "yuvj420p")


def is_half_size(name: str, width: int, height: int) -> bool:
    """True for 8-bit 4:2:0 frames of H * W * 3 / 2 bytes: even width, and a height that PyAV can tell from that.

    name: of the pixel format.
    """
    return name in _HALF_SIZE and width % 2 == 0 and height % 4 == 0


def stores_half_size(path: Path) -> bool:
    """Whether a video file holds such frames; False for one that cannot be read, which its index will say."""
    try:
        with av.open(str(path), options=FORMATS) as container:
            codec: Any = container.streams.video[0].codec_context
            return codec is not None and is_half_size(codec.pix_fmt or "", codec.width, codec.height)
    except (FFmpegError, OSError, IndexError):
        return False


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
