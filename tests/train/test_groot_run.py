"""Runs of a tiny GR00T: they continue exactly, learn from cached features, and act."""

import importlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from kata.data.loader.feature_cache import FeatureCache
from kata.errors import DataError, PolicyError
from kata.eval.rollout_policy import load_for_acting
from kata.run import resolve_run
from kata.train import train
from kata.train.stopping import StopSignal

TOP = "observation.images.top"
INPUTS = {
    TOP: {"type": "VISUAL", "shape": [3, 48, 64]},
    "observation.state": {"type": "STATE", "shape": [3]},
}


@pytest.fixture
def make(tiny_dataset, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(str(Path(__file__).parents[2] / "tools/peer"))
    tiny_groot = importlib.import_module("tiny_groot")
    sys.modules.pop("tiny_groot")
    backbone = tiny_groot.write_qwen(tmp_path / "qwen3")
    raw = tiny_groot.write_raw(tmp_path / "raw", backbone)

    def run(name, *options):
        return resolve_run(
            [
                "--policy.type=groot", f"--policy.base_model_path={raw}",
                f"--policy.text_tokenizer_name={backbone}", "--policy.load_base_weights=false",
                "--policy.chunk_size=4", "--policy.n_action_steps=2", "--policy.use_bf16=false",
                "--policy.max_state_dim=7", "--policy.max_action_dim=6",
                f"--policy.input_features={json.dumps(INPUTS)}",
                "--dataset.repo_id=tests/tiny", f"--dataset.root={tiny_dataset}",
                "--policy.device=cpu", "--policy.push_to_hub=false", "--batch_size=4",
                "--steps=2", "--log_freq=1", "--save_freq=1", "--num_workers=1",
                f"--output_dir={tmp_path}/{name}", *options,
            ]
        )[0]  # fmt: skip

    return run


def test_a_resumed_run_equals_a_straight_one_and_acts(make, monkeypatch, tmp_path):
    straight = train(make("straight")).state
    answers = iter([False, True])
    with monkeypatch.context() as patched:
        patched.setattr(StopSignal, "should_stop", lambda stop_signal: next(answers))
        assert train(make("half")).state.step == 1
    resumed = train(make("half", "--resume=true")).state
    for key, tensor in straight.policy.state_dict().items():
        assert torch.equal(resumed.policy.state_dict()[key], tensor), key
    ready = load_for_acting(str(tmp_path / "straight"))
    seen = {TOP: np.zeros((2, 48, 64, 3), np.uint8), "observation.state": np.zeros((2, 3), "f4")}
    action, state = ready.act(seen, "reach", ready.policy.init_state(2))
    assert action.shape == (2, 2)
    assert not ready.policy.needs_observation(state)


def test_with_cached_features_a_step_costs_the_head_alone(make, tmp_path, monkeypatch):
    plain = train(make("plain", "--steps=6", "--save_checkpoint=false")).state.policy
    computed = [0]
    store = FeatureCache.store

    def counting(self, rows, records):
        computed[0] += len(rows)
        store(self, rows, records)

    monkeypatch.setattr(FeatureCache, "store", counting)
    cache = ("--dataset.cache=prefix", f"--dataset.cache_dir={tmp_path}/kept")
    options = ("--steps=6", "--save_checkpoint=false", *cache)
    for name in ("first", "again"):
        kept = train(make(name, *options)).state.policy
        for key, tensor in plain.state_dict().items():
            torch.testing.assert_close(kept.state_dict()[key], tensor, atol=2e-6, rtol=0)
        first = computed[0]
    assert computed[0] == first <= 6 * 4, "the second run computes none"
    for option, says in (
        ("--policy.tune_top_llm_layers=1", "which trains that part or has none"),
        ("--policy.cached_prompt_tokens=3", "cached_prompt_tokens=3"),
    ):
        with pytest.raises(PolicyError, match=says):
            train(make("no", *options, option))


def test_relative_actions_are_measured_in_chunks_of_forty(make):
    with pytest.raises(DataError, match="drop_last is 39"):
        train(make("relative", "--policy.use_relative_actions=true"))
