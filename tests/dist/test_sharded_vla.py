"""SmolVLA, π0, π0.5, π0-FAST, EO-1, GR00T and Wall-X in two shards: gradients and chunks are those
of one rank.
"""

import pytest

from tests.dist import ranks, scenes

CASES = (
    {"train_expert_only": True},
    {"freeze_vision_encoder": True},
    {"dtype": "bfloat16"},
)
FAST_CASES = ({}, {"freeze_vision_encoder": True})


@pytest.mark.long
@pytest.mark.parametrize("name", ["pi0", "pi05", "pi0_fast"])
def test_two_shards_have_the_gradients_of_one_rank(name, tmp_path):
    cases = ((name, options) for options in (FAST_CASES if name == "pi0_fast" else CASES))
    group = ranks.start(2, scenes.shard_pi, *cases, folder=tmp_path / "out")
    assert group.ended(600) == [0, 0], group.said(0) + group.said(1)


@pytest.mark.long
def test_two_shards_of_smolvla_have_the_gradients_of_one_rank(tmp_path):
    cases = ("default", "all_trained", "frozen_vision", "self_attention")
    group = ranks.start(2, scenes.shard_smolvla, *cases, folder=tmp_path / "out")
    assert group.ended(600) == [0, 0], group.said(0) + group.said(1)


@pytest.mark.long
@pytest.mark.parametrize("name", ["eo1", "groot", "wall_x", "wall_x/words"])
def test_two_shards_with_qwen_have_the_gradients_of_one_rank(name, tmp_path):
    group = ranks.start(2, scenes.shard_spliced, name, folder=tmp_path / "out")
    assert group.ended(600) == [0, 0], group.said(0) + group.said(1)
