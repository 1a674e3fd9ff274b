"""kata's side of the checkpoint checks; needs kata, not LeRobot.

`kata_checkpoint.py make POLICY OUT_DIR` writes what make_checkpoint writes, as kata writes it.
`kata_checkpoint.py act FOLDER OBSERVATIONS ACTIONS` does what check_checkpoint does.
"""

from __future__ import annotations

import sys
from pathlib import Path

import checkpoint_cases
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from kata.config import decode
from kata.policies import build_policy
from kata.policies.config import PolicyConfig
from kata.policies.load import load_weights, save_weights
from kata.policies.pipelines import canonical_pipelines, saved_pipelines
from kata.run import read_policy_config
from kata.spec import ACTION, ORIGIN, TASK


def actions_of(folder: Path, observations: dict[str, Tensor]) -> Tensor:
    """kata's actions (steps, A) from a `pretrained_model` folder."""
    config = decode(PolicyConfig, read_policy_config(folder, []))
    with checkpoint_cases.tiny_own(config.type):
        policy = build_policy(config.without_downloads())
    load_weights(policy, folder / "model.safetensors")
    before, after = saved_pipelines(config, folder, "cpu")
    state, actions = policy.init_state(1), []
    with checkpoint_cases.cases_of(config.type).steady():
        for step in range(len(next(iter(observations.values())))):
            seen = {key: value[step] for key, value in observations.items()}
            action, state = policy.act(before({**seen, TASK: [checkpoint_cases.TASK]}), state)
            origin = {ORIGIN: state.memory[ORIGIN]} if ORIGIN in state.memory else {}
            actions.append(after({ACTION: action, **origin})[ACTION])
    return torch.cat(actions)


def make(name: str, out: str) -> None:
    folder = Path(out)
    model = folder / "pretrained_model"
    model.mkdir(parents=True)
    cases, case = checkpoint_cases.cases_of(name), checkpoint_cases.case_of(name)
    policy = cases.build_own(case)
    stats = {
        key: {name: value.numpy() for name, value in entry.items()}
        for key, entry in checkpoint_cases.stats(case).items()
    }
    for pipeline in canonical_pipelines(policy.config, stats, rename_map={}, device="cpu"):
        pipeline.save(model)
    save_weights(policy, model / "model.safetensors")
    policy.config.save(model)
    save_file(checkpoint_cases.robot_observations(case), folder / "observations.safetensors")
    act(*map(str, (model, folder / "observations.safetensors", folder / "actions.safetensors")))


def act(folder: str, observations: str, out: str) -> None:
    save_file({"actions": actions_of(Path(folder), load_file(observations)).contiguous()}, out)


if __name__ == "__main__":
    torch.set_num_threads(1)
    {"make": make, "act": act}[sys.argv[1]](*sys.argv[2:])
