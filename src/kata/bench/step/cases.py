"""The run whose step is counted for a policy, alike for kata and for LeRobot. Torch-free."""

from __future__ import annotations

import dataclasses
from typing import Any

from kata.policies import config_class
from kata.policies.qwen.vlm_config import QWEN_3B, vlm_config
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

WALL_OSS: dict[str, Any] = {
    "model_type": "qwen2_5_vl",
    "hidden_size": 2048,
    "intermediate_size": 11008,
    "num_hidden_layers": 36,
    "num_attention_heads": 16,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0,
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]},
    "vocab_size": 151936,
    "tie_word_embeddings": True,
    "vision_start_token_id": 151652,
    "vision_end_token_id": 151653,
    "image_token_id": 151655,
    "video_token_id": 151656,
    "vision_config": vlm_config(QWEN_3B)["vision_config"],
    "num_experts": 2,
    "experts": [
        {"hidden_size": 2048, "intermediate_size": 11008, "hidden_act": "silu"},
        {"hidden_size": 2048, "intermediate_size": 2048, "hidden_act": "silu"},
    ],
    "dim_inputs": [2048, 2048],
    "mlp_moe": True,
    "attention_moe": False,
    "dof_config": {"arms": 20},
    "agent_pos_config": {"arms": 20},
}
"""Wall-X's sizes, as github.com/X-Square-Robot/wall-x has them in workspace/models_config; the
numbers of states and actions are LeRobot's.
"""

OPTIONS: dict[str, dict[str, Any]] = {"wall_x": {"base_config": WALL_OSS}}
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
