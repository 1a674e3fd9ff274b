"""Groups of NVIDIA's files: sizes, places, and what is refused."""

import pytest
import torch

from kata.errors import CheckpointError
from kata.processors.groot.groups import action_groups, flat_stats, size_of

STATS = {
    "state": {"pose": {"min": [0.0] * 9, "max": [1.0] * 9}, "hand": {"min": [0.0], "max": [2.0]}},
    "action": {
        "pose": {"min": [0.0] * 9, "max": [1.0] * 9},
        "hand": {"min": [0.0], "max": [2.0], "q01": [0.5], "q99": [1.5], "mean": [1], "std": [1]},
    },
    "relative_action": {"pose": {"min": [[0.0] * 9] * 2, "max": [[1.0] * 9] * 2}},
}
POSE = {"rep": "RELATIVE", "type": "EEF", "format": "XYZ_ROT6D"}


def modality(config):
    keys = ["pose", "hand"]
    configs = [config, {"rep": "ABSOLUTE"}]
    action = {"modality_keys": keys, "action_configs": configs}
    return {"state": {"modality_keys": ["hand", "pose"]}, "action": action}


def test_relative_groups_have_rows_and_absolute_ones_percentiles():
    pose, hand = action_groups(STATS, modality(POSE), use_percentiles=True, use_relative=True)
    assert (pose.start, pose.size, pose.state, pose.is_pose) == (0, 9, 1, True)
    assert pose.low.shape == (2, 9)
    assert (hand.start, hand.state, hand.low.item(), hand.high.item()) == (9, None, 0.5, 1.5)
    plain, _ = action_groups(STATS, modality(POSE), use_percentiles=False, use_relative=False)
    assert plain.state is None
    assert plain.low.ndim == 1


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({**POSE, "format": "XYZ_ROTVEC"}, "format xyz\\+rotvec"),
        ({**POSE, "state_key": "arm"}, "relative to the state group arm"),
        ({"rep": "ABSOLUTE"}, "no q01 and q99"),
    ],
)
def test_unknown_groups_are_refused(config, says):
    with pytest.raises(CheckpointError, match=says):
        action_groups(STATS, modality(config), use_percentiles=True, use_relative=True)


def test_sizes_come_from_rows_too():
    assert size_of({"min": [[1, 2, 3]]}) == 3
    assert size_of({}) == 0
    with pytest.raises(CheckpointError, match="no mean"):
        flat_stats(STATS, modality(POSE), use_percentiles=False, use_relative=False)
    assert torch.equal(
        flat_stats(
            {"action": {"hand": STATS["action"]["hand"]}},
            {"action": {"modality_keys": ["hand"]}},
            use_percentiles=True,
            use_relative=False,
        )["action"]["min"],
        torch.tensor([0.5]),
    )
