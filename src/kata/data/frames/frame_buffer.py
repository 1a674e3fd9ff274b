"""Decoded frames held for later batches, within a budget of bytes.

When the buffer is full, the frame whose next use is furthest away is evicted (Belady 1966).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kata.data.frames.frame_delivery import Target
from kata.data.frames.next_use import NEVER
from kata.data.storage.buffers import Slabs

FrameKey: TypeAlias = tuple[str, int]
"""Camera and row in the dataset."""


@dataclass(eq=False, slots=True)
class Frame:
    """One frame that batches wait for, or that is held for later ones.

    size: bytes, an estimate until the picture is decoded. due: the next step that wants it.
    kept: True if it stays in the buffer. taken: True while it has memory.
    memory: of the picture, None until it is decoded. picture: in that memory.
    readers: copies of it that are running. waiting: the targets that get the picture.
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


class FrameBuffer:
    """A buffer of frames by camera and row; `lock` guards every change, those of callers to a Frame
    too.

    `held_bytes` counts every kept frame from the moment it is planned to be kept until its memory
    is free for another; `allocated_bytes` counts memory, that which waits for another frame
    included. Neither exceeds the budget.
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
        """Return the bytes of memory allocated for frames."""
        return self._memory.allocated_bytes

    def get(self, key: FrameKey) -> Frame | None:
        """Return a frame that is held or will be, else None."""
        return self._frames.get(key)

    def keys(self) -> list[FrameKey]:
        """Return the keys of all frames that are held or will be."""
        return list(self._frames)

    def keep(self, frame: Frame, due: int, *, evict: bool = True) -> bool:
        """Hold a frame until step `due`, and return False where there is no room.

        With `evict`, frames whose next use is later than `due` make room.
        """
        while self.held_bytes + frame.size > self.budget_bytes:
            if not evict or not self._evict_later_than(due):
                return False
        frame.kept = True
        self._frames[frame.key] = frame
        self.held_bytes += frame.size
        self.postpone(frame, due)
        return True

    def postpone(self, frame: Frame, due: int) -> None:
        """Set the next use of a held frame; NEVER lets it go."""
        frame.due = due
        if due == NEVER:
            self._drop(frame)
            return
        self._offer(frame)

    def settle(self, frame: Frame) -> None:
        """Free the memory of a frame that is not kept or read any more; a kept one may be evicted
        again.
        """
        if frame.kept:
            self._offer(frame)
        elif frame.readers == 0 and frame.memory is not None:
            self._memory.give(frame.memory)
            frame.memory, frame.picture, frame.taken = None, None, False
            self.held_bytes -= frame.size

    def release(self, frames: list[Frame]) -> None:
        """End one read of each of these frames."""
        with self.lock:
            for frame in frames:
                frame.readers -= 1
                self.settle(frame)

    def take(self, frame: Frame, size: int) -> NDArray[np.uint8] | None:
        """Return memory (size,) for a frame that `keep` has counted.

        Returns: None where the picture is larger than was counted and there is no room; then it is
            let go.
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
        """Undo `keep` for a frame that will not be decoded."""
        if frame.kept:
            self._drop(frame)

    def clear(self) -> None:
        """Let all frames go, and free their memory."""
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
        """Make a frame evictable, unless it is being written or read; then `settle` does so
        later.
        """
        if not _is_busy(frame):
            self._pushed += 1
            heapq.heappush(self._farthest, (-frame.due, self._pushed, frame.key))
            # A postponed frame leaves its old entry behind: sweep before they outnumber the frames.
            if len(self._farthest) > 64 + 4 * len(self._frames):
                self._farthest = [entry for entry in self._farthest if self._is_current(entry)]
                heapq.heapify(self._farthest)

    def _evict_later_than(self, due: int) -> bool:
        """Drop the frame with the furthest next use if that is later than `due`, decoded or not."""
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
    """Return True while its memory is written or read, so that it cannot be freed."""
    return frame.readers > 0 or (frame.taken and frame.memory is None)
