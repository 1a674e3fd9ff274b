"""X-VLA's steps: frames, numbers of robots, rotations."""

import math

import pytest
import torch

from kata.errors import DataError
from kata.processors.pipeline import Pipeline, load_pipeline
from kata.processors.steps import STEPS
from kata.processors.xvla import (
    AddDomainId,
    ImagenetNormalize,
    ImageScale,
    ImageToFloat,
    RotationToAxisAngle,
    axis_angle,
)
from kata.spec import ACTION, IMAGENET_MEAN, IMAGENET_STD, STATE, missing_key

TOP = "observation.images.top"


def frames(value):
    return {TOP: torch.full((2, 3, 4, 5), value), STATE: torch.zeros(2, 3)}


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.tensor(51, dtype=torch.uint8), 0.2),
        (
            torch.tensor(1, dtype=torch.uint8),
            1 / 255,
        ),  # LeRobot takes a dark frame for a bright one
        (102.0, 0.4),
        (0.5, 0.5),
    ],
)
def test_frames_come_into_the_range_up_to_one(value, expected):
    given = frames(0.0)
    given[TOP] = torch.ones(2, 3, 4, 5, dtype=torch.as_tensor(value).dtype) * value
    found = ImageToFloat()(given)[TOP]
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, torch.full((2, 3, 4, 5), expected))


def test_numbers_that_are_no_frames_are_refused():
    with pytest.raises(DataError, match="from 300 to 300"):
        ImageToFloat()(frames(300.0))
    assert ImageToFloat(validate_range=False)(frames(510.0))[TOP].max() == 2.0
    with pytest.raises(DataError, match="xvla_image_to_float"):
        ImagenetNormalize()(frames(-0.5))


def test_imagenets_mean_is_subtracted_from_each_camera_and_from_nothing_else():
    given = {**frames(0.25), missing_key(TOP): torch.tensor([True, False]), "action": torch.ones(2)}
    found = ImagenetNormalize()(given)
    for channel, (mean, std) in enumerate(zip(IMAGENET_MEAN, IMAGENET_STD, strict=True)):
        torch.testing.assert_close(
            found[TOP][:, channel], torch.full((2, 4, 5), (0.25 - mean) / std)
        )
    assert all(found[key] is given[key] for key in given if key != TOP)
    other = {"observation.image": given[TOP]}
    assert ImagenetNormalize()(other)["observation.image"] is given[TOP]
    named = ImagenetNormalize(["observation.image", TOP])(other)
    torch.testing.assert_close(named["observation.image"], found[TOP])


def test_frames_are_scaled_for_other_steps():
    assert ImageScale()(frames(0.5))[TOP].max() == 127.5


def test_each_sample_gets_the_number_of_the_robot():
    assert AddDomainId(3)(frames(0.0))["domain_id"].tolist() == [3, 3]


def rotation(axis, angle):
    """A rotation matrix by Rodrigues' formula."""
    x, y, z = (torch.tensor(axis, dtype=torch.float64) / math.dist(axis, (0, 0, 0))).tolist()
    cross = torch.tensor([[0, -z, y], [z, 0, -x], [-y, x, 0]], dtype=torch.float64)
    return torch.eye(3).double() + math.sin(angle) * cross + (1 - math.cos(angle)) * cross @ cross


@pytest.mark.parametrize("angle", [0.0, 0.3, 1.7, 3.1])
def test_rotations_become_axes_times_angles(angle):
    axis = (1.0, -2.0, 0.5)
    columns = rotation(axis, angle)[:, :2].T.flatten()
    expected = torch.tensor(axis, dtype=torch.float64) / math.dist(axis, (0, 0, 0)) * angle
    torch.testing.assert_close(axis_angle(columns[None])[0], expected, atol=1e-5, rtol=0)


def test_poses_become_what_libero_takes():
    turned = rotation((0.0, 0.0, 1.0), math.pi / 2)[:, :2].T.flatten().float()
    action = torch.stack(
        [torch.cat((torch.ones(3), turned, torch.tensor([g]))) for g in (0.6, 0.4)]
    )
    found = RotationToAxisAngle()({ACTION: action})[ACTION]
    assert found.dtype == torch.float32
    expected = torch.tensor([1, 1, 1, 0, 0, math.pi / 2])
    torch.testing.assert_close(found[:, :6], expected.expand(2, -1), atol=1e-5, rtol=0)
    assert found[:, 6].tolist() == [1.0, -1.0]


def test_steps_return_from_their_file_under_lerobots_names(tmp_path):
    steps = (
        ImageToFloat(["observation.image"], validate_range=False),
        ImagenetNormalize(),
        ImageScale(),
        AddDomainId(4),
        RotationToAxisAngle(),
    )
    Pipeline("policy_preprocessor", steps).save(tmp_path)
    assert load_pipeline(tmp_path, "policy_preprocessor").steps == steps
    assert {step.registry_name for step in steps} <= STEPS.keys()
