"""Actions in the robot's units: groups, poses, LIBERO's gripper, and what is refused."""

import pytest
import torch

from kata.errors import CheckpointError, DataError
from kata.processors.groot import DecodeGroups, Unpack
from kata.processors.groot.decode import moved_pose, rotation_of
from kata.spec import ACTION, ORIGIN

STATS = {
    "state": {"arm": {"min": [0.0, 0.0], "max": [1.0, 1.0]}},
    "action": {"arm": {"min": [0.0, 0.0], "max": [1.0, 1.0]}, "gripper": {"min": [0], "max": [1]}},
    "relative_action": {"arm": {"min": [[0, 0], [10, 10]], "max": [[2, 2], [14, 14]]}},
}
JOINTS = {"rep": "RELATIVE", "type": "NON_EEF", "format": "DEFAULT"}
GROUPS = {
    "state": {"modality_keys": ["arm"]},
    "action": {
        "modality_keys": ["arm", "gripper"],
        "action_configs": [JOINTS, {"rep": "ABSOLUTE"}],
        "delta_indices": [0, 1],
    },
}


def relative(**options):
    return DecodeGroups(3, STATS, GROUPS, use_relative_action=True, **options)


def test_each_step_of_a_chunk_has_its_own_limits():
    state = torch.tensor([[100.0, 200.0]])
    chunk = torch.zeros(1, 3, 3)
    whole = relative()({ACTION: chunk, ORIGIN: state})[ACTION]
    assert whole.tolist() == [[[101, 201, 0.5], [112, 212, 0.5]]]
    for number in (0, 1):
        origin = torch.cat((state, torch.tensor([[float(number)]])), dim=1)
        single = relative()({ACTION: chunk[:, 0], ORIGIN: origin})[ACTION]
        assert torch.equal(single, whole[:, number])
    with pytest.raises(DataError, match=ORIGIN):
        relative()({ACTION: chunk})


def test_liberos_gripper_is_a_sign():
    action = torch.tensor([[0.0, 0.0, 0.9]])
    found = relative(action_decode_transform="libero")
    assert found({ACTION: action, ORIGIN: torch.zeros(1, 2)})[ACTION][0, 2] == -1.0
    plain = Unpack(libero_gripper_action=True)
    seven = torch.full((1, 7), 0.25)
    assert plain({ACTION: seven})[ACTION][0, 6] == 1.0
    soft = Unpack(libero_gripper_action=True, libero_gripper_binarize=False)
    assert soft({ACTION: seven})[ACTION][0, 6] == 0.5
    groups = {**GROUPS, "action": {**GROUPS["action"], "modality_keys": ["arm"]}}
    found = DecodeGroups(2, STATS, groups, action_decode_transform="libero")
    with pytest.raises(CheckpointError, match="a group `gripper`"):
        found({ACTION: action, ORIGIN: torch.zeros(1, 2)})
    with pytest.raises(CheckpointError, match="null or libero"):
        DecodeGroups(action_decode_transform="flip")


def test_poses_are_moved_and_turned():
    turn = torch.tensor([0.0, 1.0, 0.0, -1.0, 0.0, 0.0])
    origin = torch.cat((torch.tensor([1.0, 2.0, 3.0]), turn))
    still = torch.tensor([1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0])
    assert torch.equal(moved_pose(still, origin), torch.tensor([1.0, 1, 3, 0, 1, 0, -1, 0, 0]))
    rows = rotation_of(torch.tensor([2.0, 0, 0, 1, 3, 0]))
    assert torch.allclose(rows, torch.eye(3).double())
