"""Wall-X: cases, and what LeRobot and kata compute for them. `peer` needs LeRobot, `own` needs
kata.

A folder with the files of a tiny Wall-X stands in for the Hub. Weights are those of `fill`, under
LeRobot's names on both sides. LeRobot holds weights in bfloat16 and cannot act in float32; here it
computes in float32, with bfloat16 named float32 while it acts.
"""

from __future__ import annotations

import functools
import json
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import tiny_qwen
import torch
import wall_x_words as words
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
    plain_pipeline,
    plain_stats,
    with_actions,
)
from torch import Tensor

ACT_STEPS, MOST_WORDS = 5, 14
STATE = "observation.state"
FACE, WRIST = "observation.images.face_view", "observation.images.left_wrist"
MARKS = ("<|propri|>", "<|action|>", "<|action_fast|>")
TINY: dict[str, Any] = {
    "chunk_size": 5,
    "n_action_steps": 3,
    "max_state_dim": 7,
    "max_action_dim": 6,
}
BOTH = {STATE: (5,), FACE: (3, 40, 90), WRIST: (3, 70, 64)}
SENTENCES = ("push the block to the left", "pick it up.", "move to <point>[10, 60]</point>")
EXPERTS = [
    {"hidden_size": 32, "intermediate_size": 48, "hidden_act": "silu"},
    {"hidden_size": 32, "intermediate_size": 24, "hidden_act": "silu"},
]


@dataclass(frozen=True)
class Case:
    """Input shapes by key, options, options of the model, keys that batches lack, sentences."""

    inputs: dict[str, tuple[int, ...]] = field(default_factory=lambda: BOTH)
    action_dim: int = 4
    options: dict[str, Any] = field(default_factory=dict)
    text: dict[str, Any] = field(default_factory=dict)
    top: dict[str, Any] = field(default_factory=dict)
    vision: dict[str, Any] = field(default_factory=dict)
    absent: tuple[str, ...] = ()
    sentences: tuple[str, ...] = SENTENCES
    unknown: bool = False
    """A number of the second sample's state is not known."""
    unknown_actions: bool = False
    """Nor is a number of all actions of the second sample, and some of one action of the last."""

    words: bool = False
    """Actions are written as words."""

    @property
    def config(self) -> dict[str, Any]:
        if not self.words:
            return {**TINY, **self.options}
        told = {"prediction_mode": "fast", "action_tokenizer_path": words.fast_folder()}
        return {**TINY, **told, **self.options}

    @property
    def marks(self) -> tuple[str, ...]:
        """Marks of the model's tokenizer."""
        return (*MARKS, *(words.MARKS if self.words else ()))

    @property
    def sizes(self) -> dict[str, dict[str, Any]]:
        """Options of the model's files."""
        experts = {
            "num_experts": 2, "experts": EXPERTS, "dim_inputs": [32, 32], "mlp_moe": True,
            "attention_moe": False, "dof_config": {"arm": self.config["max_action_dim"]},
        }  # fmt: skip
        rows = len(tiny_qwen.SPECIAL) + len(self.marks) + 256
        text = {**experts, "vocab_size": rows, **self.text}
        top = {
            "agent_pos_config": {"arm": self.config["max_state_dim"]},
            "output_attentions": False,
        }
        return {"text": text, "top": {**top, **self.top}, "vision": self.vision}


APART = {"tie_word_embeddings": False}
NARROW = [{**EXPERTS[0]}, {**EXPERTS[1], "hidden_size": 24}]
GOLDEN: dict[str, Case] = {
    "default": Case(),
    "narrow_expert": Case(text={"experts": NARROW, "dim_inputs": [32, 24]}, unknown=True),
    "one_camera": Case({STATE: (7,), FACE: (3, 64, 48)}, 6, sentences=("wait", "wait", "wait")),
    "no_experts": Case(text={"mlp_moe": False}, top=APART, absent=(WRIST,)),
    "unknown_actions": Case(unknown_actions=True),
    "words": Case(words=True, top=APART),
}
CHECKPOINT = Case()
"""What a checkpoint is written of and acted from, both ways."""

LIVE: dict[str, Case] = {
    **GOLDEN,
    "three_experts": Case(
        text={"num_experts": 3, "experts": [*EXPERTS, EXPERTS[0]], "dim_inputs": [32, 32, 32]}
    ),
    "large_frames": Case({STATE: (2,), FACE: (3, 300, 260), WRIST: (3, 256, 256)}, 1),
    "large_tokens": Case(
        {STATE: (7,), FACE: (3, 64, 64)},
        vision={"patch_size": 63, "spatial_merge_size": 2, "window_size": 126},
    ),
    "long_chunk": Case(options={"chunk_size": 12, "n_action_steps": 12}),
    "words_tied": Case(
        {STATE: (7,), FACE: (3, 64, 48)}, 6, {"chunk_size": 9, "n_action_steps": 2}, words=True
    ),
    "words_unknown": Case(unknown=True, unknown_actions=True, words=True, top=APART),
    "words_no_experts": Case(text={"mlp_moe": False}, absent=(WRIST,), words=True, top=APART),
}


def observation(case: Case, step: int) -> dict[str, Any]:
    """Cameras in [0, 1] as video frames have them, a state, and sentences."""
    seen: dict[str, Any] = {"task": list(case.sentences)}
    for key, shape in case.inputs.items():
        values = tensor(f"{key} {step}", (BATCH_SIZE, *shape))
        if key not in case.absent:
            seen[key] = values if key == STATE else ((values + 1) / 2 * 255).round() / 255
    if case.unknown:
        seen[STATE][1, 2] = torch.nan
    return seen


def batch(case: Case) -> dict[str, Any]:
    """A training batch; the actions of all but the first sample reach over the episode's end."""
    seen = observation(case, 0)
    made = with_actions(seen, case.config["chunk_size"], case.action_dim)
    if case.unknown_actions:
        made["action"][1, :, 2] = torch.nan
        made["action"][2, 3, 1:] = torch.nan
    return made


SHARES = (0.15, 0.55, 0.97)
"""Uniform numbers that the times follow from."""


def noise(case: Case) -> Tensor:
    config = case.config
    return 1.7 * tensor("noise", (BATCH_SIZE, config["chunk_size"], config["max_action_dim"]))


@contextmanager
def in_float32() -> Iterator[None]:
    """LeRobot acts in float32 inside; by itself it fails, since it names bfloat16."""
    with mock.patch("torch.bfloat16", torch.float32):
        yield


@contextmanager
def steady() -> Iterator[None]:
    """Both sides act alike inside, and in float32."""
    with drawn("checkpoint"), in_float32():
        yield


@contextmanager
def tiny_peer() -> Iterator[None]:
    """LeRobot builds policies in float32 inside."""
    from lerobot.policies.wall_x import modeling_wall_x

    kind = modeling_wall_x.Qwen2_5_VLMoEForAction
    with mock.patch.object(kind, "to_bfloat16_for_selected_params"):
        yield


@contextmanager
def tiny_own() -> Iterator[None]:
    """kata builds policies in float32 inside, also from files that do not name a precision."""
    from kata.policies import vla_policy

    with mock.patch.dict(vla_policy.DTYPES, {"bfloat16": torch.float32}):
        yield


@functools.cache
def _written(sizes: str, marks: tuple[str, ...]) -> str:
    """Write the folder of a model with these sizes, as JSON, once."""
    name = f"wall_x_{zlib.crc32(sizes.encode())}"
    made = tiny_qwen.write(files_folder() / name, marks, **json.loads(sizes))
    if len(marks) > len(MARKS):
        words.tell_words(made, len(tiny_qwen.SPECIAL) + len(MARKS))
    return str(made)


def folder(case: Case = CHECKPOINT) -> str:
    """The model's folder."""
    return _written(json.dumps(case.sizes, sort_keys=True), case.marks)


def folder_with_weights(case: Case) -> str:
    """The model's folder with a file of weights, which LeRobot always reads first."""
    from lerobot.policies.wall_x import modeling_wall_x
    from lerobot.policies.wall_x.qwen_model import Qwen2_5_VLConfig
    from safetensors.torch import save_file
    from transformers import AutoProcessor

    place = folder(case)
    file = Path(place) / "model.safetensors"
    if not file.exists():
        config = Qwen2_5_VLConfig.from_pretrained(place)
        config._attn_implementation = "eager"
        processor = AutoProcessor.from_pretrained(place, use_fast=True)
        net = modeling_wall_x.Qwen2_5_VLMoEForAction(config, processor=processor)
        is_tied = case.top.get("tie_word_embeddings", True)
        kept = {k: v for k, v in net.state_dict().items() if not is_tied or k != "lm_head.weight"}
        save_file({name: value.clone() for name, value in kept.items()}, file)
    return place


def build_peer(case: Case) -> Any:
    """LeRobot's policy of a case, in float32, with the weights of the formula."""
    from lerobot.policies.wall_x.configuration_wall_x import WallXConfig
    from lerobot.policies.wall_x.modeling_wall_x import WallXPolicy

    config = WallXConfig(
        device="cpu",
        pretrained_name_or_path=folder_with_weights(case),
        **peer_features(case.inputs, case.action_dim),
        **case.config,
    )
    with tiny_peer(), words.known_tokenizer():
        policy = WallXPolicy(config)
    is_tied = case.top.get("tie_word_embeddings", True)
    fill(policy, ("lm_head.weight",) if is_tied else ())
    if case.words:
        words.louder(policy, {name: name for name in policy.state_dict()})
    return policy


def peer(case: Case) -> dict[str, Tensor]:
    from lerobot.policies.wall_x import modeling_wall_x
    from lerobot.policies.wall_x.processor_wall_x import make_wall_x_pre_post_processors

    policy = build_peer(case)
    before, _ = make_wall_x_pre_post_processors(
        policy.config, plain_stats(case.inputs[STATE][0], case.action_dim)
    )
    times = (1 - torch.tensor(SHARES) ** (1 / 1.5)) * 0.999
    policy.train()
    with (
        mock.patch.object(modeling_wall_x.ActionHead, "sample_time", return_value=times),
        mock.patch("torch.randn_like", return_value=noise(case)),
    ):
        loss = policy.forward(before(batch(case)))[0]
    loss.backward()
    # Some weights have gradients of zeros, since nothing reads what they give.
    grads = {
        f"grad/{n}": p.grad
        for n, p in policy.named_parameters()
        if p.grad is not None and p.grad.any()
    }
    out = {"loss": loss.detach(), **grads}
    policy.eval()
    if case.words:  # LeRobot's own acting ends with an error: check_wall_x_fast.py
        return {**out, "words": words.peer_words(policy, before(observation(case, 0)), MOST_WORDS)}
    with in_float32(), mock.patch("torch.randn", return_value=noise(case)):
        out["chunk"] = policy.predict_action_chunk(before(observation(case, 0)))
    policy.reset()
    with steady():
        actions = peer_actions(policy, lambda step: before(observation(case, step)), ACT_STEPS)
    return {**out, "actions": actions}


def build_own(case: Case) -> Any:
    """kata's policy of a case, with the weights of the formula."""
    from kata.policies.wall_x.config import Config
    from kata.policies.wall_x.model import Policy

    config = Config(
        **own_features(case.inputs, case.action_dim),
        pretrained_name_or_path=folder(case),
        load_base_weights=False,
        dtype="float32",
        max_decoding_steps=MOST_WORDS,
        **case.config,
    )
    policy = filled(Policy(config.with_columns({})))
    if case.words:
        to_lerobot = policy.key_map().to_lerobot
        words.louder(policy, {name: to_lerobot(name) for name in policy.state_dict()})
    return policy


def training_sample(case: Case) -> tuple[Any, dict[str, Any], dict[str, Tensor]]:
    """kata's policy in training, a prepared batch, and the numbers that its loss is drawn with."""
    policy = build_own(case).train()
    given = plain_pipeline(policy, case.inputs[STATE][0])(batch(case))
    return policy, given, {"noise": noise(case), "time": torch.tensor(SHARES)[:, None]}


def own(case: Case) -> dict[str, Tensor]:
    policy, given, draws = training_sample(case)
    before = plain_pipeline(policy, case.inputs[STATE][0])
    if case.words:
        ((name, term),) = policy(given).terms.items()
        loss = term.total / policy.config.loss_counts(given)[name].sum()
    else:
        loss = own_loss(policy, given, given["action_is_pad"], **draws)
    loss.backward()
    out = {"loss": loss.detach(), **own_gradients(policy)}
    policy.eval()
    if case.words:
        return {**out, "words": words.own_words(policy, before(observation(case, 0)))}
    out["chunk"] = policy.predict_chunk(before(observation(case, 0)), noise=noise(case))
    with steady():
        actions = own_actions(policy, lambda step: before(observation(case, step)), ACT_STEPS)
    return {**out, "actions": actions}
