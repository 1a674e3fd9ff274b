"""Episodes as mp4 files, some that succeed and some that fail, and as strips of a few frames.

Torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import av
import numpy as np
from numpy.typing import NDArray

from kata.data.video.encoder import VideoEncoder, VideoOptions

Pictures = list[NDArray[np.uint8]]

TRIED_PER_KEPT = 4
"""Episodes filmed for each one kept, so that rare failures or rare successes are among them."""


class Film:
    """One episode's pictures on their way into a file; the file begins with the first picture."""

    def __init__(self, path: Path, fps: int) -> None:
        self.path, self._fps = path, fps
        self._encoder: VideoEncoder | None = None

    def add(self, picture: NDArray[np.uint8]) -> None:
        """Append a picture, uint8 (H, W, 3)."""
        even = np.pad(
            picture, ((0, len(picture) % 2), (0, picture.shape[1] % 2), (0, 0)), mode="edge"
        )
        if self._encoder is None:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            options = VideoOptions(codec="h264", gop=self._fps)
            height, width = even.shape[:2]
            self._encoder = VideoEncoder(
                self.path, fps=self._fps, height=height, width=width, options=options
            )
        self._encoder.add(even)

    def close(self) -> bool:
        """Finish the file; false where there was no picture. A second call changes nothing."""
        encoder, self._encoder = self._encoder, None
        if encoder is not None:
            encoder.close()
        return self.path.exists()


def chosen(success: Sequence[bool], count: int) -> list[int]:
    """Up to `count` numbers of episodes: half of them failures where there are enough, the rest
    successes.
    """
    good = [number for number, won in enumerate(success) if won]
    bad = [number for number, won in enumerate(success) if not won]
    from_bad = min(len(bad), max(count // 2, count - len(good)))
    return sorted(good[: count - from_bad] + bad[:from_bad])


def read_strip(path: Path, count: int = 12) -> Pictures:
    """At most `count` frames of a video, evenly spaced with the first and the last, uint8 (H, W,
    3).
    """
    with av.open(str(path)) as source:
        stream = source.streams.video[0]
        wanted = set(
            np.linspace(0, stream.frames - 1, min(count, stream.frames))
            .round()
            .astype(int)
            .tolist()
        )
        frames: Any = enumerate(source.decode(stream))
        return [frame.to_ndarray(format="rgb24") for number, frame in frames if number in wanted]
