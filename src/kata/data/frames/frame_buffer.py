"""A buffer of decoded frames that later batches want, within a budget of bytes.

When the buffer is full, the frame whose next use is furthest away is evicted (L. A. Belady, "A
study of replacement algorithms for a virtual-storage computer", IBM Systems Journal 5, 1966).
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass, field
from threading import Lock
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kata.data.frames.frame_delivery import Target
from kata.data.storage.buffers import Slabs
from kata.data.storage.fetch_requests import NEVER

FrameKey: TypeAlias = tuple[str, int]
"""Camera and row in the dataset."""


@dataclass(eq=False, slots=True)
class Frame:
    """A frame that batches wait for, or that is held for later ones.

    Attributes:
        key: camera and row.
        size: in bytes, an estimate until the picture is decoded.
        due: the next step that wants it.
        kept: True if it stays in the buffer.
        taken: True while it has memory.
        memory: of the picture, None until it is decoded.
        picture: the picture in that memory.
        readers: number of tasks that are copying it.
        waiting: the targets that get the picture.
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
    """A buffer of frames by camera and row. `lock` guards every change, also by callers to a Frame.

    Args:
        budget_bytes: limit of both `held_bytes` and `allocated_bytes`. The first counts every kept
            frame from the moment it is planned until its memory is free again. The second counts
            memory, including free slots.

    Attributes:
        evicted: number of frames that made room for others before their next use.
    """

    def __init__(self, budget_bytes: int) -> None:
        self.budget_bytes, self.held_bytes = budget_bytes, 0
        self.evicted = 0
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
        """Hold a frame until step `due`; return False if there is no room.

        Args:
            frame: the frame.
            due: the next step that wants it.
            evict: True if frames whose next use is later than `due` make room.
        """
        # Belady's rule, with one exception: a frame that is needed sooner is never given up for one
        # that is needed later, even if that one is decoded already.
        while self.held_bytes + frame.size > self.budget_bytes:
            if not evict or not self._evict_later_than(due):
                return False
        frame.kept = True
        self._frames[frame.key] = frame
        self.held_bytes += frame.size
        self.postpone(frame, due)
        return True

    def postpone(self, frame: Frame, due: int) -> None:
        """Set the next use of a held frame; NEVER releases it."""
        frame.due = due
        if due == NEVER:
            self._drop(frame)
            return
        self._offer(frame)

    def settle(self, frame: Frame) -> None:
        """Free the memory of a frame that is neither kept nor read; let a kept one be evicted
        again.
        """
        if frame.kept:
            self._offer(frame)
        elif frame.readers == 0 and frame.memory is not None:
            self._memory.give(frame.memory)
            frame.memory = None
            frame.picture = None
            frame.taken = False
            self.held_bytes -= frame.size

    def release(self, frames: list[Frame]) -> None:
        """End one read of each of these frames."""
        with self.lock:
            for frame in frames:
                frame.readers -= 1
                self.settle(frame)

    def take(self, frame: Frame, size: int) -> NDArray[np.uint8] | None:
        """Return memory (size,) for a frame that `keep` has counted.

        Returns:
            None if the picture is larger than was counted and there is no room. The frame is then
            dropped.
        """
        # `keep` counted an estimate: only the decoded picture tells whether it is held as planes.
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
        """Drop all frames, and free their memory."""
        for frame in list(self._frames.values()):
            self._drop(frame)
        self._memory.trim()

    def _drop(self, frame: Frame) -> None:
        frame.kept = False
        del self._frames[frame.key]
        # Memory that a task is still copying from is freed by that task, in `settle`.
        if frame.taken:
            self.settle(frame)
        else:
            self.held_bytes -= frame.size

    def _offer(self, frame: Frame) -> None:
        """Make a frame evictable; `settle` does that later for one that is being written or
        read.
        """
        if not _is_busy(frame):
            self._pushed += 1
            heapq.heappush(self._farthest, (-frame.due, self._pushed, frame.key))
            # A heap cannot change an entry, so a postponed frame leaves its old one behind. They
            # are swept out when they outnumber the frames; else a long run would fill the memory.
            if len(self._farthest) > 64 + 4 * len(self._frames):
                self._farthest = [entry for entry in self._farthest if self._is_current(entry)]
                heapq.heapify(self._farthest)

    def _evict_later_than(self, due: int) -> bool:
        """Drop the frame with the furthest next use, decoded or not, if that is later than
        `due`.
        """
        # The heap is a minimum heap, so steps are stored negated. Old entries of postponed frames
        # are dropped on the way.
        while self._farthest and -self._farthest[0][0] > due:
            entry = heapq.heappop(self._farthest)
            if self._is_current(entry):
                self._drop(self._frames[entry[2]])
                self.evicted += 1
                return True
        return False

    def _is_current(self, entry: tuple[int, int, FrameKey]) -> bool:
        frame = self._frames.get(entry[2])
        return frame is not None and frame.due == -entry[0] and not _is_busy(frame)


def _is_busy(frame: Frame) -> bool:
    """Return True while the frame's memory is written or read, so that it cannot be freed."""
    return frame.readers > 0 or (frame.taken and frame.memory is None)
