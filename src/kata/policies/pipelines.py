"""The processing steps that most policies share.

They rename keys, add a batch axis, tokenize, move to the device and normalize; actions go back.
"""

from __future__ import annotations

from kata.policies.config import PolicyConfig
from kata.processors.pipeline import Pipeline, build_pipelines
from kata.processors.steps import AddBatchAxis, Normalize, Rename, ToDevice, Unnormalize
from kata.processors.tokenize import Tokenize
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
        config: gives features and normalization modes.
        stats: of the frames that are trained on, by the policy's names.
        rename_map: dataset key -> policy key.
        device: the policy's device. Actions come back on the CPU.
    """
    features = {**config.input_features, **config.output_features}
    modes = dict(config.normalization_mapping)
    tokenizer = config.tokenizer()
    before = (
        Rename(rename_map),
        AddBatchAxis(),
        *([] if tokenizer is None else [Tokenize(**tokenizer)]),
        ToDevice(device),
        Normalize.from_stats(features, modes, stats),
    )
    after = (Unnormalize.from_stats(dict(config.output_features), modes, stats), ToDevice("cpu"))
    return build_pipelines(before, after)
