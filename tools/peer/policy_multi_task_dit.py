"""Multi-Task DiT: cases, and what LeRobot and kata compute for them. `peer` needs LeRobot, `own`
needs kata.

CLIP is built from its config on both sides; its weights are those of `fill`. A checkpoint names a
folder with CLIP's files, in which both sides look for them.
"""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass, field
from typing import Any
from unittest import mock

import tiny_clip
import torch
from numbers_of import drawn, fill, tensor
from sides import (
    BATCH_SIZE,
    files_folder,
    own_actions,
    own_features,
    own_gradients,
    peer_actions,
    peer_features,
    peer_gradients,
)
from torch import Tensor

ACT_STEPS = 5
STATE, TOP, WRIST = "observation.state", "observation.images.top", "observation.images.wrist"
TOKENS, MASK = "observation.language.tokens", "observation.language.attention_mask"

TINY: dict[str, Any] = {
    "horizon": 8,
    "n_action_steps": 3,
    "hidden_dim": 16,
    "num_layers": 2,
    "num_heads": 2,
    "timestep_embed_dim": 8,
    "dropout": 0.0,
    "num_train_timesteps": 10,
    "num_integration_steps": 4,
    "image_crop_shape": (32, 32),
    "tokenizer_max_length": 8,
}


@dataclass(frozen=True)
class Case:
    """Input shapes by key, the action's width, options, and sizes of CLIP (None: tiny)."""

    inputs: dict[str, tuple[int, ...]] = field(
        default_factory=lambda: {STATE: (5,), TOP: (3, 40, 48)}
    )
    action_dim: int = 3
    options: dict[str, Any] = field(default_factory=dict)
    base: dict[str, Any] = field(default_factory=lambda: TINY)
    clip: dict[str, dict[str, Any]] | None = None

    @property
    def config(self) -> dict[str, Any]:
        return {**self.base, **self.options}

    @property
    def sizes(self) -> dict[str, dict[str, Any]]:
        return self.clip or tiny_clip.sizes()


TWO = {STATE: (5,), TOP: (3, 40, 48), WRIST: (3, 40, 48)}
FLOW = {"objective": "flow_matching"}

GOLDEN: dict[str, Case] = {
    "diffusion": Case(TWO),
    "few_steps": Case(
        options={
            "noise_scheduler_type": "DDIM", "num_inference_steps": 5, "prediction_type": "sample",
            "do_mask_loss_for_padding": True, "use_rope": False, "use_positional_encoding": True,
        },
    ),
    "flow": Case(TWO, options={**FLOW, "use_separate_rgb_encoder_per_camera": True, "image_resize_shape": (36, 44)}),  # noqa: E501
    "flow_uniform_rk4": Case(
        options={
            **FLOW, "integration_method": "rk4", "timestep_sampling_strategy": "uniform", "sigma_min": 0.1,  # noqa: E501
            "do_mask_loss_for_padding": True, "n_obs_steps": 1,
        },
    ),
}  # fmt: skip

CHECKPOINT = Case(TWO, options={"num_inference_steps": 5})
"""What a checkpoint is written of and acted from, both ways."""

DEFAULT = {"dropout": 0.0, "num_inference_steps": 2, "num_integration_steps": 2}
B16 = {"text_config": {}, "vision_config": {"patch_size": 16}}
"""transformers' defaults are the sizes of openai/clip-vit-base-patch16 but for the patches."""
LIVE: dict[str, Case] = {
    **GOLDEN,
    "hundred_steps": Case(options={"num_train_timesteps": 100}),
    "flow_hundred_steps": Case(options={**FLOW, "num_integration_steps": 100}),
    "default_224": Case({STATE: (7,), TOP: (3, 240, 320)}, 7, base=DEFAULT, clip=B16),
}


def observation(case: Case, step: int) -> dict[str, Tensor]:
    return {
        key: tensor(f"{key} {step}", (BATCH_SIZE, *shape)) for key, shape in case.inputs.items()
    }


def sentences(case: Case, config: Any) -> dict[str, Tensor]:
    """Tokens of sentences of different lengths, padded with the end mark."""
    end: int = case.sizes["text_config"].get("eos_token_id", 49407)
    lengths = torch.tensor([2, 4, config.tokenizer_max_length - 1])[:, None]
    steps = torch.arange(config.tokenizer_max_length)[None]
    tokens = (7 * steps + 5 * lengths) % (end - 1)
    return {TOKENS: torch.where(steps < lengths, tokens, end), MASK: steps <= lengths}


def batch(case: Case, config: Any) -> dict[str, Tensor]:
    """A training batch; the actions of all but the first sample reach over the episode's end."""
    lengths = torch.tensor([config.horizon, max(1, config.horizon // 2), 1])[:, None]
    steps = [observation(case, step) for step in range(config.n_obs_steps)]
    return {
        **{key: torch.stack([step[key] for step in steps], 1) for key in case.inputs},
        **sentences(case, config),
        "action": tensor("action", (BATCH_SIZE, config.horizon, case.action_dim)),
        "action_is_pad": torch.arange(config.horizon)[None] >= lengths,
    }


def noise(config: Any, case: Case) -> Tensor:
    return 1.7 * tensor("noise", (BATCH_SIZE, config.horizon, case.action_dim))


TIMES = (0.15, 0.55, 0.97)
PLACE = (0.3, 0.8)
"""The crop lies there, as a share of the way, rows first."""


def steady() -> AbstractContextManager[None]:
    """Both sides act alike inside."""
    return drawn("checkpoint")


def clip_folder(case: Case) -> str:
    """A folder with the files of this case's CLIP, with weights for the checkpoint's."""
    kind = "weights" if case is CHECKPOINT else "tiny" if case.clip is None else "large"
    folder = files_folder() / f"clip_{kind}"
    if not folder.exists():
        (tiny_clip.write_with_weights if case is CHECKPOINT else tiny_clip.write)(folder)
        if case.clip is not None:
            (folder / "config.json").write_text(json.dumps({"model_type": "clip", **case.clip}))
    return str(folder)


def random_parts(case: Case, config: Any) -> ExitStack:
    """Return patches that give what LeRobot draws, and the CLIP models that it fetches."""
    from transformers import CLIPTextConfig, CLIPTextModel, CLIPVisionConfig, CLIPVisionModel

    def place(image: Tensor, size: tuple[int, int]) -> tuple[int, int, int, int]:
        top, left = (
            int(share * (whole - part + 1))
            for share, whole, part in zip(PLACE, image.shape[-2:], size, strict=True)
        )
        return top, left, *size

    def text(_: str) -> Any:
        return CLIPTextModel(CLIPTextConfig(**case.sizes["text_config"]))

    def vision(_: str) -> Any:
        return CLIPVisionModel(CLIPVisionConfig(**case.sizes["vision_config"]))

    times = torch.tensor(TIMES)
    steps = (times * config.num_train_timesteps).long()
    beta = mock.Mock(sample=lambda _: times ** (1 / config.timestep_sampling_alpha))
    patches = ExitStack()
    for target, value in (
        ("torch.randint", lambda **_: steps),
        ("torch.rand", lambda *_, **__: times),
        ("torch.distributions.Beta", lambda *_: beta),
        ("torchvision.transforms.RandomCrop.get_params", staticmethod(place)),
        ("transformers.CLIPTextModel.from_pretrained", text),
        ("transformers.CLIPVisionModel.from_pretrained", vision),
    ):
        patches.enter_context(mock.patch(target, value))
    return patches


def build_peer(case: Case) -> Any:
    """LeRobot's policy of a case, with the weights of the formula."""
    from lerobot.policies.multi_task_dit.configuration_multi_task_dit import MultiTaskDiTConfig
    from lerobot.policies.multi_task_dit.modeling_multi_task_dit import MultiTaskDiTPolicy

    config = MultiTaskDiTConfig(
        device="cpu",
        **peer_features(case.inputs, case.action_dim),
        vision_encoder_name=clip_folder(case),
        text_encoder_name=clip_folder(case),
        **case.config,
    )
    with random_parts(case, config):
        policy = MultiTaskDiTPolicy(config)
    fill(policy)
    return policy


def peer(case: Case) -> dict[str, Tensor]:
    policy = build_peer(case)
    config = policy.config
    given, start = batch(case, config), noise(config, case)
    with random_parts(case, config):
        with mock.patch("torch.randn_like", return_value=start):
            policy.train()
            loss = policy.forward(dict(given))[0]
            loss.backward()
            out = {"loss": loss.detach(), **peer_gradients(policy)}
            policy.eval()
            with torch.no_grad():
                out["eval_loss"] = policy.forward(dict(given))[0]
        policy.reset()
        told = sentences(case, config)
        with drawn("act"):
            out["actions"] = peer_actions(
                policy, lambda step: {**observation(case, step), **told}, ACT_STEPS
            )
    return out


def build_own(case: Case) -> Any:
    """kata's policy of a case, with the weights of the formula."""
    from kata.policies.multi_task_dit.config import Config
    from kata.policies.multi_task_dit.model import Policy

    config = Config(
        **own_features(case.inputs, case.action_dim),
        vision_encoder_name=clip_folder(case),
        text_encoder_name=clip_folder(case),
        pretrained_encoders=False,
        **case.config,
    )
    policy = Policy(config)
    fill(policy)
    return policy


def own(case: Case) -> dict[str, Tensor]:
    policy = build_own(case)
    config = policy.config
    given = batch(case, config)
    draws = {
        "noise": noise(config, case),
        "time": torch.tensor(TIMES)[:, None],
        "crop": torch.tensor(PLACE).expand(BATCH_SIZE, len(config.cameras), 2),
    }
    ((name, count),) = config.loss_weights(
        BATCH_SIZE, {"action_is_pad": given["action_is_pad"].numpy()}
    ).items()
    policy.train()
    loss = policy(given, **draws).terms[name].total / count
    loss.backward()
    out = {"loss": loss.detach(), **own_gradients(policy)}
    policy.eval()
    with torch.no_grad():
        out["eval_loss"] = policy(given, **draws).terms[name].total / count
    told = sentences(case, config)
    with drawn("act"):
        actions = own_actions(policy, lambda step: {**observation(case, step), **told}, ACT_STEPS)
    return {**out, "actions": actions}
