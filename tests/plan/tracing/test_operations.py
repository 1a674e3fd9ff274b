"""Bytes of operations: what a tensor repeats is read once."""

import pytest
import torch

from kata.plan.tracing.operations import bytes_of


@pytest.mark.parametrize(
    ("tensor", "size"),
    [
        (torch.zeros(3, 4), 48),
        (torch.zeros(()), 4),
        (torch.zeros(0, 4), 0),
        (torch.zeros(4).expand(3, 4), 16),
        (torch.zeros(12, 4)[:4].expand(5, 4, 4), 64),
        (torch.zeros(4, dtype=torch.int64)[1:], 24),
        (torch.zeros(6).unfold(0, 3, 1), 24),
    ],
)
def test_bytes_are_those_that_memory_holds(tensor, size):
    assert bytes_of([tensor]) == size
