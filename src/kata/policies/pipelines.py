"""The processing that most policies share: rename, batch axis, (tokens,) device, normalise; and
back.
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
    """The pipelines before and after a policy, as LeRobot lays them out for most policies.

    Args:
        config: gives features and normalisation modes.
        stats: of the frames that are trained on, under the policy's names.
        rename_map: dataset key -> policy key.
        device: where the policy computes. Actions come back on the CPU.
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
