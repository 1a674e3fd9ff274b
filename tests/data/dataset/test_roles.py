"""A column takes a role where it alone can have it; where several can, the user is asked."""

import json

import pytest

from kata.data.dataset.roles import find_roles, flags
from kata.spec import ACTION, ENV_STATE, STATE, Column

VECTOR = Column("float32", (7,))
FLAG = Column("bool", (1,))
CAMERA = Column("video", (48, 64, 3))
TOP = "observation.images.top"


def columns(**more):
    return {name.replace("__", "."): column for name, column in more.items()}


FOUND = {
    "LeRobot's names": ({ACTION: VECTOR, STATE: VECTOR, TOP: CAMERA}, {}),
    "plain words": (
        {"actions": VECTOR, "state": VECTOR, "image": CAMERA},
        {"actions": ACTION, "state": STATE, "image": "observation.images.image"},
    ),
    "joint positions": (
        {ACTION: VECTOR, "observation.joint_positions": VECTOR},
        {"observation.joint_positions": STATE},
    ),
    "one part": (
        {"action.joints": VECTOR, "qpos": VECTOR},
        {"action.joints": ACTION, "qpos": STATE},
    ),
    "an action with more beside it": ({ACTION: VECTOR, "action.joints": VECTOR}, {}),
    "no vectors": (
        {
            ACTION: VECTOR,
            "state": Column("string", (1,)),
            "observation.grid": Column("float32", (3, 3)),
            "observation.is_held": FLAG,
            "observation.step": Column("int64", (1,)),
            ENV_STATE: VECTOR,
        },
        {},
    ),
    "cameras in groups": (
        {ACTION: VECTOR, "video.ego": CAMERA, "observation.rgb.left": CAMERA},
        {
            "video.ego": "observation.images.ego",
            "observation.rgb.left": "observation.images.rgb.left",
        },
    ),
    "cameras with LeRobot's names": ({ACTION: VECTOR, "observation.image": CAMERA}, {}),
    "cameras of one name": (
        {ACTION: VECTOR, "image.top": CAMERA, "video.top": CAMERA, TOP: CAMERA},
        {},
    ),
}


@pytest.mark.parametrize("case", FOUND)
def test_what_alone_can_be_it_is_found(case):
    given, found = FOUND[case]
    roles = find_roles(given, {})
    assert roles.found == found
    assert not roles.unclear


def test_what_the_user_names_stays_so():
    given = columns(actions=VECTOR, action_old=VECTOR, state=VECTOR, image=CAMERA)
    roles = find_roles(given, {"action_old": ACTION, "image": TOP})
    assert roles.found == {"state": STATE}
    assert not roles.unclear


def test_what_the_policy_reads_by_its_own_name_stays_so():
    given = columns(action=VECTOR, observation__joint_positions=VECTOR, image=CAMERA, side=CAMERA)
    reads = ("observation.joint_positions", "image", "observation.images.side")
    assert find_roles(given, {}, reads, (ACTION,)).found == {"side": "observation.images.side"}
    assert find_roles(given, {}, (TOP,), (ACTION,)).found == {}, "it does not ask for a state"
    assert find_roles(given, {}, (STATE,), (ACTION,)).found == {
        "observation.joint_positions": STATE
    }


def test_several_are_not_chosen_from():
    given = columns(action_left=VECTOR, action_right=VECTOR, qpos=VECTOR, observation__force=VECTOR)
    roles = find_roles(given, {"qpos": "x"})
    assert roles.unclear == {ACTION: ["action_left", "action_right"]}
    assert roles.found == {"observation.force": STATE}
    assert flags(roles.unclear, {"qpos": "x"}) == [
        """--rename_map='{"qpos": "x", "action_left": "action"}'""",
        """--rename_map='{"qpos": "x", "action_right": "action"}'""",
    ]


def test_parts_are_joined_by_one_option():
    given = {
        "action.joints": VECTOR,
        "action.gripper_close": FLAG,
        "state.joints": VECTOR,
        "state.gripper_width": Column("float64", (1,)),
    }
    roles = find_roles(given, {})
    first = flags(roles.unclear, {}, {"observation.environment_state": ["goal"]})[0]
    option, _, text = first.partition("=")
    assert option == "--dataset.concat"
    assert json.loads(text.strip("'")) == {
        "observation.environment_state": ["goal"],
        ACTION: ["action.joints", "action.gripper_close"],
        STATE: ["state.joints", "state.gripper_width"],
    }
