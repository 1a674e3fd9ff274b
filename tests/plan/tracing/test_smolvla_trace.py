"""A policy with frozen modules is traced: its EMA shares them, and they are counted once."""

import dataclasses
import importlib
import sys
from pathlib import Path

import pytest
import torch

from kata.optim.config import EmaConfig
from kata.plan.memory import plan_memory
from kata.plan.tracing.blank_batch import blank_batch
from kata.plan.tracing.trace import trace_step
from kata.policies import build_policy, config_class
from kata.run import DatasetConfig, Run
from kata.spec import ACTION, STATE, Feature, FeatureType
from kata.train.input.frozen_features import RecordLayout

SIZES = {
    "chunk_size": 4,
    "n_action_steps": 2,
    "num_vlm_layers": 2,
    "resize_imgs_with_padding": (32, 32),
}


@pytest.fixture
def smolvla(tmp_path):
    """A run of a tiny SmolVLA whose vision-language model is frozen, with an EMA."""
    sys.path.insert(0, str(Path(__file__).parents[3] / "tools/peer"))
    try:
        folder = importlib.import_module("tiny_smolvlm").write(tmp_path / "smolvlm")
    finally:
        sys.path.pop(0)
    config = config_class("smolvla")(
        input_features={
            STATE: Feature(FeatureType.STATE, (3,)),
            "observation.images.top": Feature(FeatureType.VISUAL, (3, 32, 32)),
        },
        output_features={ACTION: Feature(FeatureType.ACTION, (2,))},
        vlm_model_name=str(folder),
        push_to_hub=False,
        **SIZES,
    )
    return Run(
        dataset=DatasetConfig(repo_id="user/data"),
        policy=config,
        optimizer=config.optimizer_preset(),
        ema=EmaConfig(enable=True),
    )


def test_frozen_weights_are_counted_once(smolvla):
    trace = trace_step(smolvla)
    policy = build_policy(smolvla.policy)
    trained = sum(p.numel() for p in policy.parameters() if p.requires_grad)
    frozen = sum(p.numel() for p in policy.parameters() if not p.requires_grad)
    assert (trace.trainable, trace.frozen) == (trained, frozen)
    assert trace.part_bytes("weights", 1) == 4 * trained
    buffers = sum(b.numel() * b.element_size() for b in policy.buffers())
    assert trace.part_bytes("frozen_weights", 1) == 4 * frozen + buffers
    # The EMA has the trained weights and buffers of its own.
    assert trace.part_bytes("ema", 1) == 4 * trained + buffers
    assert plan_memory(trace, 2).parts["ema"] == 4 * trained + buffers


def test_masks_are_converted_once_per_pass_and_norms_are_one_kernel(smolvla):
    counts: dict[str, int] = {}
    for op in trace_step(smolvla).operations:
        counts[op.name] = counts.get(op.name, 0) + op.runs
    # Cameras and sentence; the state; the expert's layers of each kind.
    assert counts["masked_fill_"] == 4
    assert counts["_scaled_dot_product_efficient_attention"] > 4
    assert counts["_fused_rms_norm"] > 0
    assert not {"rsqrt", "mean"} & set(counts)


@pytest.mark.parametrize("kind", ["prefix", "vision"])
def test_the_features_that_a_cache_keeps_have_the_size_of_its_records(smolvla, kind):
    data = dataclasses.replace(smolvla.dataset, cache=kind)
    cached = dataclasses.replace(smolvla, dataset=data)
    with torch.no_grad():
        features = build_policy(smolvla.policy).frozen_features(
            blank_batch(smolvla, 1).micros[0], kind
        )
    record = RecordLayout(features).row_bytes
    assert 0 <= record - trace_step(cached).feature_bytes < 8
    assert trace_step(smolvla).feature_bytes == 0
