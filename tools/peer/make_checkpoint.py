"""Writes a small checkpoint as LeRobot writes it: `make_checkpoint.py POLICY OUT_DIR`, in the peer
environment.

OUT_DIR then holds `pretrained_model`, `observations.safetensors` and LeRobot's own
`actions.safetensors`, in the form that check_checkpoint describes.
"""

from __future__ import annotations

import sys
from pathlib import Path

import check_checkpoint
import checkpoint_cases
import torch
from lerobot.policies.factory import make_pre_post_processors
from safetensors.torch import save_file


def main(name: str, folder: Path) -> None:
    torch.set_num_threads(1)
    model = folder / "pretrained_model"
    cases, case = checkpoint_cases.cases_of(name), checkpoint_cases.case_of(name)
    policy = cases.build_peer(case)
    with checkpoint_cases.tiny_peer(name):
        before, after = make_pre_post_processors(
            policy.config, dataset_stats=checkpoint_cases.stats(case)
        )
    for part in (policy, before, after):
        part.save_pretrained(model)
    save_file(checkpoint_cases.robot_observations(case), folder / "observations.safetensors")
    check_checkpoint.main(
        model, folder / "observations.safetensors", folder / "actions.safetensors"
    )


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]))
