"""Writes what LeRobot's ACT computes for each golden case: `golden_act.py OUT_DIR`, in the peer environment.

One safetensors file per case: loss terms, gradients (summaries; small ones whole), chunk, actions in a row.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from unittest import mock

import act_cases
import torch
from lerobot.configs.types import FeatureType, PolicyFeature
from lerobot.policies.act.configuration_act import ACTConfig
from lerobot.policies.act.modeling_act import ACTPolicy
from safetensors.torch import save_file
from torch import Tensor


def feature(key: str, shape: tuple[int, ...]) -> PolicyFeature:
    kinds = {act_cases.STATE: FeatureType.STATE, act_cases.ENV: FeatureType.ENV}
    return PolicyFeature(kinds.get(key, FeatureType.VISUAL), shape)


def build(case: act_cases.Case, config: dict[str, Any]) -> ACTPolicy:
    """LeRobot's policy with the weights of the formula, in training mode."""
    policy = ACTPolicy(
        ACTConfig(
            device="cpu",
            input_features={key: feature(key, shape) for key, shape in case.inputs.items()},
            output_features={"action": PolicyFeature(FeatureType.ACTION, (case.action_dim,))},
            **config,
        )
    )
    act_cases.fill(policy)
    return policy.train()


def run(case: act_cases.Case, config: dict[str, Any]) -> dict[str, Tensor]:
    """Everything LeRobot computes for a case: results by name, gradients as `grad/<tensor>`."""
    policy = build(case, config)
    chunk_size = policy.config.chunk_size
    batch = act_cases.batch(case, chunk_size)
    with mock.patch("torch.randn_like", lambda mean: act_cases.noise(policy.config.latent_dim).to(mean)):
        loss, terms = policy(batch)
    loss.backward()
    out = {name: torch.tensor(value, dtype=torch.float64) for name, value in terms.items()}
    out["loss"] = loss.detach()
    out.update({f"grad/{n}": p.grad for n, p in policy.named_parameters() if p.grad is not None})
    policy.eval()
    with torch.no_grad():
        out["eval_loss"] = policy(batch)[0]
    out["chunk"] = policy.predict_action_chunk(act_cases.observation(case, 0))
    policy.reset()
    steps = range(act_cases.ACT_STEPS)
    out["actions"] = torch.stack([policy.select_action(act_cases.observation(case, k)) for k in steps])
    return out


def golden(results: dict[str, Tensor]) -> dict[str, Tensor]:
    """Results small enough for a repository."""
    kept = {name: value for name, value in results.items() if not name.startswith("grad/")}
    for name, value in results.items():
        if name.startswith("grad/"):
            kept["summary/" + name.removeprefix("grad/")] = act_cases.gradient_summary(value)
            if value.numel() <= act_cases.SMALL:
                kept[name] = value
    return {name: value.detach().contiguous() for name, value in kept.items()}


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    folder.mkdir(parents=True, exist_ok=True)
    for name, case in act_cases.GOLDEN.items():
        save_file(golden(run(case, case.config)), folder / f"{name}.safetensors")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
