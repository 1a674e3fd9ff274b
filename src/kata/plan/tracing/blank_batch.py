"""A batch with the shapes of a run's batches, and zeros."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from torch import Tensor

from kata.plan.tracing.recorder import StepRecorder
from kata.policies.config import PolicyConfig
from kata.processors import Normalize, frames_to_float
from kata.run import Run
from kata.spec import (
    ACTION_TOKEN_MASK,
    ACTION_TOKENS,
    BOOKKEEPING,
    LANGUAGE_MASK,
    LANGUAGE_TOKENS,
    Batch,
    Feature,
    FeatureType,
    Stats,
    pad_key,
)
from kata.update.step_batch import StepBatch

_STATISTICS = ("min", "max", "mean", "std", "q01", "q10", "q50", "q90", "q99")
_TOKENS = 512
"""Length of a tokenized sentence where a policy states none, as `kata.processors.Tokenize` has."""


def blank_batch(run: Run, size: int, recorder: StepRecorder | None = None) -> StepBatch:
    """Return the batch of a step with one micro-batch of `size` samples, made like a feed's.

    Args:
        run: its policy's features are known.
        size: samples.
        recorder: sees the making of the batch; the zeros stand for the copy from the host.
    """
    config = run.policy
    # 1. What is copied from the host.
    raw = _raw(config, size)
    draws = {
        name: torch.zeros(size, *draw.shape, dtype=torch.float32)
        for name, draw in config.draws().items()
    }
    if recorder is not None:
        recorder.label("raw_inputs", _tensors((raw, draws)))
        recorder.turn_into_transfers()
    # 2. Frames become floats, then everything is normalized.
    converted = normalization(config)(frames_to_float(raw, config.cameras))
    converted = config.blank_inputs(converted, size)
    pads = {name: np.zeros(value.shape, bool) for name, value in raw.items() if "_is_pad" in name}
    weights = config.loss_weights(size, pads)
    return StepBatch([converted], [draws], weights, np.arange(size), 0.0, 0.0)


def normalization(config: PolicyConfig) -> Normalize:
    """Return the step that normalizes a policy's features, with statistics that mean nothing."""
    features = {**config.input_features, **config.output_features}
    stats: Stats = {}
    for key, feature in features.items():
        shape = (feature.shape[0], 1, 1) if feature.type is FeatureType.VISUAL else feature.shape
        stats[key] = {name: np.ones(shape, np.float32) for name in _STATISTICS}
    return Normalize.from_stats(features, dict(config.normalization_mapping), stats)


def _raw(config: PolicyConfig, size: int) -> Batch:
    features = {**config.input_features, **config.output_features}
    windows = config.windows()
    batch: Batch = {}
    for key in {**features, **dict.fromkeys(windows)}:
        steps = (len(windows[key]),) if key in windows else ()
        feature = features.get(key, Feature(FeatureType.REWARD, (1,)))
        batch[key] = _zeros(feature, (size, *steps))
        if key in windows:
            batch[pad_key(key)] = torch.zeros(size, *steps, dtype=torch.bool)
    for key in BOOKKEEPING:
        batch[key] = torch.zeros(size, dtype=torch.int64)
    tokenizer = config.tokenizer()
    if tokenizer is not None:
        length = int(tokenizer.get("max_length", _TOKENS))
        batch[LANGUAGE_TOKENS] = torch.zeros(size, length, dtype=torch.int64)
        batch[LANGUAGE_MASK] = torch.zeros(size, length, dtype=torch.bool)
    if config.action_tokens():
        batch[ACTION_TOKENS] = torch.zeros(size, config.action_tokens(), dtype=torch.int64)
        batch[ACTION_TOKEN_MASK] = torch.ones(size, config.action_tokens(), dtype=torch.bool)
    return batch


def _zeros(feature: Feature, leading: tuple[int, ...]) -> Tensor:
    """Return values as they come from the host: frames as uint8 (..., H, W, C)."""
    if feature.type is FeatureType.VISUAL:
        channels, height, width = feature.shape
        return torch.zeros(*leading, height, width, channels, dtype=torch.uint8)
    return torch.zeros(*leading, *feature.shape, dtype=torch.float32)


def _tensors(batches: Iterable[Batch]) -> list[Tensor]:
    found: list[Tensor] = []
    for batch in batches:
        found += [value for value in batch.values() if isinstance(value, Tensor)]
    return found
