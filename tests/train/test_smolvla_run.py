"""A run of a tiny SmolVLA: it continues exactly, and what is frozen stays as it was."""

import dataclasses
import importlib
import shutil
import sys
from pathlib import Path

import pytest
import torch

from kata.data.frames.frame_format import FrameFormat
from kata.dist.engine import Engine
from kata.dist.process_group import ProcessGroup
from kata.errors import PolicyError
from kata.eval.rollout_policy import load_for_acting
from kata.policies import build_policy
from kata.policies.load import save_weights
from kata.processors.tokenize import read_tokenizer, tokenizer_files
from kata.run import read_policy_config, resolve_run
from kata.spec import Feature, FeatureType
from kata.train import train
from kata.train.checkpoint.snapshot import HostTensors, snapshot_state
from kata.train.input.prepare import prepare
from kata.train.metrics.meter import read_metrics
from kata.train.stopping import StopSignal
from kata.update.state import build_state

FEATURES = (
    '{"observation.images.top": {"type": "VISUAL", "shape": [3, 48, 64]}, '
    '"observation.state": {"type": "STATE", "shape": [3]}}'
)
ACTION = '{"action": {"type": "ACTION", "shape": [2]}}'
TINY = (
    "--policy.chunk_size=4", "--policy.n_action_steps=2", "--policy.num_vlm_layers=2", "--policy.num_steps=2",  # noqa: E501
    "--policy.resize_imgs_with_padding=[32,32]", "--policy.max_state_dim=6", "--policy.max_action_dim=5",  # noqa: E501
    f"--policy.input_features={FEATURES}",
)  # fmt: skip


@pytest.fixture
def smolvla_run(tiny_dataset, tmp_path):
    sys.path.insert(0, str(Path(__file__).parents[2] / "tools/peer"))
    try:
        folder = importlib.import_module("tiny_smolvlm").write(tmp_path / "smolvlm")
    finally:
        sys.path.pop(0)

    def make(name, *options):
        return resolve_run(
            [
                "--policy.type=smolvla", *TINY, f"--policy.vlm_model_name={folder}",
                "--dataset.repo_id=tests/tiny", f"--dataset.root={tiny_dataset}", "--policy.device=cpu",  # noqa: E501
                "--policy.push_to_hub=false", "--batch_size=4", "--steps=2", "--log_freq=1", "--save_freq=1",  # noqa: E501
                "--num_workers=1", "--ema.enable=true", f"--output_dir={tmp_path}/{name}", *options,
            ]
        )[0]  # fmt: skip

    return make


def test_a_resumed_run_equals_a_straight_one_and_frozen_parts_stay(smolvla_run, monkeypatch):
    straight = train(smolvla_run("straight")).state
    answers = iter([False, True])
    with monkeypatch.context() as patched:
        patched.setattr(StopSignal, "should_stop", lambda stop_signal: next(answers))
        assert train(smolvla_run("half")).state.step == 1
    resumed = train(smolvla_run("half", "--resume=true")).state
    for before, after in ((straight.policy, resumed.policy), (straight.ema, resumed.ema)):
        for key, tensor in before.state_dict().items():
            assert torch.equal(after.state_dict()[key], tensor), key
    torch.manual_seed(smolvla_run("straight").seed)
    new = dict(build_policy(straight.policy.config).named_parameters())
    average = dict(straight.ema.named_parameters())
    for name, parameter in straight.policy.named_parameters():
        is_constant = name in straight.constant
        assert is_constant == (not parameter.requires_grad)
        assert torch.equal(parameter, new[name]) == is_constant, name
        assert (average[name].data_ptr() == parameter.data_ptr()) == is_constant


def test_a_checkpoint_brings_the_sizes_and_the_tokenizer_of_its_model_along(
    smolvla_run, tiny_dataset, tmp_path
):
    """It is continued, trained on and evaluated without the folder of its model, or elsewhere."""
    train(smolvla_run("first", "--steps=1"))
    model = tmp_path / "smolvlm"
    kept = read_policy_config(tmp_path / "first/checkpoints/last/pretrained_model", [])
    assert kept["vlm_model_name"] == str(model)
    model.rename(tmp_path / "elsewhere")
    forget_tokenizers()
    again = train(resolve_run([f"--output_dir={tmp_path}/first", "--resume=true", "--steps=2"])[0])
    assert again.state.step == 2
    (tmp_path / "first").rename(tmp_path / "moved")
    forget_tokenizers()
    before = load_for_acting(str(tmp_path / "moved"), "cpu").policy.state_dict()
    given = [
        f"--policy.path={tmp_path}/moved", "--dataset.repo_id=tests/tiny", "--policy.device=cpu",
        f"--dataset.root={tiny_dataset}", "--policy.push_to_hub=false", "--batch_size=4",
        "--steps=1", "--num_workers=1", f"--output_dir={tmp_path}/tuned",
    ]  # fmt: skip
    tuned = train(resolve_run(given)[0]).state.policy.state_dict()
    assert all(torch.equal(tuned[name], before[name]) for name in before if "vision" in name)
    shutil.rmtree(tmp_path / "moved/checkpoints/000002/pretrained_model/tokenizer")
    forget_tokenizers()
    ready = load_for_acting(str(tmp_path / "tuned"), "cpu")
    assert ready.config.vlm_model_name.startswith(str(tmp_path / "tuned"))


def forget_tokenizers():
    for cached in (read_tokenizer, tokenizer_files):
        cached.cache_clear()


def test_frames_that_the_reader_fits_are_only_padded_on_the_device(smolvla_run):
    whole = train(smolvla_run("device"))
    prepared = prepare(smolvla_run("look", "--dataset.resize=reader"))
    assert prepared.reading.frame_format == FrameFormat({"observation.images.top": (24, 32)})
    assert prepared.run.policy.cameras["observation.images.top"].shape == (3, 48, 64)
    small = train(smolvla_run("reader", "--dataset.resize=reader"))
    losses = [loss_per_step(done.folder) for done in (small, whole)]
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    assert losses[0] != losses[1]


def loss_per_step(folder):
    lines = read_metrics(folder / "metrics.jsonl")
    return [line["loss"] for line in lines if line["kind"] == "train"]


def test_constant_weights_are_copied_for_one_checkpoint_and_written_with_all(smolvla_run):
    engine, memory = Engine(ProcessGroup(), torch.device("cpu")), HostTensors()
    state = build_state(smolvla_run("run", "--policy.output_features=" + ACTION), engine)
    first = snapshot_state(state, memory, engine)
    before = {name: tensor.clone() for name, tensor in first.weights.items()}
    with torch.no_grad():
        for parameter in state.policy.parameters():
            parameter.add_(1)
    again = snapshot_state(state, memory, engine)
    for name, tensor in again.weights.items():
        assert torch.equal(tensor, before[name]) == (name in state.constant), name
    assert again.weights.keys() == again.ema.keys() == state.policy.state_dict().keys()
    for name in state.constant:
        assert again.ema[name] is again.weights[name]


def test_a_checkpoint_continues_on_a_dataset_with_fewer_cameras_and_other_widths(
    smolvla_run, tiny_dataset, tmp_path, caplog
):
    first = smolvla_run("first").policy
    camera = first.input_features["observation.images.top"]
    inputs = {
        "observation.images.top": camera,
        "observation.images.front": camera,
        "observation.state": Feature(FeatureType.STATE, (5,)),
    }
    base = build_policy(first.with_features(inputs, {"action": Feature(FeatureType.ACTION, (4,))}))
    folder = tmp_path / "base"
    folder.mkdir()
    base.config.save(folder)
    save_weights(base, folder / "model.safetensors")
    run, _ = resolve_run(
        [
            f"--policy.path={folder}", "--dataset.repo_id=tests/tiny", f"--dataset.root={tiny_dataset}",  # noqa: E501
            "--policy.device=cpu", "--policy.push_to_hub=false", "--batch_size=4", "--steps=1", "--num_workers=1",  # noqa: E501
            f"--output_dir={tmp_path}/tuned", "--missing_cameras=leave_out",
        ]
    )  # fmt: skip
    with pytest.raises(
        PolicyError, match=r"the dataset has no observation\.images\.front"
    ) as blank:
        train(dataclasses.replace(run, missing_cameras="refuse"))
    assert '{"observation.images.wrist": "observation.images.front"}' in str(blank.value)
    tuned = train(run).state.policy
    assert "observation.images.front: not in the dataset" in caplog.text
    assert "2. observation.images.front 3x48x64, IDENTITY <- nothing: left out" in caplog.text
    assert "prompt: 2 sentences, the first is 'reach 0'" in caplog.text
    assert tuned.config.action.shape == (2,)
    assert set(tuned.config.input_features) == {"observation.images.top", "observation.state"}
    assert torch.equal(tuned.vision.post_layernorm.weight, base.vision.post_layernorm.weight)
    assert torch.equal(tuned.lm_head.weight, base.lm_head.weight)
