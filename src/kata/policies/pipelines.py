"""The pipelines around a policy, built from the steps that its config lists.

The steps rename keys, add a batch axis, tokenize, move to the device and normalize; actions go
back.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kata.policies.config import PolicyConfig
from kata.policies.relative import with_relative_steps
from kata.processors.pipeline import (
    POSTPROCESSOR,
    PREPROCESSOR,
    Pipeline,
    build_pipelines,
    load_pipeline,
)
from kata.processors.steps import (
    STEPS,
    AddBatchAxis,
    Normalize,
    Rename,
    Step,
    ToDevice,
    Unnormalize,
)
from kata.spec import Stats


def renamed_inputs(before: Pipeline) -> dict[str, str]:
    """Return the names that the training data have for a policy's inputs, {policy's: data's}."""
    found: dict[str, str] = {}
    for step in before.steps:
        if isinstance(step, Rename):
            found |= {new: old for old, new in step.rename_map.items()}
    return found


def canonical_pipelines(
    config: PolicyConfig, stats: Stats, *, rename_map: dict[str, str], device: str
) -> tuple[Pipeline, Pipeline]:
    """Return the pipelines before and after a policy, in LeRobot's order of steps.

    Args:
        config: gives features, normalization modes and the list of steps.
        stats: of the frames that are trained on, by the policy's names.
        rename_map: dataset key -> policy key.
        device: the policy's device. Actions come back on the CPU.
    """
    own = config.own_pipelines(stats, rename_map=rename_map, device=device)
    if own is not None:
        return own
    features = {**config.input_features, **config.output_features}
    modes = dict(config.normalization_mapping)
    shared: dict[str, Step] = {
        Rename.registry_name: Rename(rename_map),
        AddBatchAxis.registry_name: AddBatchAxis(),
        ToDevice.registry_name: ToDevice(device),
        Normalize.registry_name: Normalize.from_stats(features, modes, stats),
    }
    inverse: dict[str, Step] = {
        Unnormalize.registry_name: Unnormalize.from_stats(
            dict(config.output_features), modes, stats
        ),
        ToDevice.registry_name: ToDevice("cpu"),
    }
    first, last = with_relative_steps(config, config.processor_steps(), config.action_steps())
    return build_pipelines(_built(first, shared), _built(last, inverse))


def saved_pipelines(
    config: PolicyConfig, folder: Path, device: str, changes: Mapping[str, Any] | None = None
) -> tuple[Pipeline, Pipeline]:
    """Return the pipelines of a checkpoint, before and after its policy.

    Args:
        config: the policy's.
        folder: a `pretrained_model` folder.
        device: the policy's device.
        changes: options of the policy that take the place of the checkpoint's; those that name a
            tokenizer count here.

    Raises:
        CheckpointError: a file is absent or damaged, or has a step that is unknown.
    """
    own = config.saved_pipelines(folder, device)
    if own is not None:
        return own
    over: dict[str, dict[str, Any]] = {ToDevice.registry_name: {"device": device}}
    for option, readers in config.tokenizer_steps.items():
        for step, argument in readers:
            if option in (changes or {}):
                over.setdefault(step, {})[argument] = (changes or {})[option]
    return load_pipeline(folder, PREPROCESSOR, over), load_pipeline(folder, POSTPROCESSOR)


def _built(named: list[tuple[str, dict[str, Any]]], shared: dict[str, Step]) -> list[Step]:
    """Return the steps of these names: those of `shared`, and new ones with their options."""
    steps: list[Step] = []
    for name, options in named:
        steps.append(shared[name] if name in shared else STEPS[name].build(options, {}))
    return steps
