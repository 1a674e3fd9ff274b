"""Buffers of a bad step come back bit by bit, and those of a good one stay."""

import pytest
import torch

from kata.update.statistics import kept_aside, put_back_if


def buffers():
    """Return buffers of two types and several shapes, NaN included."""
    return [
        torch.tensor([1.5, float("nan")]),
        torch.tensor(3),
        torch.arange(6.0).reshape(2, 3),
        torch.tensor(7),
    ]


@pytest.mark.parametrize("bad", [True, False])
def test_values_come_back_only_after_a_bad_step(bad):
    mine = buffers()
    before = kept_aside(mine)
    for buffer in mine:
        buffer.add_(float("inf") if buffer.is_floating_point() else 2)
    changed = [buffer.clone() for buffer in mine]
    put_back_if(torch.tensor(bad), mine, before)
    for found, wanted in zip(mine, buffers() if bad else changed, strict=True):
        assert found.dtype == wanted.dtype
        assert torch.equal(found.nan_to_num(), wanted.nan_to_num())


def test_no_buffers_are_fine():
    put_back_if(torch.tensor(True), [], kept_aside([]))
