"""Actions relative to the state: by hand, there and back, and LeRobot's rule on names."""

import pytest
import torch

from kata.errors import DataError
from kata.processors import AbsoluteActions, RelativeActions
from kata.spec import ACTION, ORIGIN, STATE, relative_dimensions

STATES = torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])
ACTIONS = torch.arange(12.0).reshape(2, 3, 2)


def test_the_state_is_subtracted_from_each_action_of_a_chunk_and_added_again():
    step = RelativeActions(enabled=True, exclude_joints=["grip"], action_names=["x", "Gripper"])
    found = step({STATE: STATES, ACTION: ACTIONS})
    expected = ACTIONS - torch.tensor([[1.0, 0], [4, 0]])[:, None]
    assert torch.equal(found[ACTION], expected)
    assert torch.equal(AbsoluteActions(enabled=True)(found)[ACTION], ACTIONS)
    seen = step({STATE: STATES})  # in acting
    assert torch.equal(seen[STATE], STATES)
    one = {ACTION: expected[:, 1], ORIGIN: seen[ORIGIN]}
    assert torch.equal(AbsoluteActions(enabled=True)(one)[ACTION], ACTIONS[:, 1])


def test_steps_that_are_off_change_nothing():
    given = {STATE: STATES, ACTION: ACTIONS}
    assert RelativeActions()(given) is given
    assert AbsoluteActions()(given) is given


def test_absolute_actions_need_the_state_of_their_chunk():
    with pytest.raises(DataError, match=r"no observation\.state\.origin beside the action"):
        AbsoluteActions(enabled=True)({ACTION: ACTIONS})


def test_names_decide_which_numbers_stay_absolute():
    names = ["left_Gripper.pos", "elbow.pos"]
    assert relative_dimensions(names, ["gripper"], 4) == [False, True, True, True]
    assert relative_dimensions(names, ["gripper"], 1) == [False]
    assert relative_dimensions(names, ["", "wrist"], 2) == [True, True]
    assert relative_dimensions(None, ["gripper"], 2) == [True, True]
