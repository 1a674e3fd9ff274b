"""The order of cameras, the frames of each, and states without statistics."""

import torch

from kata.processors.groot import PackInputs
from kata.spec import STATE, TASK

CAMERAS = "observation.images."


def frames(number):
    return torch.full((1, 3, 2, 2), number / 255)


def values(packed):
    return [int(value.max()) for key, value in packed.items() if key.startswith("pixel_values.")]


def test_cameras_come_in_the_order_of_the_base_model(caplog):
    batch = {
        f"{CAMERAS}top": frames(1),
        f"{CAMERAS}image2": frames(2),
        f"{CAMERAS}extra": frames(3),
        TASK: ["go"],
    }
    assert values(PackInputs()(batch)) == [3, 2, 1]
    named = PackInputs(video_modality_keys=["top", "wrist_image"])
    assert values(named(batch)) == [1, 2]
    assert "it sees observation.images.top, observation.images.image2 in this order" in caplog.text
    assert values(PackInputs(video_modality_keys=["front"])(batch)) == [3, 2, 1]
    assert values(PackInputs()({"observation.image": frames(7), TASK: ["go"]})) == [7]


def test_the_first_frame_is_repeated_up_to_the_horizon():
    one = {f"{CAMERAS}a": frames(1), f"{CAMERAS}b": frames(2), TASK: ["go"]}
    assert values(PackInputs(video_horizon=2)(one)) == [1, 2, 1, 2]
    several = {f"{CAMERAS}a": torch.stack([frames(n)[0] for n in (4, 5, 6)])[None], TASK: ["go"]}
    assert values(PackInputs(video_horizon=2)(several)) == [5, 6]


def test_numbers_without_statistics_stay_or_are_taken_for_zero_to_one():
    state = torch.tensor([[0.5, 2.0]])
    assert torch.equal(PackInputs()({STATE: state, TASK: ["go"]})[STATE], state)
    short = PackInputs(stats={STATE: {"min": torch.zeros(1), "max": torch.full((1,), 2.0)}})
    assert short({STATE: state, TASK: ["go"]})[STATE].tolist() == [[-0.5, 1.0]]
    loose = PackInputs(stats=short.stats, clip_outliers=False)
    assert loose({STATE: state, TASK: ["go"]})[STATE].tolist() == [[-0.5, 3.0]]
