"""Decoded frames held for later batches, within a budget of bytes; the one wanted last goes first (Belady 1966)."""

from __future__ import annotations

import heapq
from concurrent.futures import Future
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kata.data.arrays import Int64, Pixels
from kata.data.frames.next_use import NEVER
from kata.data.storage.buffers import Slabs
from kata.errors import FrameError

FrameKey: TypeAlias = tuple[str, int]
"""Camera and row in the dataset."""


@dataclass(eq=False, slots=True)
class Frame:
    """One frame that somebody waits for. kept: it stays after that. due: the next step that wants it.

    size: bytes, as far as they are known before the picture is there. taken: memory for it is in use. memory: where the
    picture lies, once it is there. readers: copies of it that are under way. waiting: who is to get the picture.
    """

    key: FrameKey
    size: int
    due: int = NEVER
    kept: bool = False
    taken: bool = False
    memory: NDArray[np.uint8] | None = None
    picture: Any = None
    readers: int = 0
    waiting: list[Target] = field(default_factory=list)


class Out(NamedTuple):
    """Where frames go: the i-th to pixels[places[i]]; (M, H, W, C) and (N,), ascending, each once."""

    pixels: Pixels
    places: Int64


class Target(NamedTuple):
    """Places of a batch's array that one frame is written to. filling: told how that went."""

    out: Pixels
    places: list[int]
    filling: PendingFrames


class FrameBuffer:
    """Frames by camera and row. `lock` guards every change, also those that callers make to a Frame.

    `held_bytes` counts every kept frame from the moment it is planned to be kept until its memory is free for another;
    `allocated_bytes` counts memory, that which waits for another frame included. Neither exceeds the budget.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes, self.held_bytes = budget_bytes, 0
        self.lock = Lock()
        self._frames: dict[FrameKey, Frame] = {}
        self._farthest: list[tuple[int, int, FrameKey]] = []
        self._pushed = 0
        self._memory = Slabs()

    @property
    def allocated_bytes(self) -> int:
        """Of memory for frames."""
        return self._memory.allocated_bytes

    def get(self, key: FrameKey) -> Frame | None:
        """A frame that is held or about to be."""
        return self._frames.get(key)

    def keys(self) -> list[FrameKey]:
        """All frames held or about to be."""
        return list(self._frames)

    def keep(self, frame: Frame, due: int, *, evict: bool = True) -> bool:
        """Hold a frame until step `due` if there is room, or room can be made of frames wanted later than that."""
        while self.held_bytes + frame.size > self.budget_bytes:
            if not evict or not self._evict_later_than(due):
                return False
        frame.kept = True
        self._frames[frame.key] = frame
        self.held_bytes += frame.size
        self.postpone(frame, due)
        return True

    def postpone(self, frame: Frame, due: int) -> None:
        """A held frame's next use is now `due`; NEVER lets it go."""
        frame.due = due
        if due == NEVER:
            self._drop(frame)
            return
        self._offer(frame)

    def settle(self, frame: Frame) -> None:
        """Once nobody reads a frame: free its memory if it is no longer kept, else it may be driven out again."""
        if frame.kept:
            self._offer(frame)
        elif frame.readers == 0 and frame.memory is not None:
            self._memory.give(frame.memory)
            frame.memory, frame.picture, frame.taken = None, None, False
            self.held_bytes -= frame.size

    def take(self, frame: Frame, size: int) -> NDArray[np.uint8] | None:
        """Memory (size,) for a frame that `keep` has counted.

        Returns: None where the picture is larger than was counted and there is no room; then it is let go.
        """
        room = self.budget_bytes - self.held_bytes + frame.size
        memory = self._memory.take(size, self.budget_bytes) if size <= room else None
        if memory is None:
            self._drop(frame)
            return None
        self.held_bytes += size - frame.size
        frame.size, frame.taken = size, True
        return memory

    def forget(self, frame: Frame) -> None:
        """Take back `keep` of a frame that will never come."""
        if frame.kept:
            self._drop(frame)

    def clear(self) -> None:
        """Let everything go."""
        for frame in list(self._frames.values()):
            self._drop(frame)
        self._memory.trim()

    def _drop(self, frame: Frame) -> None:
        frame.kept = False
        del self._frames[frame.key]
        if frame.taken:
            self.settle(frame)
        else:
            self.held_bytes -= frame.size

    def _offer(self, frame: Frame) -> None:
        """Let a frame be driven out, unless it is being written or read: then `settle` does, later."""
        if not _is_busy(frame):
            self._pushed += 1
            heapq.heappush(self._farthest, (-frame.due, self._pushed, frame.key))
            if len(self._farthest) > 64 + 4 * len(self._frames):
                self._farthest = [entry for entry in self._farthest if self._is_current(entry)]
                heapq.heapify(self._farthest)

    def _evict_later_than(self, due: int) -> bool:
        """Drop the frame with the farthest next use if that is later than `due`; a frame on its way, too."""
        while self._farthest and -self._farthest[0][0] > due:
            entry = heapq.heappop(self._farthest)
            if self._is_current(entry):
                self._drop(self._frames[entry[2]])
                return True
        return False

    def _is_current(self, entry: tuple[int, int, FrameKey]) -> bool:
        frame = self._frames.get(entry[2])
        return frame is not None and frame.due == -entry[0] and not _is_busy(frame)


def _is_busy(frame: Frame) -> bool:
    """Its memory is being written or read: it would not be free at once."""
    return frame.readers > 0 or (frame.taken and frame.memory is None)


class PendingFrames:
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
