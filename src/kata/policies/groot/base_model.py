"""GR00T's base model: sizes in NVIDIA's config.json, and the files beside it. Torch-free.

A raw folder is what NVIDIA publishes: config.json without a `type`, weights, and files that say how
the model's robots are normalized (processor_config.json, statistics.json, embodiment_id.json).
"""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kata.errors import PolicyError
from kata.policies.rules import refuse_broken_rules

GROOT = "nvidia/GR00T-N1.7-3B"
COSMOS = "nvidia/Cosmos-Reason2-2B"
NATIVE_HORIZON = 40
"""Actions of a chunk that NVIDIA's weights were trained with."""

ROBOTS = {
    "oxe_droid_relative_eef_relative_joint": 24,
    "xdof_relative_eef_relative_joint": 27,
    "xdof_relative_eef_relative_joint_subtask": 27,
    "real_g1_relative_eef_relative_joints": 25,
    "real_r1_pro_sharpa_relative_eef": 26,
    "real_r1_pro_sharpa_relative_eef_human": 26,
    "real_r1_pro_sharpa_relative_eef_maxinsights": 26,
    "real_r1_pro_sharpa_relative_eef_mecka": 26,
    "unitree_g1_full_body_with_waist_height_nav_cmd": 25,
    "simpler_env_google": 0,
    "simpler_env_widowx": 1,
    "libero_sim": 2,
    "new_embodiment": 10,
}
"""Numbers of the robots that the weights know, by name."""

N1_7 = ("gr00tn1d7", "gr00t_n1d7", "gr00t_n1_7")
N1_5 = ("gr00t_n1_5", "gr00tn1_5", "gr00t_n15", "gr00t_n1d5", "gr00tn1d5")

N1_5_IS_GONE = "--policy.base_model_path=nvidia/GR00T-N1.7-3B, or LeRobot 0.5.1 for N1.5"

TRANSFORMER: dict[str, Any] = {
    "positional_embeddings": None,
    "num_layers": 32,
    "num_attention_heads": 32,
    "attention_head_dim": 48,
    "norm_type": "ada_norm",
    "dropout": 0.2,
    "final_dropout": True,
    "output_dim": 1024,
    "interleave_self_attention": True,
}
MIXER: dict[str, Any] = {
    "positional_embeddings": None,
    "num_layers": 4,
    "num_attention_heads": 32,
    "attention_head_dim": 64,
    "dropout": 0.2,
    "final_dropout": True,
}
UNNAMED: dict[str, Any] = {
    "num_layers": 12,
    "num_attention_heads": 8,
    "attention_head_dim": 64,
    "dropout": 0.1,
    "final_dropout": True,
    "output_dim": 26,
    "norm_type": "ada_norm",
    "activation_fn": "gelu-approximate",
    "attention_bias": True,
    "positional_embeddings": "sinusoidal",
    "interleave_self_attention": False,
}
"""LeRobot's defaults for options of a stack that a config.json does not name."""


@dataclass(frozen=True)
class HeadSizes:
    """Sizes of the head.

    Attributes:
        features: width of the backbone's tokens.
        hidden: width inside the maps of state and actions.
        width: of the transformer's tokens.
        state_dim: numbers that a state is padded to.
        action_dim: numbers that an action is padded to.
        positions: most actions of a chunk.
        embodiments: robots that the tables have weights for.
        text_every: every n-th block that reads features reads words, the others images.
    """

    features: int
    hidden: int
    width: int
    state_dim: int
    action_dim: int
    positions: int
    embodiments: int
    text_every: int
    has_norm: bool
    has_positions: bool


@dataclass(frozen=True)
class BaseModel:
    """A base model's config.json.

    Attributes:
        source: a folder or Hub name.
        backbone: Hub name or folder of the Qwen3-VL.
        layers: layers of its language model that are used.
        transformer: LeRobot's options of the transformer's blocks.
        mixer: those of the blocks that mix features, or None.
        horizon: actions that a chunk is predicted with.
        steps: integration steps of a chunk.
        ramp_rate: of continued chunks.
        noise: alpha and beta of the distribution of times, and what they are scaled by.
        buckets: times that embeddings distinguish.
        state_dropout: share of training samples without a state.
        dtype: in which the weights are stored.
    """

    source: str
    backbone: str
    layers: int
    head: HeadSizes
    transformer: Mapping[str, Any]
    mixer: Mapping[str, Any] | None
    horizon: int
    steps: int
    ramp_rate: float
    noise: tuple[float, float, float]
    buckets: int
    state_dropout: float
    dtype: str
    plain: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Sidecars:
    """The files beside a raw folder's weights, as far as they are about one robot.

    Attributes:
        stats: statistics of the robot, by modality and group; empty if the files know none.
        modality: groups of state and action, cameras and horizons of the robot.
        numbers: numbers of robots by name.
        options: further options of NVIDIA's processor.
    """

    stats: dict[str, Any]
    modality: dict[str, Any]
    numbers: dict[str, int]
    options: dict[str, Any]

    @property
    def horizon(self) -> int | None:
        """Return the number of actions in the robot's chunks."""
        return len(self.modality.get("action", {}).get("delta_indices", [])) or None

    @property
    def video_horizon(self) -> int | None:
        """Return the number of frames of each camera."""
        return len(self.modality.get("video", {}).get("delta_indices", [])) or None

    @property
    def cameras(self) -> list[str] | None:
        """Return the names of the cameras in the order in which the model saw them."""
        return list(self.modality.get("video", {}).get("modality_keys", [])) or None


def is_raw(folder: Path) -> bool:
    """Return True for a folder as NVIDIA publishes it."""
    path = folder / "config.json"
    return path.is_file() and "type" not in (found := read_object(path)) and _is_n1_7(found)


def _is_n1_7(found: Mapping[str, Any]) -> bool:
    names = [found.get("model_type"), *(found.get("architectures") or [])]
    known = [str(name).lower().replace("-", "_") for name in names]
    known = [*known, str(found.get("model_version")).lower()]
    accepted = (*N1_7, "gr00tn17", "n1.7", "n1_7", "n1d7", "n17", "1.7")
    return found.get("model_name") == COSMOS or any(name in accepted for name in known)


def _is_n1_5(name: str, found: Mapping[str, Any]) -> bool:
    names = [found.get("model_type"), *(found.get("architectures") or [])]
    known = [str(each).lower().replace("-", "_") for each in names]
    version = str(found.get("model_version")).lower()
    return (
        any(each in N1_5 for each in known)
        or version in ("n1.5", "n1_5", "n1d5", "n15", "1.5")
        or "eagle_path" in (found.get("backbone_cfg") or {})
        or "gr00t-n1.5" in name.lower().replace("_", "-")
    )


def read_object(path: Path) -> dict[str, Any]:
    """Return a JSON object; PolicyError if it cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, json.JSONDecodeError, UnicodeDecodeError) as error:
        raise PolicyError(
            f"{path}: cannot be read ({error})", rule="a JSON object", remedy="copy it again"
        ) from error
    if not isinstance(found, dict):
        raise PolicyError(f"{path}: a list or value", rule="a JSON object", remedy="copy it again")
    return found


@functools.cache
def base_model(name: str) -> BaseModel:
    """Return the base model of a Hub name or raw folder.

    Raises:
        PolicyError: there is no such folder, it is no GR00T N1.7, or it has an option that kata
            cannot compute.
    """
    found = _config(name)
    if _is_n1_5(name, found):
        raise PolicyError(
            f"policy.base_model_path={name}: GR00T N1.5",
            rule="LeRobot 0.6 and kata have N1.7",
            remedy=N1_5_IS_GONE,
        )
    if found and ("type" in found or not _is_n1_7(found)):
        raise PolicyError(
            f"policy.base_model_path={name}: its config.json is not that of a raw GR00T N1.7",
            rule="NVIDIA's folder: config.json with model_type Gr00tN1d7, and weights",
            remedy="--policy.path=<folder> for a checkpoint of LeRobot or kata",
        )
    return _parsed(name, found)


def _config(name: str) -> dict[str, Any]:
    """Return what a config.json says; empty for the published model, whose sizes are known."""
    folder = Path(name).expanduser()
    if folder.is_dir():
        return read_object(folder / "config.json")
    if name == GROOT or _is_n1_5(name, {}):
        return {}
    if name.startswith(("/", ".", "~")) or name.count("/") != 1:
        raise PolicyError(
            f"policy.base_model_path={name}: no such folder",
            rule="a raw folder of GR00T N1.7 with config.json and weights, or a Hub name",
            remedy=f"correct the path, or --policy.base_model_path={GROOT}",
        )
    from huggingface_hub import hf_hub_download
    from huggingface_hub.errors import HfHubHTTPError

    try:
        return read_object(Path(hf_hub_download(name, "config.json")))
    except (OSError, ValueError, HfHubHTTPError) as error:
        raise PolicyError(
            f"policy.base_model_path={name}: cannot be downloaded ({str(error).splitlines()[0]})",
            rule="a Hub repository that can be reached, or a raw folder",
            remedy=f"check the name and the network, or --policy.base_model_path={GROOT}",
        ) from error


def _parsed(name: str, found: Mapping[str, Any]) -> BaseModel:
    transformer = {**UNNAMED, **found.get("diffusion_model_cfg", TRANSFORMER)}
    given = found.get("vl_self_attention_cfg", MIXER) or {}
    mixer = {**UNNAMED, **given} if given.get("num_layers", 0) > 0 else None
    _refuse_unknown(name, found, transformer, mixer)
    head = HeadSizes(
        features=found.get("backbone_embedding_dim", 2048),
        hidden=found.get("hidden_size", 1024),
        width=found.get("input_embedding_dim", 1536),
        state_dim=found.get("max_state_dim", 132),
        action_dim=found.get("max_action_dim", 132),
        positions=found.get("max_seq_len", 1024),
        embodiments=found.get("max_num_embodiments", 32),
        text_every=found.get("attend_text_every_n_blocks", 2),
        has_norm=found.get("use_vlln", True),
        has_positions=found.get("add_pos_embed", True),
    )
    noise = (("noise_beta_alpha", 1.5), ("noise_beta_beta", 1.0), ("noise_s", 0.999))
    alpha, beta, scale = (float(found.get(key, default)) for key, default in noise)
    return BaseModel(
        source=name,
        backbone=found.get("model_name", COSMOS),
        layers=found.get("select_layer", 16),
        head=head,
        transformer=transformer,
        mixer=mixer,
        horizon=found.get("action_horizon", NATIVE_HORIZON),
        steps=found.get("num_inference_timesteps", 4),
        ramp_rate=found.get("rtc_ramp_rate", 6.0),
        noise=(alpha, beta, scale),
        buckets=found.get("num_timestep_buckets", 1000),
        state_dropout=found.get("state_dropout_prob", 0.2),
        dtype=found.get("dtype", found.get("model_dtype", "bfloat16")),
        plain=dict(found),
    )


def _refuse_unknown(
    name: str,
    found: Mapping[str, Any],
    transformer: Mapping[str, Any],
    mixer: Mapping[str, Any] | None,
) -> None:
    """Raise PolicyError for what no published model has, and kata does not compute."""
    expected: list[tuple[str, Any, Any]] = [
        ("use_alternate_vl_dit", found.get("use_alternate_vl_dit", True), True),
        ("state_history_length", found.get("state_history_length", 1), 1),
        ("hidden_size", found.get("hidden_size", 1024), transformer["output_dim"]),
        ("input_embedding_dim", found.get("input_embedding_dim", 1536), _width(transformer)),
    ]
    for option in ("norm_type", "activation_fn", "attention_bias"):
        expected.append((f"diffusion_model_cfg.{option}", transformer[option], UNNAMED[option]))
    stack = "diffusion_model_cfg"
    expected.append((f"{stack}.positional_embeddings", transformer["positional_embeddings"], None))
    interleaves = transformer["interleave_self_attention"]
    expected.append((f"{stack}.interleave_self_attention", interleaves, True))
    if mixer is not None:
        stack = "vl_self_attention_cfg"
        features = found.get("backbone_embedding_dim", 2048)
        expected.append((f"{stack}.positional_embeddings", mixer["positional_embeddings"], None))
        expected.append(("backbone_embedding_dim", features, _width(mixer)))
    refuse_broken_rules(
        (
            value != wanted,
            f"{name}: {option}={value}",
            f"published models of GR00T N1.7 have {wanted}, and kata computes no other",
            f"another base model, such as {GROOT}",
        )
        for option, value, wanted in expected
    )


def _width(stack: Mapping[str, Any]) -> int:
    return stack["num_attention_heads"] * stack["attention_head_dim"]


@functools.cache
def sidecars(name: str, robot: str) -> Sidecars | None:
    """Return what a raw folder's files say about a robot; None for a Hub name, as in LeRobot.

    Raises:
        PolicyError: a file is damaged.
    """
    folder = Path(name).expanduser()
    if not is_raw(folder):
        return None
    files: dict[str, dict[str, Any]] = {}
    for file in ("processor_config.json", "statistics.json", "embodiment_id.json"):
        files[file] = read_object(folder / file) if (folder / file).is_file() else {}
    options: dict[str, Any] = files["processor_config.json"].get("processor_kwargs") or {}
    modality = (options.get("modality_configs") or {}).get(robot) or {}
    numbers = {key: int(value) for key, value in files["embodiment_id.json"].items()}
    return Sidecars(
        stats=files["statistics.json"].get(robot) or {},
        modality=modality,
        numbers=numbers or dict(ROBOTS),
        options=options,
    )
