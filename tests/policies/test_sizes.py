"""The default policies have as many parameters as LeRobot's, and name as many tensors."""

import pytest
import torch

from kata.policies import build_policy, config_class
from kata.spec import ACTION, STATE, Feature, FeatureType

TOP, WRIST = "observation.images.top", "observation.images.wrist"

SIZES = {  # inputs by key, the action's width, parameters, tensors in LeRobot's file
    "act": ({TOP: (3, 480, 640), STATE: (14,)}, 14, 51_613_582, 234),
    "diffusion": ({TOP: (3, 96, 96), STATE: (2,)}, 2, 262_709_026, 273),
    "groot": ({TOP: (3, 480, 640), STATE: (6,)}, 6, 3_144_016_000, 1030),
    "multi_task_dit": (
        {TOP: (3, 240, 320), WRIST: (3, 240, 320), STATE: (6,)},
        6,
        248_855_302,
        465,
    ),
    "smolvla": ({TOP: (3, 480, 640), STATE: (6,)}, 6, 450_046_176, 500),
    "tdmpc": ({TOP: (3, 84, 84), STATE: (4,)}, 4, 5_469_146, 196),
    "vqbet": ({TOP: (3, 96, 96), STATE: (2,)}, 2, 37_515_530, 267),
}


@pytest.mark.parametrize("name", SIZES)
def test_the_default_policy_has_lerobots_size(name):
    inputs, width, numbers, tensors = SIZES[name]
    kinds = {key: FeatureType.STATE if key == STATE else FeatureType.VISUAL for key in inputs}
    config = config_class(name)(
        input_features={key: Feature(kinds[key], shape) for key, shape in inputs.items()},
        output_features={ACTION: Feature(FeatureType.ACTION, (width,))},
    )
    with torch.device("meta"):
        policy = build_policy(config.without_downloads())
    assert sum(p.numel() for p in policy.parameters()) == numbers
    names = {policy.key_map().to_lerobot(key) for key in policy.state_dict()}
    assert tensors in (None, len({*names, *policy.key_map().constants}))
