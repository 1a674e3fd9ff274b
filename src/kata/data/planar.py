"""Which decoded frames are held as the decoder gives them: 4:2:0 takes half of RGB, and one conversion either way."""

from __future__ import annotations

from pathlib import Path

import av
from av.error import FFmpegError

from kata.data.index import FORMATS

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
            codec = container.streams.video[0].codec_context
            return is_half_size(codec.pix_fmt or "", codec.width, codec.height)
    except (FFmpegError, OSError, IndexError):
        return False
