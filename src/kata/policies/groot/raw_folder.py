"""NVIDIA's raw folder, written from a checkpoint: config, weights, and what normalizes a robot."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kata.errors import CheckpointError
from kata.files import write_json
from kata.policies.config import PolicyConfig
from kata.policies.groot.base_model import BaseModel
from kata.policies.groot.config import Config
from kata.policies.groot.model import LEROBOT, LM_HEAD, WORDS
from kata.processors.groot.decode import DecodeGroups
from kata.processors.groot.encode import EncodePrompt
from kata.processors.groot.pack import CAMERAS, PackInputs
from kata.processors.pipeline import POSTPROCESSOR, PREPROCESSOR, load_pipeline
from kata.processors.steps import StateDict
from kata.processors.tensors import read_tensors, write_tensors
from kata.spec import ACTION, STATE

MODEL = "model.safetensors"
STATISTICS = ("min", "max", "mean", "std", "q01", "q99")


def make_raw(folder: Path, config: PolicyConfig) -> None:
    """Turn a copy of a checkpoint into a folder as NVIDIA publishes it.

    Args:
        folder: a `pretrained_model` folder that holds all weights.
        config: its policy's.

    Raises:
        CheckpointError: it is the checkpoint of another policy.
    """
    if not isinstance(config, Config):
        raise CheckpointError(
            f"{folder}: a checkpoint of {config.type}",
            rule="NVIDIA's layout is that of GR00T",
            remedy="leave out --raw",
        )
    before, after = (load_pipeline(folder, name) for name in (PREPROCESSOR, POSTPROCESSOR))
    pack = next(step for step in before.steps if isinstance(step, PackInputs))
    encode = next(step for step in before.steps if isinstance(step, EncodePrompt))
    groups = [step for step in after.steps if isinstance(step, DecodeGroups)]
    found = read_tensors(folder / MODEL)
    if LM_HEAD in found:
        found[WORDS] = found.pop(LM_HEAD)
    for file in folder.iterdir():
        file.unlink()
    weights = {name.removeprefix(LEROBOT): tensor for name, tensor in found.items()}
    write_tensors(folder / MODEL, weights)
    write_json(folder / "config.json", plain_config(config.base))
    robot, modality = config.embodiment_tag, pack.modality_config or _modality(config, pack)
    options: dict[str, Any] = {
        "modality_configs": {robot: modality},
        "max_action_horizon": pack.action_horizon,
        "use_percentiles": pack.use_percentiles,
        "use_relative_action": any(step.use_relative_action for step in groups),
        "formalize_language": pack.formalize_language,
        "clip_outliers": pack.clip_outliers,
        "state_dropout_prob": pack.state_dropout_prob,
        **vars(encode.geometry),
    }
    write_json(folder / "processor_config.json", {"processor_kwargs": options})
    write_json(folder / "statistics.json", {robot: pack.raw_stats or _statistics(config, pack)})
    write_json(folder / "embodiment_id.json", pack.embodiment_mapping)


def plain_config(base: BaseModel) -> dict[str, Any]:
    """Return what NVIDIA's config.json says of a base model."""
    head, (alpha, beta, scale) = base.head, base.noise
    # LeRobot's mixer has one kind of norm, and no option for it.
    mixer = {name: value for name, value in (base.mixer or {}).items() if name != "norm_type"}
    return {
        "model_type": "Gr00tN1d7",
        "architectures": ["GR00TN17"],
        "backbone_model_type": "qwen",
        **base.plain,
        "model_name": base.backbone,
        "select_layer": base.layers,
        "backbone_embedding_dim": head.features,
        "hidden_size": head.hidden,
        "input_embedding_dim": head.width,
        "max_state_dim": head.state_dim,
        "max_action_dim": head.action_dim,
        "max_seq_len": head.positions,
        "max_num_embodiments": head.embodiments,
        "attend_text_every_n_blocks": head.text_every,
        "use_vlln": head.has_norm,
        "add_pos_embed": head.has_positions,
        "action_horizon": base.horizon,
        "num_inference_timesteps": base.steps,
        "rtc_ramp_rate": base.ramp_rate,
        "noise_beta_alpha": alpha,
        "noise_beta_beta": beta,
        "noise_s": scale,
        "num_timestep_buckets": base.buckets,
        "state_dropout_prob": base.state_dropout,
        "diffusion_model_cfg": dict(base.transformer),
        "vl_self_attention_cfg": mixer,
    }


def _modality(config: Config, pack: PackInputs) -> dict[str, Any]:
    """Return a robot with one group for the state and one for actions, which are absolute."""
    steps = list(range(pack.valid_action_horizon))
    cameras = [key.removeprefix(f"{CAMERAS}.") for key in pack.ordered(config.cameras)]
    absolute = {"rep": "ABSOLUTE", "type": "NON_EEF", "format": "DEFAULT", "state_key": None}
    return {
        "state": {"modality_keys": ["state"], "delta_indices": [0]},
        ACTION: {
            "modality_keys": [ACTION],
            "action_configs": [absolute],
            "delta_indices": steps,
        },
        "video": {"modality_keys": cameras, "delta_indices": [0]},
    }


def _statistics(config: Config, pack: PackInputs) -> dict[str, Any]:
    """Return the statistics of a dataset as those of the two groups."""
    state = config.state
    assert state is not None
    return {
        "state": {"state": _listed(pack.stats[STATE], state.shape[0])},
        ACTION: {ACTION: _listed(pack.stats[ACTION], config.action.shape[0])},
    }


def _listed(stats: StateDict, width: int) -> dict[str, list[float]]:
    return {n: stats[n].flatten().tolist()[:width] for n in STATISTICS if n in stats}
