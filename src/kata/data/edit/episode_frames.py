"""All frames of an episode one after the other: each is decoded once, and memory stays flat."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.error import FFmpegError
from PIL import Image

from kata.data.arrays import Pixels
from kata.data.parquet.images import DeepImageError, open_image
from kata.data.video.container import open_video
from kata.data.video.packet_index import FrameIndex
from kata.errors import DataError


def video_frames(index: FrameIndex, first: int, count: int) -> Iterator[Pixels]:
    """Frames `first` to `first + count` of a video file as (H, W, 3).

    Raises: DataError naming the first frame that cannot be decoded.
    """
    packets = index.packet[first : first + count]
    wanted = {int(pts): first + place for place, pts in enumerate(index.pts[packets])}
    why = "the decoder gave no picture"
    try:
        with index.file.open() as data, open_video(index.file.path or data) as container:
            stream = container.streams.video[0]
            stream.thread_type = "AUTO"
            # The index counts from where the file's table does; FFmpeg adds what an empty edit puts
            # before it.
            before = (
                0
                if stream.start_time is None
                else stream.start_time - int(index.pts[index.packet[0]])
            )
            container.seek(int(index.pts[index.start[first]]) + before, stream=stream)
            for frame in container.decode(stream):
                if frame.pts is not None and wanted.pop(frame.pts - before, None) is not None:
                    yield _rgb(frame)
                if not wanted:
                    break
    except FFmpegError as error:
        why = str(error)
    if wanted:
        raise _undecodable(f"frame {min(wanted.values())} of {index.file}", why)


def _rgb(frame: av.VideoFrame) -> Pixels:
    pixels: Any = frame.to_ndarray(format="rgb24")
    return pixels


def image_frames(path: Path, cells: Any, first: int, shape: tuple[int, ...]) -> Iterator[Pixels]:
    """Images out of a table as (H, W, C): `cells` holds them encoded, from row `first` of the
    file `path` on.
    """
    for place, cell in enumerate(cells.field("bytes").to_pylist()):
        where = f"row {first + place} of {path}"
        try:
            with open_image(cell) as image:
                pixels = np.asarray(image.convert("L" if shape[2] == 1 else "RGB"))
        except (DeepImageError, Image.DecompressionBombError, OSError, SyntaxError) as error:
            raise _undecodable(where, str(error)) from error
        pixels = pixels.reshape(*pixels.shape[:2], -1)
        if pixels.shape != shape:
            raise _undecodable(where, f"it is {pixels.shape}, info.json says {shape}")
        yield pixels


def _undecodable(where: str, why: str) -> DataError:
    return DataError(
        f"{where} cannot be decoded: {why}",
        rule="every frame that is measured or encoded again can be decoded",
        remedy="download the file again, or leave the episode out with --exclude",
    )
