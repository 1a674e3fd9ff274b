"""SmolVLA: cases, and what LeRobot and kata compute for them. `peer` needs LeRobot, `own` needs
kata.

A folder with the files of a tiny SmolVLM stands in for the Hub. Weights are those of `fill`, under
LeRobot's names on both sides.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import tiny_smolvlm
import torch
from numbers_of import drawn, fill, tensor
from real_time_cases import CHUNK, own_chunks, peer_chunks
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
    with_actions,
)
from torch import Tensor

ACT_STEPS = 5
STATE, TOP, WRIST = "observation.state", "observation.images.top", "observation.images.wrist"
TOKENS, MASK = "observation.language.tokens", "observation.language.attention_mask"

TINY: dict[str, Any] = {
    "chunk_size": 5,
    "n_action_steps": 3,
    "max_state_dim": 7,
    "max_action_dim": 6,
    "resize_imgs_with_padding": (64, 64),
    "num_vlm_layers": 4,
    "num_steps": 4,
    "tokenizer_max_length": 12,
}
BOTH = {STATE: (5,), TOP: (3, 40, 64), WRIST: (3, 64, 48)}


@dataclass(frozen=True)
class Case:
    """Input shapes by key, options, keys that batches lack, and lengths of the sentences."""

    inputs: dict[str, tuple[int, ...]] = field(default_factory=lambda: BOTH)
    action_dim: int = 4
    options: dict[str, Any] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    words: tuple[int, ...] = (9, 6, 3)
    masked: bool = False
    """The second sample's wrist camera is marked as padding."""
    is_continued: bool = False
    """Chunks that continue others are compared, too."""

    @property
    def config(self) -> dict[str, Any]:
        return {**TINY, **self.options}


ALL_TRAINED = {"train_expert_only": False, "freeze_vision_encoder": False}

GOLDEN: dict[str, Case] = {
    "default": Case(),
    "all_trained": Case(options=ALL_TRAINED),
    "frozen_vision": Case(options={"train_expert_only": False}, words=(9, 9, 9)),
    "frozen_state": Case(options={"train_state_proj": False}),
    "missing_camera": Case(absent=(WRIST,), options={"empty_cameras": 1}),
    "self_attention": Case(options={"attention_mode": "self_attn"}, words=(1, 1, 1)),
    "continued": Case(options={"chunk_size": CHUNK}, is_continued=True),
}

CHECKPOINT = Case()
"""What a checkpoint is written of and acted from, both ways."""

LIVE: dict[str, Case] = {
    **GOLDEN,
    "cross_attention_alone": Case(options={"self_attn_every_n_layers": -1}),
    "third_layers": Case(options={"self_attn_every_n_layers": 3, **ALL_TRAINED}),
    "marks": Case(options={"add_image_special_tokens": True, "prefix_length": 64, **ALL_TRAINED}),
    "marks_of_empty_cameras": Case(
        absent=(WRIST,), options={"add_image_special_tokens": True, "empty_cameras": 2}
    ),
    "camera_masks": Case(masked=True, options=ALL_TRAINED),
    "one_small_camera": Case({STATE: (7,), TOP: (3, 64, 64)}, 6, {"num_steps": 10}),
    "positions_of_another_size": Case(
        options={"resize_imgs_with_padding": (96, 96), **ALL_TRAINED}
    ),
    "no_resize": Case({STATE: (2,), TOP: (3, 32, 32)}, 1, {"resize_imgs_with_padding": None}),
    "narrow_expert": Case(options={"expert_width_multiplier": 0.5, "num_vlm_layers": 0}),
}


def observation(case: Case, step: int) -> dict[str, Tensor]:
    """Cameras in [0, 1], and a state."""
    seen: dict[str, Tensor] = {}
    for key, shape in case.inputs.items():
        values = tensor(f"{key} {step}", (BATCH_SIZE, *shape))
        if key not in case.absent:
            seen[key] = values if key == STATE else (values + 1) / 2
    if case.masked:
        seen[f"{WRIST}_padding_mask"] = torch.tensor([True, False, True])
    return seen


def sentences(case: Case) -> dict[str, Tensor]:
    """Tokens of sentences of different lengths, padded on the right."""
    lengths = torch.tensor(case.words)[:, None]
    steps = torch.arange(max(case.words))[None]
    tokens = 7 + (11 * steps + 5 * lengths) % 250
    return {TOKENS: torch.where(steps < lengths, tokens, 2), MASK: steps < lengths}


def batch(case: Case) -> dict[str, Tensor]:
    """A training batch; the actions of all but the first sample reach over the episode's end."""
    seen = {**observation(case, 0), **sentences(case)}
    return with_actions(seen, case.config["chunk_size"], case.action_dim)


SHARES = (0.15, 0.55, 0.97)
"""Uniform numbers that the times follow from."""


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


def acting() -> AbstractContextManager[None]:
    return steady()


@functools.cache
def folder() -> str:
    """The model's folder, in KATA_PEER_FILES, or in a folder that goes with this process."""
    return str(tiny_smolvlm.write(files_folder() / "smolvlm"))


def build_peer(case: Case) -> Any:
    """LeRobot's policy of a case, with the weights of the formula."""
    from lerobot.policies.smolvla.configuration_smolvla import SmolVLAConfig
    from lerobot.policies.smolvla.modeling_smolvla import SmolVLAPolicy

    config = SmolVLAConfig(
        device="cpu",
        vlm_model_name=folder(),
        **peer_features(case.inputs, case.action_dim),
        **case.config,
    )
    policy = SmolVLAPolicy(config)
    fill(policy)
    return policy


def peer(case: Case) -> dict[str, Tensor]:
    policy = build_peer(case)
    policy.train()
    time = 0.999 * torch.tensor(SHARES) ** (1 / 1.5) + 0.001
    loss = policy.forward(batch(case), noise=noise(case), time=time)[0]
    loss.backward()
    out = {"loss": loss.detach(), **peer_gradients(policy)}
    policy.eval()
    told = sentences(case)
    out["chunk"] = policy.predict_action_chunk({**observation(case, 0), **told}, noise=noise(case))
    if case.is_continued:
        out |= peer_chunks(policy, {**observation(case, 0), **told}, noise(case))
    policy.reset()
    with acting():
        actions = peer_actions(policy, lambda step: {**observation(case, step), **told}, ACT_STEPS)
    return {**out, "actions": actions}


def build_own(case: Case) -> Any:
    """kata's policy of a case, with the weights of the formula."""
    from kata.policies.smolvla.config import Config
    from kata.policies.smolvla.model import Policy

    config = Config(
        **own_features(case.inputs, case.action_dim),
        vlm_model_name=folder(),
        **case.config,
    )
    return filled(Policy(config))


def own(case: Case) -> dict[str, Tensor]:
    policy = build_own(case).train()
    given = batch(case)
    draws = {"noise": noise(case), "time": torch.tensor(SHARES)[:, None]}
    loss = own_loss(policy, given, given["action_is_pad"], **draws)
    loss.backward()
    out = {"loss": loss.detach(), **own_gradients(policy)}
    policy.eval()
    told = sentences(case)
    out["chunk"] = policy.predict_chunk({**observation(case, 0), **told}, noise=noise(case))
    if case.is_continued:
        out |= own_chunks(policy, {**observation(case, 0), **told}, noise(case))
    with acting():
        actions = own_actions(policy, lambda step: {**observation(case, step), **told}, ACT_STEPS)
    return {**out, "actions": actions}
