"""What waits for the frames of a batch."""

from __future__ import annotations

from concurrent.futures import Future
from threading import Lock

from kata.errors import FrameError


class Filling:
    """The frames of one batch on their way; `wait` ends when the fate of each is known, or anything else went wrong."""

    def __init__(self, count: int) -> None:
        self._left, self._lock, self._done = count, Lock(), Future[None]()
        self._bad: FrameError | None = None
        self.landed(0)

    def landed(self, count: int) -> None:
        """Some frames are in their place."""
        with self._lock:
            self._left -= count
            self._end()

    def bad(self, error: FrameError, count: int) -> None:
        """Some frames cannot be decoded. All others are waited for: which error is told depends on no thread."""
        with self._lock:
            if self._bad is None or (error.camera, error.row) < (self._bad.camera, self._bad.row):
                self._bad = error
            self._left -= count
            self._end()

    def failed(self, error: BaseException) -> None:
        """The batch cannot be had."""
        with self._lock:
            if not self._done.done():
                self._done.set_exception(error)

    def wait(self) -> None:
        """Raises: FrameError for the first frame that cannot be decoded, by camera and row; what else went wrong."""
        self._done.result()

    def _end(self) -> None:
        if self._left or self._done.done():
            return
        if self._bad is None:
            self._done.set_result(None)
        else:
            self._done.set_exception(self._bad)
