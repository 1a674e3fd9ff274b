"""kata's side of the checkpoint checks; needs kata, not LeRobot.

`kata_checkpoint.py make OUT_DIR` writes what make_checkpoint writes, as kata writes it.
`kata_checkpoint.py act FOLDER OBSERVATIONS ACTIONS` does what check_checkpoint does.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import act_cases
import kata_act
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kata.adapt.pipeline import POSTPROCESSOR, PREPROCESSOR, load_pipeline
from kata.config.codec import decode, encode
from kata.policies import build_policy
from kata.policies.config import PolicyConfig
from kata.policies.load import load_weights, save_weights
from kata.policies.pipelines import canonical_pipelines
from kata.run import read_policy_config
from kata.spec import ACTION


def actions_of(folder: Path, observations: dict[str, Tensor]) -> Tensor:
    """kata's actions (steps, A) from a `pretrained_model` folder."""
    config = decode(PolicyConfig, read_policy_config(folder, []))
    policy = build_policy(config.without_downloads())
    load_weights(policy, folder / "model.safetensors")
    before = load_pipeline(folder, PREPROCESSOR, {"device_processor": {"device": "cpu"}})
    after = load_pipeline(folder, POSTPROCESSOR)
    state, actions = policy.init_state(1), []
    for step in range(len(next(iter(observations.values())))):
        action, state = policy.act(before({key: value[step] for key, value in observations.items()}), state)
        actions.append(after({ACTION: action})[ACTION])
    return torch.cat(actions)


def make(folder: Path) -> None:
    model = folder / "pretrained_model"
    model.mkdir(parents=True)
    case = act_cases.CHECKPOINT
    policy = kata_act.build(case, case.config)
    stats = {
        key: {name: value.numpy() for name, value in entry.items()} for key, entry in act_cases.stats(case).items()
    }
    for pipeline in canonical_pipelines(policy.config, stats, rename_map={}, device="cpu"):
        pipeline.save(model)
    save_weights(policy, model / "model.safetensors")
    (model / "config.json").write_text(json.dumps(encode(policy.config), indent=4))
    save_file(act_cases.robot_observations(case), folder / "observations.safetensors")
    act(model, folder / "observations.safetensors", folder / "actions.safetensors")


def act(folder: Path, observations: Path, out: Path) -> None:
    save_file({"actions": actions_of(folder, load_file(observations)).contiguous()}, out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"make": make, "act": act}[sys.argv[1]](*(Path(argument) for argument in sys.argv[2:]))
