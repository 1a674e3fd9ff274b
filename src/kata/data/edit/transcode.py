"""Encoding of frames that were encoded before, and the distance from the originals."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import av
import numpy as np

from kata.data.arrays import Pixels
from kata.data.edit.episode_frames import video_frames
from kata.data.edit.video_copy import Cuts
from kata.data.format.feature_stats import ImageCounts, Summary
from kata.data.video.encoder import VideoEncoder, VideoOptions, require_encoder
from kata.data.writing.validation import accept_features
from kata.errors import DataError, did_you_mean
from kata.spec import Column

LOW_PSNR_DB = 30.0
"""Below this mean the loss is easily seen."""

_LOSSLESS_DB = 100.0


@dataclass
class Psnr:
    """Peak signal-to-noise ratio of frames, over all pixels and channels: 10 log10(255**2 / mean
    squared error).
    """

    squares: float = 0.0
    values: int = 0
    frames: int = 0
    worst_db: float = _LOSSLESS_DB

    def add(self, one: Pixels, other: Pixels) -> None:
        """Count in a frame and what it has become."""
        difference = one.astype(np.int32) - other
        squares = float((difference * difference).sum(dtype=np.int64))
        self.squares += squares
        self.values += one.size
        self.frames += 1
        self.worst_db = min(self.worst_db, _db(squares, one.size))

    @property
    def mean_db(self) -> float:
        """Of the mean squared error of all frames; 100 where nothing differs."""
        return _db(self.squares, self.values)


def _db(squares: float, values: int) -> float:
    return (
        min(_LOSSLESS_DB, float(10 * np.log10(255.0**2 * values / squares)))
        if squares
        else _LOSSLESS_DB
    )


class Recoder:
    """An encoder of cameras, one file per episode, which the caller joins.

    Args:
        work: a folder for these files.
        fps: frames per second.
        options: the encoder's.
        size: (height, width) of the result, or None to keep it.
        cameras: their names, or None for all.
    """

    def __init__(
        self,
        work: Path,
        fps: int,
        options: VideoOptions,
        *,
        size: tuple[int, int] | None = None,
        cameras: Sequence[str] | None = None,
    ) -> None:
        self._work = work
        self._fps = fps
        self._options = options
        self._size = size
        self._cameras = cameras
        self._columns: dict[str, Column] = {}
        self._number = 0
        self.psnr: dict[str, Psnr] = {}

    def columns(self, columns: Mapping[str, Column], unread: Sequence[str]) -> dict[str, Column]:
        """Return the cameras that are encoded, as they will be; depth maps keep their bits.

        Raises: DataError for an unknown camera, and for a size that cannot be encoded.
        """
        colour = [key for key, column in columns.items() if column.is_camera and key not in unread]
        chosen = colour if self._cameras is None else list(self._cameras)
        for key in chosen:
            if key not in colour:
                raise DataError(
                    f"cameras: '{key}' cannot be encoded again",
                    rule="a colour camera of the dataset",
                    remedy=did_you_mean(key, colour),
                )
        if not chosen:
            raise DataError(
                "the dataset has no colour camera",
                rule="at least one",
                remedy="it can stay as it is",
            )
        self._columns = {}
        for key in chosen:
            height, width, channels = columns[key].shape
            height, width = self._size or (height, width)
            self._columns[key] = Column("video", (height, width, channels))
            accept_features({key: self._columns[key]}, self._options)
            require_encoder(self._options, fps=self._fps, height=height, width=width)
        self.psnr = {key: Psnr() for key in chosen}
        return self._columns

    def entry(self, key: str, entry: Mapping[str, Any]) -> dict[str, Any]:
        """The entry of info.json for an encoded camera."""
        return {
            **entry,
            "dtype": "video",
            "shape": list(self._columns[key].shape),
            "info": self._options.info(),
        }

    def episode(self, key: str, frames: Callable[[], Iterator[Pixels]]) -> tuple[Cuts, Summary]:
        """Encode an episode; its video, and the statistics of its frames before encoding.

        Args:
            key: the camera.
            frames: gives the episode's frames, once for encoding and once for comparison.
        """
        height, width, channels = self._columns[key].shape
        path = self._work / f"{self._number:06d}.mp4"
        self._number += 1
        self._work.mkdir(exist_ok=True)
        counts, number = ImageCounts(channels), 0
        with VideoEncoder(
            path, fps=self._fps, height=height, width=width, options=self._options
        ) as encoder:
            for frame in _sized(frames(), height, width):
                counts.add(frame)
                encoder.add(frame)
                number += 1
        cuts = Cuts(path, self._fps, passing=True)
        for old, new in zip(
            _sized(frames(), height, width), video_frames(cuts.index, 0, number), strict=True
        ):
            self.psnr[key].add(old, new)
        return cuts, counts.summary()


def _sized(frames: Iterator[Pixels], height: int, width: int) -> Iterator[Pixels]:
    """Frames in another size: means over areas where that is smaller, else bicubic."""
    for frame in frames:
        if frame.shape[:2] == (height, width):
            yield frame
            continue
        smaller = height <= frame.shape[0] and width <= frame.shape[1]
        given = av.VideoFrame.from_ndarray(np.ascontiguousarray(frame), format="rgb24")
        sized: Any = given.reformat(
            width=width, height=height, interpolation="AREA" if smaller else "BICUBIC"
        )
        yield sized.to_ndarray(format="rgb24")
