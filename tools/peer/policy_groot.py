"""GR00T N1.7: cases, and what LeRobot and kata compute for them. `peer` needs LeRobot, `own` needs
kata.

Each side gets frames, vectors and sentences, and puts them through its own pipeline. Folders with
the files of a tiny model stand in for the Hub. Weights are those of `fill`.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

import numpy as np
import tiny_groot
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
)
from torch import Tensor

ACT_STEPS = 4
STATE, TOP, WRIST = "observation.state", "observation.images.top", "observation.images.wrist"
NAMES = ["shoulder.pos", "elbow.pos", "wrist.pos", "gripper.pos"]

TINY: dict[str, Any] = {
    "chunk_size": 6,
    "n_action_steps": 3,
    "max_state_dim": 7,
    "max_action_dim": 6,
    "use_bf16": False,
}
SAME = ("Push the block, now!", "pull the lever now", "put_it_in the box2")
"""Sentences of one length, once they are formatted."""
BOTH = {STATE: (5,), TOP: (3, 48, 64), WRIST: (3, 48, 64)}


@dataclass(frozen=True)
class Case:
    """Input shapes by key, options, those of NVIDIA's processor and config, and sentences."""

    inputs: dict[str, tuple[int, ...]] = field(default_factory=lambda: BOTH)
    action_dim: int = 4
    options: dict[str, Any] = field(default_factory=dict)
    processor: dict[str, Any] = field(default_factory=dict)
    statistics: dict[str, Any] = field(default_factory=dict)
    changes: dict[str, Any] = field(default_factory=dict)
    tasks: tuple[str, ...] = SAME
    attends_padding: bool = False
    shares: tuple[float, ...] = ()
    """Uniform numbers that decide which samples go without the state's token."""
    left_over: int = 0
    """Actions of the last chunk that another one continues, which is compared too."""

    @property
    def config(self) -> dict[str, Any]:
        return {**TINY, **self.options}

    @property
    def is_relative(self) -> bool:
        return self.config.get("use_relative_actions", False)


def _numbers(name: str, size: int) -> dict[str, Any]:
    """Statistics of a group in NVIDIA's layout."""
    low, span = tensor(f"{name} low", (size,)), tensor(f"{name} span", (size,)).abs() + 0.5
    found = {"min": low, "max": low + span, "q01": low + 0.05, "q99": low + span - 0.05}
    return {n: v.tolist() for n, v in {**found, "mean": low, "std": span}.items()}


LIBERO = {
    "statistics": {
        "libero_sim": {
            "state": {"arm": _numbers("state arm", 3), "hand": _numbers("state hand", 2)},
            "action": {"arm": _numbers("arm", 3), "gripper": _numbers("gripper", 1)},
        }
    },
    "processor": {
        "use_percentiles": True,
        "max_action_horizon": 6,
        "state_dropout_prob": 0.0,
        "modality_configs": {
            "libero_sim": {
                "state": {"modality_keys": ["arm", "hand"], "delta_indices": [0]},
                "action": {
                    "modality_keys": ["arm", "gripper"],
                    "action_configs": [
                        {"rep": "ABSOLUTE", "type": "NON_EEF", "format": "DEFAULT"},
                        {"rep": "ABSOLUTE", "type": "NON_EEF", "format": "DEFAULT"},
                    ],
                    "delta_indices": [0, 1, 2, 3],
                },
                "video": {"modality_keys": ["wrist", "top"], "delta_indices": [-1, 0]},
            }
        },
    },
    "options": {"embodiment_tag": "libero_sim"},
}
MIXED = ("Go.", "put the red block into the drawer", "stop here")
RELATIVE = {"use_relative_actions": True, "relative_exclude_joints": ["gripper"]}

GOLDEN: dict[str, Case] = {
    "default": Case(),
    "padding": Case(tasks=MIXED, attends_padding=True),
    "all_trained": Case(options={"tune_llm": True, "tune_visual": True}),
    "top_layers": Case(
        options={"tune_top_llm_layers": 2, "tune_projector": False, "tune_vlln": False}
    ),
    "robot_of_the_base": Case(**LIBERO),
    "relative": Case(options=RELATIVE, changes={"action_horizon": 8, "max_seq_len": 48}),
    "continued": Case(left_over=4, options={"num_inference_timesteps": 3}),
    "no_state": Case(changes={"state_dropout_prob": 0.5}, shares=(0.2, 0.7, 0.4)),
}

CHECKPOINT = Case(options={"n_action_steps": 3})
"""What a checkpoint is written of and acted from, both ways."""

LIVE: dict[str, Case] = {
    **GOLDEN,
    "one_wide_camera": Case({STATE: (7,), TOP: (3, 40, 96)}, 6, {"rtc_ramp_rate": 3.0}),
    "letter_box": Case(processor={"letter_box_transform": True, "crop_fraction": 0.8}),
    "published_image_size": Case(processor={"image_target_size": None}),
    "vision_trained": Case(options={"tune_visual": True, "tune_diffusion_model": False}),
    "no_mixer": Case(changes={"vl_self_attention_cfg": {}, "use_vlln": False}),
    "text_every_third": Case(
        changes={"attend_text_every_n_blocks": 3, "add_pos_embed": False}, left_over=6
    ),
    "relative_with_statistics": Case(
        **{**LIBERO, "options": {**LIBERO["options"], **RELATIVE}},
    ),
}


def observation(case: Case, step: int) -> dict[str, Any]:
    """Cameras in [0, 1], a state, and sentences."""
    seen: dict[str, Any] = {"task": list(case.tasks)}
    for key, shape in case.inputs.items():
        values = tensor(f"{key} {step}", (BATCH_SIZE, *shape))
        seen[key] = values if key == STATE else torch.round((values + 1) / 2 * 255) / 255
    return seen


def batch(case: Case) -> dict[str, Any]:
    """A training batch; the actions of all but the first sample reach over the episode's end."""
    steps: int = case.config["chunk_size"]
    if case.statistics:
        steps = 4
    lengths = torch.tensor([steps, max(1, steps // 2), 1])[:, None]
    return {
        **observation(case, 0),
        "action": tensor("action", (BATCH_SIZE, steps, case.action_dim)),
        "action_is_pad": torch.arange(steps)[None] >= lengths,
    }


SHARES = (0.15, 0.55, 0.97)
"""Uniform numbers that the times follow from."""


def horizons(case: Case) -> tuple[int, int]:
    """Actions of a chunk in training and in acting."""
    acting: int = case.changes.get("action_horizon", 6)
    apart = case.is_relative and not case.statistics
    return 40 if apart else case.config["chunk_size"], acting


def noise(case: Case, *, acts: bool) -> Tensor:
    return 1.7 * tensor("noise", (BATCH_SIZE, horizons(case)[acts], case.config["max_action_dim"]))


def stats(case: Case) -> dict[str, dict[str, np.ndarray]]:
    """Statistics of the dataset; the second number of the state never changes."""
    found: dict[str, dict[str, np.ndarray]] = {}
    for key, size in ((STATE, case.inputs[STATE][0]), ("action", case.action_dim)):
        found[key] = {n: np.float32(v) for n, v in _numbers(f"dataset {key}", size).items()}
    found[STATE]["max"][1] = found[STATE]["min"][1]
    return found


def relative_stats(case: Case) -> dict[str, np.ndarray]:
    """Statistics of relative actions for each of forty steps."""
    shape = (40, case.action_dim)
    low, span = tensor("low", shape), tensor("span", shape).abs() + 0.5
    found = {"min": low, "max": low + span, "mean": low, "std": span, "q01": low, "q99": low}
    return {name: value.numpy() for name, value in found.items()}


def place() -> Path:
    """The folder of tiny models."""
    return files_folder() / "groot"


def folder() -> str:
    """The backbone's folder."""
    return str(tiny_groot.write_qwen(place() / "qwen3"))


def raw(case: Case) -> Path:
    """NVIDIA's folder of a case."""
    parts = (case.changes, case.processor, case.statistics)
    name = f"raw{zlib.crc32(repr(parts).encode()):x}"
    return tiny_groot.write_raw(
        place() / name,
        Path(folder()),
        changes=case.changes,
        options=case.processor,
        statistics=case.statistics,
    )


@contextmanager
def tiny_peer() -> Iterator[None]:
    """LeRobot reads the tokenizer of the tiny backbone inside."""
    from lerobot.policies.groot import processor_groot

    with mock.patch.object(processor_groot, "GROOT_N1_7_BACKBONE_MODEL", folder()):
        yield


@contextmanager
def steady() -> Iterator[None]:
    """Both sides act alike inside."""
    with drawn("checkpoint"):
        yield


def acting() -> Any:
    return steady()


def build_peer(case: Case) -> Any:
    """LeRobot's policy of a case, with the weights of the formula."""
    from lerobot.policies.groot.configuration_groot import GrootConfig
    from lerobot.policies.groot.groot_n1_7 import GR00TN17, GR00TN17Config
    from lerobot.policies.groot.modeling_groot import GrootPolicy

    base = raw(case)
    if not (base / "model.safetensors").exists():
        inner = GR00TN17Config(**{**tiny_groot.groot_config(folder()), **case.changes})
        GR00TN17(inner, load_backbone_weights=False).save_pretrained(base)
    config = GrootConfig(
        device="cpu",
        base_model_path=str(base),
        **peer_features(case.inputs, case.action_dim),
        **case.config,
    )
    policy = GrootPolicy(config)
    fill(policy, fixed=("lm_head.weight",))
    return policy


def peer_pipelines(case: Case, config: Any) -> tuple[Any, Any]:
    """LeRobot's pipelines, with the statistics of the dataset."""
    from lerobot.policies.groot import processor_groot

    own, meta = stats(case), None
    if case.is_relative:
        features = {"action": {"names": NAMES}}
        for key in case.inputs:
            if key != STATE:
                features[key] = {"dtype": "video", "names": None}
        meta = SimpleNamespace(features=features, stats=own)
        own = own if case.statistics else {**own, "action": relative_stats(case)}
    with tiny_peer():
        return processor_groot.make_groot_pre_post_processors(config, own, meta)


class _Times:
    """The distribution of times in LeRobot's policy, which gives those of the case."""

    def sample(self, shape: Any) -> Tensor:
        del shape
        return torch.tensor(SHARES) ** (1 / 1.5)


def peer(case: Case) -> dict[str, Tensor]:
    policy = build_peer(case)
    before, after = peer_pipelines(case, policy.config)
    policy.train()
    policy._groot_model.action_head._beta_dist = _Times()
    shares = torch.tensor(case.shares)
    with (
        mock.patch("torch.randn", return_value=noise(case, acts=False)),
        mock.patch("torch.rand", return_value=shares),
    ):
        loss = policy.forward(before(batch(case)))[0]
    loss.backward()
    out = {"loss": loss.detach(), **peer_gradients(policy)}
    policy.eval()

    def acted(**options: Any) -> Tensor:
        with mock.patch("torch.randn", return_value=noise(case, acts=True)):
            return policy.predict_action_chunk(before(observation(case, 0)), **options)

    out["chunk"] = acted()
    out["decoded"] = after(out["chunk"])
    if case.left_over:
        given = tensor("left over", (BATCH_SIZE, case.left_over, case.action_dim))
        out["continued"] = acted(prev_chunk_left_over=given, inference_delay=2)
    policy.reset()
    if not case.is_relative:
        with acting():
            actions = peer_actions(policy, lambda step: before(observation(case, step)), ACT_STEPS)
        out["actions"] = actions
    return out


def build_own(case: Case) -> Any:
    """kata's policy of a case, with the weights of the formula."""
    from kata.policies.groot.model import Policy

    return filled(Policy(own_config(case)))


def own_config(case: Case) -> Any:
    from kata.policies.groot.config import Config

    return Config(
        base_model_path=str(raw(case)),
        text_tokenizer_name=folder(),
        load_base_weights=False,
        attend_padding=case.attends_padding,
        action_feature_names=NAMES if case.is_relative else None,
        **own_features(case.inputs, case.action_dim),
        **case.config,
    )


def own_pipelines(case: Case, config: Any) -> tuple[Any, Any]:
    """kata's pipelines, with the statistics of the dataset."""
    from kata.policies.pipelines import canonical_pipelines
    from kata.spec import RELATIVE_ACTION

    given = stats(case)
    if case.is_relative:
        given[RELATIVE_ACTION] = relative_stats(case)
    return canonical_pipelines(config, given, rename_map={}, device="cpu")


def training_sample(case: Case) -> tuple[Any, dict[str, Any], dict[str, Tensor]]:
    """kata's policy in training, a prepared batch, and the numbers that its loss is drawn with."""
    policy = build_own(case).train()
    before, _ = own_pipelines(case, policy.config)
    draws = {"noise": noise(case, acts=False), "time": torch.tensor(SHARES)[:, None]}
    if case.shares:
        draws["state_dropout"] = torch.stack((torch.ones(3), torch.tensor(case.shares)), dim=1)
    return policy, before(batch(case)), draws


def own(case: Case) -> dict[str, Tensor]:
    policy, given, draws = training_sample(case)
    before, after = own_pipelines(case, policy.config)
    loss = own_loss(policy, given, batch(case)["action_is_pad"], **draws)
    loss.backward()
    out = {"loss": loss.detach(), **own_gradients(policy)}
    policy.eval()
    seen, drawn_noise = before(observation(case, 0)), noise(case, acts=True)
    # LeRobot cuts its chunks to the actions that are executed.
    steps = min(case.config["n_action_steps"], policy.config.predicted)
    out["chunk"] = policy.predict_chunk(seen, noise=drawn_noise)[:, :steps]
    out["decoded"] = _decoded(policy, seen, drawn_noise, after, steps)
    if case.left_over:
        given = tensor("left over", (BATCH_SIZE, case.left_over, case.action_dim))
        out["continued"] = policy.continued(seen, given, 2, noise=drawn_noise)[:, :steps]
    if not case.is_relative:
        with acting():
            actions = own_actions(policy, lambda step: before(observation(case, step)), ACT_STEPS)
        out["actions"] = actions
    return out


def _decoded(policy: Any, seen: Any, drawn_noise: Tensor, after: Any, steps: int) -> Tensor:
    """The actions that are executed one by one, in the robot's units."""
    from kata.spec import ORIGIN

    state, found = policy.init_state(BATCH_SIZE), []
    state.source = lambda *_: drawn_noise
    for _ in range(steps):
        action, state = policy.act(seen, state)
        given = {"action": action}
        if ORIGIN in state.memory:
            given[ORIGIN] = state.memory[ORIGIN]
        found.append(after(given)["action"])
    return torch.stack(found, dim=1)
