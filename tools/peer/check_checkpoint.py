"""Lets LeRobot act from a checkpoint: `check_checkpoint.py FOLDER OBSERVATIONS ACTIONS`; peer
environment.

FOLDER is a `pretrained_model` folder, kata's or LeRobot's; the others safetensors files.
OBSERVATIONS holds what a robot gives: an entry (steps, ...) per key, cameras float (steps, 3, H, W)
in [0, 1], not normalised. ACTIONS is written: `actions` (steps, A) as the robot would get them.
"""

from __future__ import annotations

import io
import sys
from contextlib import redirect_stdout
from pathlib import Path

import checkpoint_cases
import torch
from lerobot.configs.policies import PreTrainedConfig
from lerobot.policies.factory import get_policy_class, make_pre_post_processors
from safetensors.torch import load_file, save_file
from torch import Tensor


def actions_of(folder: Path, observations: dict[str, Tensor]) -> Tensor:
    """LeRobot's actions (steps, A), loaded with the overrides that its own robot loop uses, and
    strictly.
    """
    config = PreTrainedConfig.from_pretrained(folder)
    config.device = "cpu"
    # As LeRobot's scripts set it. EO-1 reads its base's weights first where it is absent.
    config.pretrained_path = str(folder)
    said = io.StringIO()
    with checkpoint_cases.tiny_peer(config.type), redirect_stdout(said):
        policy = get_policy_class(config.type).from_pretrained(folder, config=config, strict=True)
        before, after = make_pre_post_processors(
            config,
            pretrained_path=str(folder),
            preprocessor_overrides={
                "device_processor": {"device": "cpu"},
                "rename_observations_processor": {"rename_map": {}},
            },
            postprocessor_overrides={"device_processor": {"device": "cpu"}},
        )
    if "Could not load" in said.getvalue():  # π0 says so and keeps random weights
        raise RuntimeError(said.getvalue())
    policy.reset()
    steps = range(len(next(iter(observations.values()))))
    actions = []
    with checkpoint_cases.cases_of(config.type).steady():
        for step in steps:
            seen = {key: value[step] for key, value in observations.items()}
            batch = before({**seen, "task": checkpoint_cases.TASK})
            actions.append(after(policy.select_action(batch)))
    return torch.cat(actions)


def main(folder: Path, observations: Path, out: Path) -> None:
    torch.set_num_threads(1)
    save_file({"actions": actions_of(folder, load_file(observations)).contiguous()}, out)


if __name__ == "__main__":
    main(*(Path(argument) for argument in sys.argv[1:4]))
