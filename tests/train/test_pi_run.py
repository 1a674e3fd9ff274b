"""Runs of tiny π0, π0.5 and π0-FAST: they continue exactly, and frozen parts stay as they were."""

import importlib
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from kata.errors import PolicyError
from kata.eval.rollout_policy import load_for_acting
from kata.processors.action_tokens import read_sentences
from kata.processors.fast import read_fast
from kata.processors.tokenize import read_tokenizer, tokenizer_files
from kata.run import resolve_run
from kata.train import train
from kata.train.stopping import StopSignal

FEATURES = (
    '{"observation.images.top": {"type": "VISUAL", "shape": [3, 48, 64]}, '
    '"observation.state": {"type": "STATE", "shape": [3]}}'
)
FLOW = ("--policy.num_inference_steps=2",)
TINY = (
    "--policy.chunk_size=4", "--policy.n_action_steps=2",
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
    return module


def forget_tokenizers():
    for cached in (read_tokenizer, read_fast, read_sentences, tokenizer_files):
        cached.cache_clear()


@pytest.mark.parametrize("name", ["pi0", "pi0_fast"])
def test_a_checkpoint_brings_its_tokenizers_along(
    name, pi_cases, tiny_dataset, tmp_path, monkeypatch
):
    """It is continued, trained on and evaluated elsewhere, and without the folders it had."""
    monkeypatch.chdir(tmp_path)
    given = ["--policy.text_tokenizer_name=words", "--policy.chunk_size=4"]
    shutil.copytree(pi_cases.folder(pi_cases.VOCABULARIES.get(name, 0)), "words")
    if name == "pi0_fast":
        shutil.copytree(pi_cases.fast_folder(), "actions")
        given += ["--policy.action_tokenizer_name=actions", "--policy.fast_skip_tokens=8"]
        given += ["--policy.max_decoding_steps=12"]

    def trained(folder, *options):
        place = ["--dataset.repo_id=tests/tiny", f"--dataset.root={tiny_dataset}"]
        size = ["--batch_size=4", "--log_freq=1", "--num_workers=1", "--policy.device=cpu"]
        own = ["--policy.push_to_hub=false", f"--output_dir={tmp_path}/{folder}"]
        return train(resolve_run([*place, *size, *own, *options])[0])

    with pi_cases.tiny_own(name):
        first = trained("first", f"--policy.type={name}", *TINY, *given, "--steps=1")
        for folder in ("words", "actions"):
            shutil.rmtree(folder, ignore_errors=True)
        monkeypatch.chdir("/")
        forget_tokenizers()
        pretrained = first.folder / "checkpoints/last/pretrained_model"
        files = [*pretrained.glob("*tokenizer/*")]
        before = load_for_acting(str(first.folder), "cpu").before
        assert before.artifact_bytes == sum(file.stat().st_size for file in files) > 0
        trained("first", "--resume=true", "--steps=2")
        shutil.move(first.folder, tmp_path / "moved")
        base = tmp_path / "moved"
        trained("tuned", f"--policy.path={base}", "--steps=1")
        shutil.rmtree(base)
        forget_tokenizers()
        ready = load_for_acting(str(tmp_path / "tuned"), "cpu")
        assert ready.config.text_tokenizer_name.startswith(str(tmp_path / "tuned"))
        pretrained = tmp_path / "tuned/checkpoints/last/pretrained_model"
        shutil.rmtree(pretrained / "tokenizer")
        forget_tokenizers()
        with pytest.raises(PolicyError, match=r"--policy\.text_tokenizer_name=<folder>"):
            load_for_acting(str(tmp_path / "tuned"), "cpu")
        place = {"text_tokenizer_name": pi_cases.folder(pi_cases.VOCABULARIES.get(name, 0))}
        load_for_acting(str(tmp_path / "tuned"), "cpu", changes=place)


@pytest.mark.parametrize(
    ("name", "given"),
    [
        (
            "pi0",
            [
                "--policy.train_expert_only=true",
                "--policy.use_relative_actions=true",
                "--policy.relative_exclude_joints=[]",
                *FLOW,
            ],
        ),
        (
            "pi05",
            ["--policy.freeze_vision_encoder=true", "--policy.rtc_training_max_delay=2", *FLOW],
        ),
        (
            "pi0_fast",
            [
                "--policy.gradient_checkpointing=true",
                "--policy.fast_skip_tokens=8",
                "--policy.max_decoding_steps=12",
                "--dataset.eval_split=0.4",
                "--policy.use_relative_actions=true",
                "--policy.relative_exclude_joints=[]",
            ],
        ),
    ],
)
def test_a_resumed_run_equals_a_straight_one_and_acts(
    name, given, pi_cases, tiny_dataset, tmp_path, monkeypatch
):
    places = [f"--policy.text_tokenizer_name={pi_cases.folder(pi_cases.VOCABULARIES.get(name, 0))}"]
    if name == "pi0_fast":
        places.append(f"--policy.action_tokenizer_name={pi_cases.fast_folder()}")

    def make(folder, *options):
        return resolve_run(
            [
                f"--policy.type={name}", *TINY, *places, *given, "--dataset.repo_id=tests/tiny",
                f"--dataset.root={tiny_dataset}", "--policy.device=cpu",
                "--policy.push_to_hub=false", "--batch_size=4", "--steps=2", "--log_freq=1",
                "--save_freq=1", "--num_workers=1", f"--output_dir={tmp_path}/{folder}", *options,
            ]
        )[0]  # fmt: skip

    with pi_cases.tiny_own(name):
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
