"""Native DDP, FSDP2 and HSDP against one rank: the same sums, whatever has a gradient."""

import pytest

from tests.dist import ranks
from tests.dist.toy import Case, compare

CASES = {
    "DDP": (
        2,
        Case(),
        Case(accumulation=2),
        Case(changes=True),  # gradients elsewhere from some step on
        Case(changes=True, accumulation=2),
        Case(bf16=True),
        Case(still_norm=False),
    ),
    "FSDP2": (
        2,
        Case(shards=2),
        Case(shards=2, accumulation=2),
        Case(shards=2, changes=True, adam=True),
        Case(shards=2, changes=True, accumulation=2),
        Case(shards=2, still_norm=False),
    ),
    "HSDP": (
        4,
        Case(shards=2),
        Case(shards=2, accumulation=2, changes=True),
        Case(shards=4, adam=True),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_several_ranks_are_one(name, tmp_path):
    size, *cases = CASES[name]
    group = ranks.start(size, compare, *cases, folder=tmp_path)
    assert group.ended() == [0] * size, "".join(group.said(rank) for rank in range(size))
