"""X-VLA: cases, and what LeRobot and kata compute for them. `peer` needs LeRobot, `own` needs kata.

Nothing stands in for the Hub: the sizes of Florence-2 are options. Weights are those of `fill`,
under LeRobot's names on both sides. All dropout is off, since the two sides draw other masks.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import tiny_smolvlm
import torch
from numbers_of import drawn, fill, tensor
from sides import (
    BATCH_SIZE,
    files_folder,
    filled,
    own_actions,
    own_features,
    own_gradients,
    peer_actions,
    peer_features,
)
from torch import Tensor

ACT_STEPS = 5
STATE, TOP, WRIST = "observation.state", "observation.images.top", "observation.images.wrist"
TOKENS, MASK = "observation.language.tokens", "observation.language.attention_mask"
WORDS = 10

VISION: dict[str, Any] = {
    "embed_dim": [8, 12, 16, 24],
    "depths": [1, 1, 2, 1],
    "num_heads": [2, 2, 4, 4],
    "num_groups": [2, 3, 4, 2],
    "window_size": 3,
    "projection_dim": 24,
    "max_temporal_embeddings": 6,
    "max_position_embeddings": 8,
    "drop_path_rate": 0.0,
}
TEXT: dict[str, Any] = {
    "model_type": "bart",
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
    "vocab_size": 300,
    "max_position_embeddings": 64,
    "dropout": 0.0,
}
TINY: dict[str, Any] = {
    "florence_config": {"vision_config": VISION, "text_config": TEXT},
    "hidden_size": 32,
    "depth": 2,
    "num_heads": 4,
    "num_domains": 4,
    "len_soft_prompts": 3,
    "dim_time": 8,
    "max_len_seq": 72,
    "chunk_size": 5,
    "n_action_steps": 3,
    "max_state_dim": 20,
    "tokenizer_max_length": WORDS,
    "num_denoising_steps": 4,
}
BOTH = {STATE: (5,), TOP: (3, 64, 48), WRIST: (3, 64, 48)}
DOMAINS = (2, 0, 2)


@dataclass(frozen=True)
class Case:
    """Input shapes by key, options, keys that batches lack, and options of kata alone."""

    inputs: dict[str, tuple[int, ...]] = field(default_factory=lambda: BOTH)
    action_dim: int = 7
    options: dict[str, Any] = field(default_factory=lambda: {"action_mode": "auto"})
    absent: tuple[str, ...] = ()
    own: dict[str, Any] = field(default_factory=dict)

    @property
    def config(self) -> dict[str, Any]:
        return {**TINY, **self.options}


def florence(**changed: dict[str, Any]) -> dict[str, Any]:
    """The tiny Florence-2 with other entries of `vision_config` and `text_config`."""
    parts = {"vision_config": VISION, "text_config": TEXT}
    return {name: {**part, **changed.get(name, {})} for name, part in parts.items()}


ALONE = {STATE: (5,), TOP: (3, 64, 48)}
FROZEN = {"freeze_vision_encoder": True, "freeze_language_encoder": True}

GOLDEN: dict[str, Case] = {
    "auto": Case(),
    "ee6d": Case(action_dim=20, options={"action_mode": "ee6d"}),
    "joint": Case(action_dim=14, options={"action_mode": "joint"}),
    "agibot_ee6d": Case(action_dim=20, options={"action_mode": "agibot_ee6d"}),
    "franka_joint7": Case(options={"action_mode": "franka_joint7"}),
    "so101_bimanual": Case(action_dim=12, options={"action_mode": "so101_bimanual"}),
    "frozen_florence": Case(options={"action_mode": "auto", **FROZEN}),
    "missing_camera": Case(absent=(TOP,), options={"action_mode": "auto", "empty_cameras": 1}),
    "own_projections": Case(ALONE, options={"action_mode": "auto", "use_hetero_proj": True}),
}

CHECKPOINT = Case(
    action_dim=20, options={"action_mode": "ee6d", "resize_imgs_with_padding": (64, 64)}
)
"""What a checkpoint is written of and acted from, both ways."""

LIVE: dict[str, Case] = {
    **GOLDEN,
    "one_arm_of_ee6d": Case(action_dim=10, options={"action_mode": "ee6d"}),
    "one_camera": Case(ALONE),
    "no_state": Case(options={"action_mode": "auto", "use_proprio": False}),
    "prompts_alone": Case(options={"action_mode": "auto", "train_policy_transformer": False}),
    "prompts_kept": Case(
        options={"action_mode": "auto", "train_soft_prompts": False, "dim_time": 9}
    ),
    "no_prompts": Case(options={"action_mode": "auto", "len_soft_prompts": 0, "mlp_ratio": 2.5}),
    "resized": Case(
        {STATE: (5,), TOP: (3, 40, 64), WRIST: (3, 64, 48)},
        options={"action_mode": "auto", "resize_imgs_with_padding": (64, 96)},
    ),
    "more_views": Case(options={"action_mode": "auto", "num_image_views": 4, "max_len_seq": 96}),
    "other_florence": Case(
        options={
            "action_mode": "auto",
            "florence_config": florence(
                vision_config={"qkv_bias": False, "mlp_ratio": 2.0, "activation_function": "relu"},
                text_config={"scale_embedding": True, "activation_function": "gelu_new"},
            ),
        }
    ),
}


def observation(case: Case, step: int) -> dict[str, Tensor]:
    """Cameras as the policy gets them, normalized, and a state."""
    seen: dict[str, Tensor] = {}
    for key, shape in case.inputs.items():
        if key not in case.absent:
            seen[key] = tensor(f"{key} {step}", (BATCH_SIZE, *shape))
    return seen


def sentences() -> dict[str, Tensor]:
    """Tokens of sentences of different lengths, padded on the right to one length."""
    lengths = torch.tensor([9, 6, 3])[:, None]
    steps = torch.arange(WORDS)[None]
    tokens = 7 + (11 * steps + 5 * lengths) % 250
    told = {TOKENS: torch.where(steps < lengths, tokens, 1), MASK: steps < lengths}
    return {**told, "domain_id": torch.tensor(DOMAINS)}


def batch(case: Case) -> dict[str, Tensor]:
    """A training batch. Grippers of actions are open or closed."""
    action = tensor("action", (BATCH_SIZE, case.config["chunk_size"], case.action_dim))
    mode = case.config["action_mode"]
    if mode in ("ee6d", "joint"):
        for gripper in (6, 13) if mode == "joint" else (9, 19):
            if gripper < case.action_dim:
                action[..., gripper] = (action[..., gripper] > 0).float()
    if mode.endswith("ee6d"):
        # Positions are in metres, and their errors weigh 500.
        for position in (slice(0, 3), slice(10, 13)):
            action[..., position] *= 0.2
    return {**observation(case, 0), **sentences(), "action": action}


SHARE = 0.83
"""The uniform number that the times of a batch follow from."""


def width(case: Case) -> int:
    """Numbers of an action in the network."""
    return 14 if case.config["action_mode"] == "joint" else 20


def noise(case: Case) -> Tensor:
    shape = (BATCH_SIZE, case.config["chunk_size"], width(case))
    return 1.7 * tensor("noise", shape)


@contextmanager
def steady() -> Iterator[None]:
    """Both sides act alike inside."""
    with drawn("checkpoint"):
        yield


@functools.cache
def folder() -> str:
    """A folder with a tokenizer, in KATA_PEER_FILES, or in one that goes with this process."""
    return str(tiny_smolvlm.write(files_folder() / "smolvlm"))


def build_peer(case: Case) -> Any:
    """LeRobot's policy of a case, with the weights of the formula and without dropout."""
    from lerobot.policies.xvla.configuration_xvla import XVLAConfig
    from lerobot.policies.xvla.modeling_xvla import XVLAPolicy

    config = XVLAConfig(
        device="cpu",
        tokenizer_name=folder(),
        **peer_features(case.inputs, case.action_dim),
        **case.config,
    )
    policy = XVLAPolicy(config)
    fill(policy, fixed=("pos_idx_to_embed",))
    for module in policy.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return policy


def peer(case: Case) -> dict[str, Tensor]:
    policy = build_peer(case)
    policy.train()
    with (
        mock.patch("torch.rand", return_value=torch.tensor([SHARE])),
        mock.patch("torch.randn_like", return_value=noise(case)),
    ):
        loss = policy.forward(batch(case))[0]
    loss.backward()
    grads = {f"grad/{n}": p.grad for n, p in policy.named_parameters() if p.grad is not None}
    # LeRobot holds the table of tokens under its first name.
    table = "grad/model.vlm.language_model."
    if f"{table}shared.weight" in grads:
        grads[f"{table}encoder.embed_tokens.weight"] = grads.pop(f"{table}shared.weight")
    out = {"loss": loss.detach(), **grads}
    policy.eval()
    told, own = sentences(), case.action_dim
    with mock.patch("torch.randn", return_value=noise(case)):
        chunk = policy.predict_action_chunk({**observation(case, 0), **told})
    policy.reset()
    with steady():
        actions = peer_actions(policy, lambda step: {**observation(case, step), **told}, ACT_STEPS)
    # LeRobot predicts both arms where actions have one.
    return {**out, "chunk": chunk[..., :own], "actions": actions[..., :own]}


def build_own(case: Case) -> Any:
    """kata's policy of a case, with the weights of the formula."""
    from kata.policies.xvla.config import Config
    from kata.policies.xvla.model import Policy

    config = Config(
        **own_features(case.inputs, case.action_dim),
        tokenizer_name=folder(),
        **case.config,
        **case.own,
    )
    return filled(Policy(config))


def training_sample(case: Case) -> tuple[Any, dict[str, Any], dict[str, Tensor]]:
    """kata's policy in training, a prepared batch, and the numbers that its loss is drawn with."""
    place = torch.arange(BATCH_SIZE)[:, None] / BATCH_SIZE
    draws = {"noise": noise(case), "time": SHARE + place}
    return build_own(case).train(), batch(case), draws


def own(case: Case) -> dict[str, Tensor]:
    policy, given, draws = training_sample(case)
    counts = policy.config.loss_weights(BATCH_SIZE, {})
    with mock.patch("kata.policies.xvla.transformer.DROPOUT", 0.0):
        terms = policy(given, **draws).terms
        loss = sum(term.scale * term.total / counts[name] for name, term in terms.items())
        loss.backward()
    out = {"loss": loss.detach(), **own_gradients(policy)}
    policy.eval()
    told = sentences()
    out["chunk"] = policy.predict_chunk({**observation(case, 0), **told}, noise=noise(case))
    with steady():
        actions = own_actions(policy, lambda step: {**observation(case, step), **told}, ACT_STEPS)
    return {**out, "actions": actions}
