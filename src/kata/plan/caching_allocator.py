"""A model of the caching allocator of torch's CUDA backend. Torch-free.

Rules and constants are those of torch 2.11, c10/core/AllocatorConfig.h and
c10/cuda/CUDACachingAllocator.cpp, with its default settings.
"""

from __future__ import annotations

import bisect
from dataclasses import dataclass

BLOCK_BYTES = 512
"""Every block is a multiple of this."""

SMALL_BYTES = 2**20
"""Blocks up to this size come from small segments."""

SMALL_SEGMENT_BYTES = 2 * 2**20
LARGE_SEGMENT_BYTES = 20 * 2**20
LARGE_BLOCK_BYTES = 10 * 2**20
"""Blocks from this size on get a segment that is a multiple of SEGMENT_ROUND_BYTES."""

SEGMENT_ROUND_BYTES = 2 * 2**20

COPY_STREAM = 1
"""The stream on which batches are copied; the step runs on stream 0."""


def rounded(size: int) -> int:
    """Return the size of the block for `size` bytes."""
    return max(BLOCK_BYTES, -(-size // BLOCK_BYTES) * BLOCK_BYTES)


def segment_bytes(size: int) -> int:
    """Return the size of a new segment for a block of `size` bytes."""
    if size <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if size < LARGE_BLOCK_BYTES:
        return LARGE_SEGMENT_BYTES
    return -(-size // SEGMENT_ROUND_BYTES) * SEGMENT_ROUND_BYTES


@dataclass(slots=True, eq=False)
class Block:
    """A piece of a segment, in use or free.

    Attributes:
        pool: key of its pool: the stream, and True for small blocks.
        address: distinguishes blocks, and orders those of equal size.
        size: bytes.
        before: the piece before it in the segment, or None.
        after: the piece after it, or None.
        is_free: True if it is cached for reuse.
    """

    pool: tuple[int, bool]
    address: int
    size: int
    before: Block | None = None
    after: Block | None = None
    is_free: bool = False


class CachingAllocator:
    """An allocator that replays allocations, and counts what it takes from the device.

    Attributes:
        allocated: bytes of the blocks in use.
        reserved: bytes of all segments; torch never returns them while memory is left.
        most_allocated: the most so far.
    """

    def __init__(self) -> None:
        self.allocated = 0
        self.reserved = 0
        self.most_allocated = 0
        self._free: dict[tuple[int, bool], list[tuple[int, int]]] = {}
        self._blocks: dict[int, Block] = {}
        self._top = 0

    def allocate(self, size: int, stream: int = 0) -> Block | None:
        """Return a block for `size` bytes; None for no bytes, which need none."""
        if size == 0:
            return None
        need = rounded(size)
        block = self._best_fit(need, stream) or self._segment(need, stream)
        self._split(block, need)
        block.is_free = False
        self.allocated += block.size
        self.most_allocated = max(self.most_allocated, self.allocated)
        return block

    def free(self, block: Block | None) -> None:
        """Give a block back to its pool, joined with the free pieces beside it."""
        if block is None:
            return
        self.allocated -= block.size
        for other in (block.before, block.after):
            if other is not None and other.is_free:
                self._take(other)
                self._join(block, other)
        block.is_free = True
        self._blocks[block.address] = block
        bisect.insort(self._free.setdefault(block.pool, []), (block.size, block.address))

    def _best_fit(self, need: int, stream: int) -> Block | None:
        """Return the smallest free block of the pool that is large enough."""
        pool = self._free.get((stream, need <= SMALL_BYTES), [])
        at = bisect.bisect_left(pool, (need, 0))
        if at == len(pool):
            return None
        block = self._blocks[pool[at][1]]
        self._take(block)
        return block

    def _segment(self, need: int, stream: int) -> Block:
        size = segment_bytes(need)
        block = Block((stream, need <= SMALL_BYTES), self._top, size)
        self._top += size
        self.reserved += size
        return block

    def _take(self, block: Block) -> None:
        pool = self._free[block.pool]
        del pool[bisect.bisect_left(pool, (block.size, block.address))]
        del self._blocks[block.address]

    def _split(self, block: Block, need: int) -> None:
        """Cut off what is not needed, if it is worth a block."""
        rest = block.size - need
        is_small = block.pool[1]
        if rest < BLOCK_BYTES or (not is_small and rest <= SMALL_BYTES):
            return
        other = Block(block.pool, block.address + need, rest, block, block.after, is_free=True)
        if block.after is not None:
            block.after.before = other
        block.after = other
        block.size = need
        self._blocks[other.address] = other
        bisect.insort(self._free.setdefault(other.pool, []), (other.size, other.address))

    @staticmethod
    def _join(block: Block, other: Block) -> None:
        """Let `block` take up its free neighbor."""
        if other is block.before:
            block.address = other.address
            block.before = other.before
            if other.before is not None:
                other.before.after = block
        else:
            block.after = other.after
            if other.after is not None:
                other.after.before = block
        block.size += other.size
