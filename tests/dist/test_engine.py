"""Native DDP against one rank: the same sums, whatever has a gradient."""

import pytest

from tests.dist import ranks, toy

CASES = {
    "plain": (1, False, False, True),
    "accumulated": (2, False, False, True),
    "gradients elsewhere from some step on": (1, True, False, True),
    "the same, accumulated": (2, True, False, True),
    "sent as bf16": (1, False, True, True),
    "batch norm that counts": (1, False, False, False),
}


@pytest.mark.parametrize("name", CASES)
def test_two_ranks_are_one(name, tmp_path):
    team = ranks.start(2, toy.compare, *CASES[name], folder=tmp_path)
    assert team.ended() == [0, 0], team.said(0) + team.said(1)
