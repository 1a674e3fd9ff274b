"""EO-1: cases, and what LeRobot and kata compute for them. `peer` needs LeRobot, `own` needs kata.

A folder with the files of a tiny Qwen2.5-VL stands in for the Hub. Weights are those of `fill`,
under LeRobot's names on both sides. Frames and sentences pass through each side's own steps.
"""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import tiny_qwen
import torch
from numbers_of import drawn, fill, tensor
from sides import (
    BATCH_SIZE,
    files_folder,
    filled,
    own_actions,
    own_features,
    own_gradients,
    own_loss,
    peer_actions,
    peer_features,
    peer_gradients,
    plain_pipeline,
    plain_stats,
    with_actions,
)
from torch import Tensor

ACT_STEPS = 5
STATE, TOP, WRIST = "observation.state", "observation.images.top", "observation.images.wrist"
TINY: dict[str, Any] = {
    "chunk_size": 5,
    "n_action_steps": 3,
    "max_state_dim": 7,
    "max_action_dim": 6,
    "num_denoise_steps": 4,
    "dtype": "float32",
    "image_min_pixels": 4 * 28**2,
    "image_max_pixels": 9 * 28**2,
}
BOTH = {STATE: (5,), TOP: (3, 40, 90), WRIST: (3, 70, 64)}
SENTENCES = ("push the block to the left", "pick it up", "wait")


@dataclass(frozen=True)
class Case:
    """Input shapes by key, options, options of the Qwen2.5-VL, and sentences."""

    inputs: dict[str, tuple[int, ...]] = field(default_factory=lambda: BOTH)
    action_dim: int = 4
    options: dict[str, Any] = field(default_factory=dict)
    vlm: dict[str, dict[str, Any]] = field(default_factory=dict)
    sentences: tuple[str, ...] = SENTENCES

    @property
    def config(self) -> dict[str, Any]:
        return {**TINY, **self.options}


ALONE = {"supervise_padding_actions": False, "supervise_padding_action_dims": False}
GOLDEN: dict[str, Case] = {
    "default": Case(),
    "real_actions_alone": Case(options=ALONE),
    "one_camera": Case({STATE: (7,), TOP: (3, 84, 56)}, 6, {"num_denoise_steps": 10}),
    "untied": Case(
        options={
            "num_action_layers": 3,
            "action_act": "gelu",
            "time_sampling_beta_beta": 1.5,
            "min_period": 1.0,
            "max_period": 9.0,
        },
        vlm={"top": {"tie_word_embeddings": False}, "text": {"tie_word_embeddings": False}},
    ),
}
CHECKPOINT = Case()
"""What a checkpoint is written of and acted from, both ways."""

LIVE: dict[str, Case] = {
    **GOLDEN,
    "grown_and_shrunk_frames": Case({STATE: (2,), TOP: (3, 30, 20), WRIST: (3, 120, 200)}, 1),
    "torchvision": Case(options={"use_fast_processor": True}),
    "one_size": Case(
        {STATE: (5,), TOP: (3, 64, 64), WRIST: (3, 64, 64)}, sentences=("wait", "wait", "wait")
    ),
    "other_times": Case(
        options={
            "time_sampling_beta_alpha": 2.0,
            "time_sampling_scale": 0.5,
            "min_period": 0.1,
            "max_period": 9.0,
            "num_action_layers": 1,
            "gradient_checkpointing": True,
        }
    ),
    "kernels": Case(options={"attn_implementation": "eager", "action_act": "silu"}),
    "whole_windows": Case(
        {STATE: (5,), TOP: (3, 112, 112)},
        options={"image_max_pixels": 16 * 28**2},
        vlm={"vision": {"fullatt_block_indexes": [2]}, "text": {"num_key_value_heads": 4}},
    ),
}


def observation(case: Case, step: int) -> dict[str, Any]:
    """Cameras in [0, 1] as video frames have them, a state, and sentences."""
    seen: dict[str, Any] = {"task": list(case.sentences)}
    for key, shape in case.inputs.items():
        values = tensor(f"{key} {step}", (BATCH_SIZE, *shape))
        seen[key] = values if key == STATE else ((values + 1) / 2 * 255).round() / 255
    return seen


def batch(case: Case) -> dict[str, Any]:
    """A training batch; the actions of all but the first sample reach over the episode's end."""
    seen = observation(case, 0)
    return with_actions(seen, case.config["chunk_size"], case.action_dim)


SHARES = (0.15, 0.55, 0.97)
"""Uniform numbers that the times follow from."""


def times(case: Case) -> Tensor:
    """The times of SHARES. Those of the Beta distribution of 1.5 and 1.5 are scipy's quantiles."""
    config = case.config
    drawn = torch.tensor(SHARES) ** (1 / config.get("time_sampling_beta_alpha", 1.5))
    if config.get("time_sampling_beta_beta", 1.0) == 1.5:
        drawn = torch.tensor([0.20743129, 0.53931044, 0.93119325])
    return config.get("time_sampling_scale", 0.999) * drawn + 0.001


def noise(case: Case) -> Tensor:
    config = case.config
    return 1.7 * tensor("noise", (BATCH_SIZE, config["chunk_size"], config["max_action_dim"]))


@contextmanager
def steady() -> Iterator[None]:
    """Both sides act alike inside."""
    with (
        drawn("checkpoint"),
        mock.patch("torch.normal", lambda **options: torch.randn(options["size"])),
    ):
        yield


@functools.cache
def _written(sizes: str) -> str:
    """Write the folder of a model with these sizes, as JSON, once."""
    name = f"qwen_{zlib.crc32(sizes.encode())}"
    return str(tiny_qwen.write(files_folder() / name, **json.loads(sizes)))


def folder(case: Case = CHECKPOINT) -> str:
    """The model's folder."""
    return _written(json.dumps(case.vlm, sort_keys=True))


def build_peer(case: Case) -> Any:
    """LeRobot's policy of a case, with the weights of the formula."""
    from lerobot.policies.eo1.configuration_eo1 import EO1Config
    from lerobot.policies.eo1.modeling_eo1 import EO1Policy

    config = EO1Config(
        device="cpu",
        vlm_base=folder(case),
        # Anything but None builds the backbone from its config, without weights.
        pretrained_path="/nowhere",
        **peer_features(case.inputs, case.action_dim),
        **case.config,
    )
    policy = EO1Policy(config)
    is_tied = case.vlm.get("top", {}).get("tie_word_embeddings", True)
    fill(policy, ("lm_head.weight",) if is_tied else ())
    return policy


def peer(case: Case) -> dict[str, Tensor]:
    from lerobot.policies.eo1 import modeling_eo1
    from lerobot.policies.eo1.processor_eo1 import make_eo1_pre_post_processors

    policy = build_peer(case)
    before, _ = make_eo1_pre_post_processors(
        policy.config, plain_stats(case.inputs[STATE][0], case.action_dim)
    )
    policy.train()
    with (
        mock.patch.object(modeling_eo1, "sample_noise", return_value=noise(case)),
        mock.patch.object(modeling_eo1, "sample_time_beta", return_value=times(case)),
    ):
        loss = policy.forward(before(batch(case)))[0]
        loss.backward()
        out = {"loss": loss.detach(), **peer_gradients(policy)}
        policy.eval()
        out["chunk"] = policy.predict_action_chunk(before(observation(case, 0)))
    policy.reset()
    with steady():
        actions = peer_actions(policy, lambda step: before(observation(case, step)), ACT_STEPS)
    return {**out, "actions": actions}


def build_own(case: Case) -> Any:
    """kata's policy of a case, with the weights of the formula."""
    from kata.policies.eo1.config import Config
    from kata.policies.eo1.model import Policy

    config = Config(
        **own_features(case.inputs, case.action_dim),
        vlm_base=folder(case),
        load_vlm_weights=False,
        **case.config,
    )
    return filled(Policy(config.with_columns({})))


def training_sample(case: Case) -> tuple[Any, dict[str, Any], dict[str, Tensor]]:
    """kata's policy in training, a prepared batch, and the numbers that its loss is drawn with."""
    policy = build_own(case).train()
    given = plain_pipeline(policy, case.inputs[STATE][0])(batch(case))
    return policy, given, {"noise": noise(case), "time": torch.tensor(SHARES)[:, None]}


def own(case: Case) -> dict[str, Tensor]:
    policy, given, draws = training_sample(case)
    before = plain_pipeline(policy, case.inputs[STATE][0])
    loss = own_loss(policy, given, given["action_is_pad"], **draws)
    loss.backward()
    out = {"loss": loss.detach(), **own_gradients(policy)}
    policy.eval()
    out["chunk"] = policy.predict_chunk(before(observation(case, 0)), noise=noise(case))
    with steady():
        actions = own_actions(policy, lambda step: before(observation(case, step)), ACT_STEPS)
    return {**out, "actions": actions}
