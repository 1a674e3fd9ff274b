"""The model of torch's CUDA allocator against sequences whose outcome its rules fix."""

import pytest

from kata.plan.caching_allocator import CachingAllocator, rounded, segment_bytes

KIB, MIB = 2**10, 2**20


@pytest.mark.parametrize(
    ("size", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 11 * MIB, 12 * MIB),
    ],
)
def test_blocks_and_segments_have_torchs_sizes(size, block, segment):
    assert (rounded(size), segment_bytes(rounded(size))) == (block, segment)


def test_small_blocks_share_a_segment_and_large_ones_another():
    allocator = CachingAllocator()
    allocator.allocate(600 * KIB)
    allocator.allocate(600 * KIB)
    assert allocator.reserved == 2 * MIB
    allocator.allocate(900 * KIB)  # the rest of the segment is too small
    assert allocator.reserved == 4 * MIB
    for _ in range(4):
        allocator.allocate(5 * MIB)
    assert allocator.reserved == 24 * MIB
    assert allocator.allocated == 2100 * KIB + 20 * MIB


def test_the_smallest_fitting_block_is_used_again():
    allocator = CachingAllocator()
    wide, narrow = allocator.allocate(40 * MIB), allocator.allocate(30 * MIB)
    for block in (wide, narrow):
        allocator.free(block)
    again = allocator.allocate(30 * MIB - 512 * KIB)
    assert again is not None
    assert again.size == 30 * MIB
    assert allocator.reserved == 70 * MIB


def test_a_block_is_split_and_joined_again():
    allocator = CachingAllocator()
    whole = allocator.allocate(40 * MIB)
    allocator.free(whole)
    first, second = allocator.allocate(15 * MIB), allocator.allocate(25 * MIB)
    assert allocator.reserved == 40 * MIB
    for block in (first, second):
        allocator.free(block)
    allocator.allocate(40 * MIB)
    assert allocator.reserved == 40 * MIB


def test_pieces_in_use_keep_others_apart():
    allocator = CachingAllocator()
    pieces = [allocator.allocate(5 * MIB) for _ in range(4)]
    for block in pieces[::2]:
        allocator.free(block)
    allocator.allocate(10 * MIB)  # ten are free, but not in one piece
    assert allocator.reserved == 30 * MIB


def test_streams_do_not_share_blocks():
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(MIB, stream=1))
    allocator.allocate(MIB)
    assert allocator.reserved == 4 * MIB


def test_no_bytes_need_no_block():
    allocator = CachingAllocator()
    allocator.free(allocator.allocate(0))
    assert allocator.reserved == 0
