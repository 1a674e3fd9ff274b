"""GR00T's pipelines: of a run's statistics, of a raw folder's, and of a checkpoint."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import torch

from kata.errors import CheckpointError, PolicyError
from kata.policies.groot.base_model import Sidecars
from kata.policies.groot.config import LIBERO, Config
from kata.policies.groot.relative import relative_files
from kata.processors.groot.decode import DecodeGroups, Unpack
from kata.processors.groot.encode import EncodePrompt, image_rules
from kata.processors.groot.groups import flat_stats
from kata.processors.groot.images import geometry_of
from kata.processors.groot.pack import PackInputs
from kata.processors.pipeline import (
    POSTPROCESSOR,
    PREPROCESSOR,
    Pipeline,
    build_pipelines,
    load_pipeline,
)
from kata.processors.relative_actions import AbsoluteActions, RelativeActions
from kata.processors.steps import AddBatchAxis, Rename, StateDict, Step, ToDevice
from kata.spec import Stats


def groot_pipelines(
    config: Config, stats: Stats, *, rename_map: dict[str, str], device: str
) -> tuple[Pipeline, Pipeline]:
    """Return the pipelines before and after a policy that is about to be trained.

    Statistics of the robot in the base model's files come first, then those of the dataset.

    Args:
        config: with the features of the dataset.
        stats: of the frames that are trained on.
        rename_map: dataset key -> policy key.
        device: of the policy.
    """
    files = config.files
    told = None if files is None else _flat(files)
    if config.steps_measured_apart():
        files = relative_files(config, stats)
        told = _flat(files)
    pack = _pack(config, files, told or _tensors(stats))
    encode = EncodePrompt(config.text_tokenizer_name, **config.image_options, device=device)
    before: list[Step] = [Rename(rename_map), AddBatchAxis(), pack, encode, ToDevice(device)]
    after: list[Step] = [_decode(config, files if told else None, told or _tensors(stats))]
    if config.use_relative_actions and files is not None and not _is_relative(files):
        # The base model's statistics are those of absolute actions: LeRobot's general pair of steps
        # makes them relative, as it does for π0.
        relative = RelativeActions(
            True, list(config.relative_exclude_joints), config.action_feature_names
        )
        before.insert(2, relative)
        after.append(AbsoluteActions(True))
    return build_pipelines(before, [*after, ToDevice("cpu")])


def _flat(files: Sidecars) -> dict[str, StateDict]:
    """Return a robot's statistics by feature; empty where the files know none."""
    if not files.stats or not files.modality:
        return {}
    return flat_stats(
        files.stats,
        files.modality,
        use_percentiles=bool(files.options.get("use_percentiles", False)),
        use_relative=_is_relative(files),
    )


def _is_relative(files: Sidecars) -> bool:
    return bool(files.options.get("use_relative_action", False))


def _tensors(stats: Stats) -> dict[str, StateDict]:
    found: dict[str, StateDict] = {}
    for key, named in stats.items():
        found[key] = {n: torch.as_tensor(v, dtype=torch.float32) for n, v in named.items()}
    return found


def _pack(config: Config, files: Sidecars | None, stats: dict[str, StateDict]) -> PackInputs:
    options: dict[str, Any] = {} if files is None else files.options
    return PackInputs(
        action_horizon=config.horizon,
        valid_action_horizon=config.valid_horizon,
        video_horizon=None if files is None else files.video_horizon,
        max_state_dim=config.max_state_dim,
        max_action_dim=config.max_action_dim,
        formalize_language=bool(options.get("formalize_language", True)),
        embodiment_tag=config.embodiment_tag,
        embodiment_mapping=config.robots,
        state_dropout_prob=config.state_dropouts[0],
        clip_outliers=bool(options.get("clip_outliers", True)),
        use_percentiles=bool(options.get("use_percentiles", False)),
        video_modality_keys=None if files is None else files.cameras,
        raw_stats=None if files is None else files.stats,
        modality_config=None if files is None else files.modality,
        stats=stats,
    )


def _decode(config: Config, files: Sidecars | None, stats: dict[str, StateDict]) -> Step:
    width = config.action.shape[0]
    if files is None:
        return Unpack(
            env_action_dim=width,
            clip_normalized_action=True,
            libero_gripper_action=config.action_decode_transform == LIBERO,
            stats=stats,
        )
    return DecodeGroups(
        env_action_dim=width,
        raw_stats=files.stats,
        modality_config=files.modality,
        use_percentiles=bool(files.options.get("use_percentiles", False)),
        use_relative_action=_is_relative(files),
        action_decode_transform=config.action_decode_transform,
    )


def final_sizes(config: Config) -> list[tuple[tuple[int, int], int]]:
    """Return height and width of each image of a prompt in the end, and its number of tokens."""
    rules = image_rules(config.text_tokenizer_name)
    geometry = geometry_of(config.image_options)
    found: list[tuple[tuple[int, int], int]] = []
    for camera in config.cameras.values():
        height, width = camera.shape[1:]
        if geometry.image_target_size is not None:
            high, wide = geometry.image_target_size
            ratio = max(height, width) / min(height, width) if geometry.use_albumentations else 1
            longer = round(geometry.edge * ratio)
            height, width = (high, longer) if height < width else (longer, wide)
        size = rules.fitted((height, width))
        found.append((size, size[0] * size[1] // rules.factor**2))
    frames = 1 if config.files is None else config.files.video_horizon or 1
    return found * frames


def saved_groot_pipelines(config: Config, folder: Path, device: str) -> tuple[Pipeline, Pipeline]:
    """Return the pipelines of a checkpoint, LeRobot's or kata's.

    Raises:
        CheckpointError: a file is absent or damaged, or has a step that is unknown.
    """
    place = {ToDevice.registry_name: {"device": device}}
    before = load_pipeline(folder, PREPROCESSOR, place)
    after = load_pipeline(folder, POSTPROCESSOR)
    steps = [_with_transform(config, step) for step in after.steps]
    known = [step for step in before.steps if isinstance(step, PackInputs)]
    if not known:
        raise CheckpointError(
            f"{folder}: no step {PackInputs.registry_name}",
            rule="GR00T's checkpoints normalize in it",
            remedy="copy policy_preprocessor.json again",
        )
    if known[0].embodiment_tag != config.embodiment_tag:
        raise PolicyError(
            f"policy.embodiment_tag={config.embodiment_tag}: the checkpoint's pipeline was made "
            f"for {known[0].embodiment_tag}",
            rule="weights and statistics are those of one robot",
            remedy=f"--policy.embodiment_tag={known[0].embodiment_tag}",
        )
    return before, Pipeline(POSTPROCESSOR, tuple(steps))


def _with_transform(config: Config, step: Step) -> Step:
    """Return a step after the policy with what the options say of LIBERO's gripper."""
    is_libero = config.action_decode_transform == LIBERO
    if isinstance(step, DecodeGroups):
        return dataclasses.replace(step, action_decode_transform=LIBERO if is_libero else None)
    if isinstance(step, Unpack):
        binarize = step.libero_gripper_binarize or is_libero
        return dataclasses.replace(
            step, libero_gripper_action=is_libero, libero_gripper_binarize=binarize
        )
    return step
