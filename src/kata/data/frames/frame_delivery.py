"""Delivery of frames into batches: the slots that they are written to, and the wait for them."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Lock
from typing import NamedTuple

import numpy as np

from kata.data.arrays import Int64, Pixels
from kata.data.frames.camera import Camera, Picture
from kata.errors import FrameError


class Out(NamedTuple):
    """The destination of a camera's frames in a batch: the i-th frame goes to pixels[slots[i]].

    Attributes:
        pixels: (M, H, W, C) uint8.
        slots: (N,) ascending, each once.
    """

    pixels: Pixels
    slots: Int64


class Target(NamedTuple):
    """The slots of one batch's array that a frame is written to, and the batch that waits for
    it.
    """

    out: Pixels
    slots: list[int]
    pending: PendingFrames


class PendingFrames:
    """The frames of one batch that are not written yet.

    `wait` returns when every frame is written. If a frame cannot be decoded, it raises once the
    outcome of all others is known. Any other error is raised at once.

    Args:
        count: number of frames, counted once per slot.
    """

    def __init__(self, count: int) -> None:
        self._left = count
        self._lock = Lock()
        self._done = Future[None]()
        self._bad: FrameError | None = None
        self.landed(0)  # a batch without frames is complete now

    def landed(self, count: int) -> None:
        """Count frames that are written."""
        with self._lock:
            self._left -= count
            self._end()

    def bad(self, error: FrameError, count: int) -> None:
        """Count frames that cannot be decoded.

        All others are waited for, so that the error that `wait` raises does not depend on the
        timing of threads.
        """
        with self._lock:
            if self._bad is None or (error.camera, error.row) < (self._bad.camera, self._bad.row):
                self._bad = error
            self._left -= count
            self._end()

    def failed(self, error: BaseException) -> None:
        """Raise this error for the whole batch."""
        with self._lock:
            # At once, without waiting for the others: the run ends anyway.
            if not self._done.done():
                self._done.set_exception(error)

    def wait(self) -> None:
        """Wait for all frames.

        Raises:
            FrameError: A frame cannot be decoded; of several, the first by camera and row.
            BaseException: Any other error that a task met.
        """
        self._done.result()

    def _end(self) -> None:
        # `failed` may have ended the batch before its last frame arrives.
        if self._left or self._done.done():
            return
        if self._bad is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(self._bad)


def write_picture(camera: Camera, picture: Picture, target: Target) -> Pixels:
    """Write a picture to all slots of a target, and return its pixels in the first slot."""
    first, *others = target.slots
    pixels: Pixels = target.out[first]
    camera.write_frame(picture, pixels)
    # Copies for the other slots: a copy is cheaper than another conversion.
    for slot in others:
        np.copyto(target.out[slot], pixels)
    return pixels
