"""Policies for the tests of evaluation: a tiny ACT, and one that finds the built-in task's
target by its colour.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import torch

from kata.config import encode
from kata.eval.envs.reach.picture import GOAL
from kata.eval.rollout_policy import Acting
from kata.eval.rollout_policy import acting as ready
from kata.policies import build_policy
from kata.policies.act.config import Config
from kata.policies.base import Policy
from kata.policies.diffusion.config import Config as DiffusionConfig
from kata.policies.load import save_weights
from kata.policies.pipelines import canonical_pipelines
from kata.processors import Pipeline, ToDevice
from kata.spec import Feature, FeatureType

TOP = "observation.images.top"
CPU = torch.device("cpu")


def features(state: int = 3, action: int = 2, size: int = 32, camera: str | None = TOP) -> dict:
    inputs = {"observation.state": Feature(FeatureType.STATE, (state,))}
    if camera:
        inputs[camera] = Feature(FeatureType.VISUAL, (3, size, size))
    else:
        inputs["observation.environment_state"] = Feature(FeatureType.ENV, (state,))
    return {
        "input_features": inputs,
        "output_features": {"action": Feature(FeatureType.ACTION, (action,))},
    }


def tiny_config(**options) -> Config:
    small = {
        "dim_model": 16,
        "n_heads": 2,
        "dim_feedforward": 16,
        "n_encoder_layers": 1,
        "n_vae_encoder_layers": 1,
    }
    small |= {
        "latent_dim": 4,
        "chunk_size": 3,
        "n_action_steps": 3,
        "pretrained_backbone_weights": None,
    }
    return Config(**{**features(), **small, **options})


def tiny_policy(**options) -> Policy:
    torch.manual_seed(3)
    return build_policy(tiny_config(**options)).eval()


def drawing_policy() -> Policy:
    """A tiny diffusion policy, which adds noise at each of its denoising steps."""
    torch.manual_seed(3)
    small = {
        "horizon": 4,
        "n_action_steps": 2,
        "down_dims": (8, 16),
        "n_groups": 4,
        "diffusion_step_embed_dim": 4,
    }
    small |= {"num_train_timesteps": 5, "pretrained_backbone_weights": None, "use_group_norm": True}
    return build_policy(DiffusionConfig(**{**features(), **small})).eval()


def plain(policy: Policy) -> Acting:
    """A policy without normalisation."""
    return ready(
        policy, Pipeline("before", (ToDevice("cpu"),)), Pipeline("after", (ToDevice("cpu"),)), CPU
    )


class Scripted(Policy):
    """Calls `what(batch)` for the action and counts how often it is asked."""

    def __init__(self, what, **options) -> None:
        super().__init__()
        self.config, self.what, self.calls = Config(**features(**options)), what, 0

    def act(self, batch, state):
        self.calls += 1
        return self.what(batch), state

    def forward(self, batch, **draws):
        raise AssertionError

    predict_chunk = param_groups = shard_units = key_map = forward


def towards_green(batch) -> torch.Tensor:
    """The middle of all pixels of the target's colour, in board units."""
    frames = batch[TOP] * 255
    green = (frames - torch.tensor(GOAL, dtype=torch.float32)[:, None, None]).abs().sum(1) < 60
    ticks = (torch.arange(64) + 0.5) * 2.2 / 64 - 1.1
    count = green.sum((1, 2)).clamp(min=1)
    return (
        torch.stack([(green * ticks).sum((1, 2)), (green * -ticks[:, None]).sum((1, 2))], 1)
        / count[:, None]
    )


def stats(camera: str = TOP) -> dict:
    def of(size: int, mean: float, std: float) -> dict:
        return {"mean": np.full(size, mean), "std": np.full(size, std)}

    picture = {"mean": np.full((3, 1, 1), 0.4), "std": np.full((3, 1, 1), 0.3)}
    return {"observation.state": of(3, 0.2, 0.7), camera: picture, "action": of(2, 0.1, 0.4)}


def write_checkpoint(
    folder: Path, policy: Policy, rename_map: dict[str, str] | None = None
) -> Path:
    folder.mkdir(parents=True)
    save_weights(policy, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(encode(policy.config)))
    known = stats(next(iter(policy.config.cameras)))
    for pipeline in canonical_pipelines(
        policy.config, known, rename_map=rename_map or {}, device="cpu"
    ):
        pipeline.save(folder)
    return folder
