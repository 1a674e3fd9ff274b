"""π0 and π0.5 in two shards: gradients and chunks are those of one rank."""

import pytest

from tests.dist import ranks, scenes

CASES = (
    {"train_expert_only": True},
    {"freeze_vision_encoder": True},
    {"dtype": "bfloat16"},
)


@pytest.mark.long
@pytest.mark.parametrize("name", ["pi0", "pi05"])
def test_two_shards_have_the_gradients_of_one_rank(name, tmp_path):
    cases = ((name, options) for options in CASES)
    group = ranks.start(2, scenes.shard_pi, *cases, folder=tmp_path / "out")
    assert group.ended(600) == [0, 0], group.said(0) + group.said(1)
