"""Writes a small ACT checkpoint as LeRobot writes it: `make_checkpoint.py OUT_DIR`, in the peer environment.

OUT_DIR then holds `pretrained_model`, `observations.safetensors` and LeRobot's own `actions.safetensors`, in
the form that check_checkpoint describes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import act_cases
import check_checkpoint
import golden_act
import torch
from lerobot.policies.factory import make_pre_post_processors
from safetensors.torch import save_file


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    model = folder / "pretrained_model"
    case = act_cases.CHECKPOINT
    policy = golden_act.build(case, case.config)
    before, after = make_pre_post_processors(policy.config, dataset_stats=act_cases.stats(case))
    for part in (policy, before, after):
        part.save_pretrained(model)
    save_file(act_cases.robot_observations(case), folder / "observations.safetensors")
    check_checkpoint.main(model, folder / "observations.safetensors", folder / "actions.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
