"""Runs of tiny policies with Qwen2.5-VL: they continue exactly, and act from their checkpoints."""

import dataclasses
import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from kata.eval.rollout_policy import load_for_acting
from kata.plan.tracing.blank_batch import blank_batch
from kata.run import resolve_run
from kata.train import train
from kata.train.stopping import StopSignal

FEATURES = (
    '{"observation.images.top": {"type": "VISUAL", "shape": [3, 48, 64]}, '
    '"observation.state": {"type": "STATE", "shape": [3]}}'
)
MARKS = ("<|propri|>", "<|action|>")
WORDS = tuple(f"<|action_token_{number}|>" for number in range(86))
EXPERTS = [{"hidden_size": 32, "intermediate_size": 16}] * 2
SIZES = {
    "eo1": {},
    "wall_x": {
        "text": {
            "mlp_moe": True, "num_experts": 2, "experts": EXPERTS, "dim_inputs": [32, 32],
            "dof_config": {"arm": 5},
        },
        "top": {"agent_pos_config": {"arm": 6}},
    },
}  # fmt: skip
OPTIONS = {
    "wall_x": [
        "--policy.pretrained_name_or_path={folder}", "--policy.load_base_weights=false",
    ],
    "wall_x fast": [
        "--policy.pretrained_name_or_path={folder}", "--policy.load_base_weights=false",
        "--policy.prediction_mode=fast", "--policy.action_tokenizer_path={fast}",
        "--policy.max_decoding_steps=9", "--dataset.eval_split=0.4",
    ],
    "eo1": [
        "--policy.vlm_base={folder}", "--policy.load_vlm_weights=false",
        "--policy.image_min_pixels=784", "--policy.image_max_pixels=3136",
        "--policy.num_denoise_steps=2", "--policy.gradient_checkpointing=true",
    ],
}  # fmt: skip


@pytest.fixture(scope="module")
def tools():
    sys.path.insert(0, str(Path(__file__).parents[2] / "tools/peer"))
    try:
        return importlib.import_module("tiny_qwen"), importlib.import_module("tiny_fast")
    finally:
        sys.path.pop(0)


@pytest.mark.parametrize("case", OPTIONS)
def test_a_resumed_run_equals_a_straight_one_and_acts(
    case, tools, tiny_dataset, tmp_path, monkeypatch
):
    tiny_qwen, tiny_fast = tools
    name = case.split()[0]
    marks = (*MARKS, *WORDS) if case.endswith("fast") else MARKS
    place = tiny_qwen.write(tmp_path / "model", marks, **SIZES[name])
    fast = tiny_fast.write(tmp_path / "fast")
    given = [option.format(folder=place, fast=fast) for option in OPTIONS[case]]

    def make(folder, *options):
        return resolve_run(
            [
                f"--policy.type={name}", *given, f"--policy.input_features={FEATURES}",
                "--policy.chunk_size=4", "--policy.n_action_steps=2", "--policy.max_state_dim=6",
                "--policy.max_action_dim=5", "--dataset.repo_id=tests/tiny",
                f"--dataset.root={tiny_dataset}", "--policy.device=cpu",
                "--policy.push_to_hub=false", "--batch_size=4", "--steps=2", "--log_freq=1",
                "--save_freq=1", "--num_workers=1", f"--output_dir={tmp_path}/{folder}", *options,
            ]
        )[0]  # fmt: skip

    straight = train(make("straight"))
    answers = iter([False, True])
    with monkeypatch.context() as patched:
        patched.setattr(StopSignal, "should_stop", lambda stop_signal: next(answers))
        assert train(make("half")).state.step == 1
    resumed = train(make("half", "--resume=true"))
    trained = straight.state.policy
    for key, tensor in trained.state_dict().items():
        assert torch.equal(resumed.state.policy.state_dict()[key], tensor), key
    ready = load_for_acting(str(straight.folder), "cpu")
    for key, tensor in trained.state_dict().items():
        assert torch.equal(ready.policy.state_dict()[key], tensor), key
    seen = {
        "observation.images.top": np.zeros((1, 48, 64, 3), np.uint8),
        "observation.state": np.zeros((1, 3), np.float32),
    }
    action, _ = ready.act(seen, "push", ready.policy.init_state(1))
    assert action.shape == (1, 2)
    # What plans trace has the shapes that the policy reads.
    batch = blank_batch(dataclasses.replace(make("plan"), policy=trained.config), 2)
    trained(batch.micros[0], **batch.draws[0])
