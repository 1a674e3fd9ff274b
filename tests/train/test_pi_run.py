"""Runs of a tiny π0 and π0.5: they continue exactly, and what is frozen stays as it was."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from kata.eval.rollout_policy import load_for_acting
from kata.run import resolve_run
from kata.train import train
from kata.train.stopping import StopSignal

FEATURES = (
    '{"observation.images.top": {"type": "VISUAL", "shape": [3, 48, 64]}, '
    '"observation.state": {"type": "STATE", "shape": [3]}}'
)
TINY = (
    "--policy.chunk_size=4", "--policy.n_action_steps=2", "--policy.num_inference_steps=2",
    "--policy.image_resolution=[28,28]", "--policy.max_state_dim=6", "--policy.max_action_dim=5",
    "--policy.tokenizer_max_length=60", f"--policy.input_features={FEATURES}",
)  # fmt: skip


@pytest.fixture
def pi_cases():
    sys.path.insert(0, str(Path(__file__).parents[2] / "tools/peer"))
    try:
        module = importlib.import_module("pi_cases")
    finally:
        sys.path.pop(0)
    with module.tiny_own():
        yield module


@pytest.mark.parametrize(
    ("name", "given"),
    [
        (
            "pi0",
            [
                "--policy.train_expert_only=true",
                "--policy.use_relative_actions=true",
                "--policy.relative_exclude_joints=[]",
            ],
        ),
        ("pi05", ["--policy.freeze_vision_encoder=true", "--policy.rtc_training_max_delay=2"]),
    ],
)
def test_a_resumed_run_equals_a_straight_one_and_acts(
    name, given, pi_cases, tiny_dataset, tmp_path, monkeypatch
):
    def make(folder, *options):
        return resolve_run(
            [
                f"--policy.type={name}", *TINY, f"--policy.text_tokenizer_name={pi_cases.folder()}",
                *given, "--dataset.repo_id=tests/tiny",
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
        "observation.images.top": torch.zeros(1, 48, 64, 3, dtype=torch.uint8).numpy(),
        "observation.state": torch.zeros(1, 3).numpy(),
    }
    action, state = ready.act(seen, "push", ready.policy.init_state(1))
    assert action.shape == (1, 2)
    # Actions of a queue are relative to the state of their chunk.
    moved = {**seen, "observation.state": np.ones((1, 3), np.float32)}
    later, again = (ready.act(each, "push", state)[0] for each in (seen, moved))
    np.testing.assert_array_equal(later, again)
