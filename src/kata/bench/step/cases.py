"""The run whose step is counted for a policy, alike for kata and for LeRobot. Torch-free."""

from __future__ import annotations

import dataclasses
from typing import Any

from kata.policies import config_class
from kata.policies.wall_x.published import PUBLISHED
from kata.run import AcceleratorConfig, DatasetConfig, Run
from kata.spec import ACTION, STATE, Feature, FeatureType

CAMERA = "observation.images.cam0"
FRAMES = {
    "diffusion": (96, 96),
    "vqbet": (96, 96),
    "tdmpc": (84, 84),
    "multi_task_dit": (224, 224),
    "xvla": (224, 224),
}
"""Height and width of the camera for policies that are used with small frames."""

CAMERAS = {"tdmpc": "observation.image"}
"""Cameras with another name. LeRobot's TD-MPC shifts the frames of this one alone."""

LARGE = (480, 640)
JOINTS = 14

OPTIONS: dict[str, dict[str, Any]] = {"wall_x": {"base_config": PUBLISHED}}
"""Options of policies whose sizes lie on the Hub alone."""


def step_run(policy: str, precision: str) -> Run:
    """Return a run of a policy with its defaults, one camera and fourteen joints."""
    kind = config_class(policy)
    frames = FRAMES.get(policy, LARGE)
    config = kind(
        input_features={
            CAMERAS.get(policy, CAMERA): Feature(FeatureType.VISUAL, (3, *frames)),
            STATE: Feature(FeatureType.STATE, (JOINTS,)),
        },
        output_features={ACTION: Feature(FeatureType.ACTION, (JOINTS,))},
        push_to_hub=False,
        **without_downloads({field.name for field in dataclasses.fields(kind)}),
        **OPTIONS.get(policy, {}),
    ).without_downloads()
    return Run(
        dataset=DatasetConfig(repo_id="no/data"),
        policy=config,
        optimizer=config.optimizer_preset(),
        accelerator=AcceleratorConfig(mixed_precision=precision),
    )


def without_downloads(fields: set[str]) -> dict[str, Any]:
    """Return the options among `fields` that leave out pretrained weights."""
    name = "pretrained_backbone_weights"
    return {name: None} if name in fields else {}
