"""Checkpoints that refer to their base: what they hold, that they continue, and what is whole."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file

from kata.errors import CheckpointError, PolicyError
from kata.eval.rollout_policy import load_for_acting
from kata.policies.load import load_weights
from kata.run import resolve_run
from kata.spec import Feature, FeatureType
from kata.train import train
from kata.train.checkpoint.command import export, upload_command
from kata.train.checkpoint.folder import home_of
from kata.train.checkpoint.manifest import damage
from kata.train.checkpoint.options import ExportOptions, PushOptions
from kata.train.checkpoint.saver import checkpoint_bytes
from kata.train.input.base_features import offered_rename
from kata.train.stopping import StopSignal
from tests.finetune.conftest import write_base
from tests.plan.small import small_run
from tests.train.test_smolvla_run import ACTION, smolvla_run  # noqa: F401

MODEL = "pretrained_model/model.safetensors"


@pytest.fixture
def vla(smolvla_run, tmp_path):  # noqa: F811
    """Return a run that continues from a tiny SmolVLA, whose vision-language model is frozen."""
    options = ("--policy.output_features=" + ACTION,)
    write_base(tmp_path / "base", smolvla_run("first", *options).policy)
    first = smolvla_run("first").dataset

    def make(name, *more):
        return resolve_run(
            [
                f"--policy.path={tmp_path}/base", "--dataset.repo_id=tests/tiny",
                f"--dataset.root={first.root}", "--policy.device=cpu",
                "--policy.push_to_hub=false", "--batch_size=4", "--steps=2", "--log_freq=1",
                "--save_freq=1", "--num_workers=1", f"--output_dir={tmp_path}/{name}", *more,
            ]
        )[0]  # fmt: skip

    return make


def same(one, other):
    for name, tensor in one.state_dict().items():
        assert torch.equal(other.state_dict()[name], tensor), name


def test_frozen_weights_are_left_out_until_the_last_step_and_all_continues(
    vla, tmp_path, monkeypatch
):
    straight = train(vla("straight", "--ema.enable=true")).state
    answers = iter([False, True])
    with monkeypatch.context() as patched:
        patched.setattr(StopSignal, "should_stop", lambda stop_signal: next(answers))
        assert train(vla("half", "--ema.enable=true")).state.step == 1
    again = [f"--config={tmp_path}/half/train_config.json", "--resume=true"]
    # 1. The base is not there: one message, and nothing is lost.
    (tmp_path / "base").rename(tmp_path / "away")
    with pytest.raises(CheckpointError, match=r"(?s)this run was \S*/base,.* --policy\.pre"):
        train(resolve_run(again)[0])
    # 2. Another base.
    shutil.copytree(tmp_path / "away", tmp_path / "base")
    with (tmp_path / "base" / "model.safetensors").open("rb+") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    with pytest.raises(CheckpointError, match="was trained on other weights"):
        train(resolve_run(again)[0])
    # 3. The base again.
    shutil.rmtree(tmp_path / "base")
    moved = f"--policy.pretrained_path={tmp_path}/away"
    resumed = train(resolve_run([*again, moved])[0]).state
    (tmp_path / "away").rename(tmp_path / "base")
    same(straight.policy, resumed.policy)
    same(straight.ema, resumed.ema)
    home = home_of(tmp_path / "half")
    part, whole = home / "000001", home / "000002"
    assert not damage(part)
    assert not (part / MODEL).exists()
    held = load_file(part / "pretrained_model" / "trained.safetensors")
    trained = {n for n, p in straight.policy.named_parameters() if p.requires_grad}
    assert held.keys() == {straight.policy.key_map().to_lerobot(name) for name in trained}
    size = sum(path.stat().st_size for path in part.rglob("*") if path.is_file())
    assert 0.5 < checkpoint_bytes(resumed.policy, vla("half", "--ema.enable=true")) / size < 1.5
    base = load_file(tmp_path / "base" / "model.safetensors")
    stored = load_file(whole / MODEL)
    assert stored.keys() == base.keys()


def test_acting_reads_the_base_and_an_export_holds_all(vla, tmp_path, monkeypatch):
    answers = iter([False, True])
    with monkeypatch.context() as patched:
        patched.setattr(StopSignal, "should_stop", lambda stop_signal: next(answers))
        train(vla("run"))
    part = home_of(tmp_path / "run") / "000001"
    acting = load_for_acting(str(part / "pretrained_model"), "cpu").policy
    export(ExportOptions(path=str(part), out=str(tmp_path / "out")))
    assert not (tmp_path / "out" / "base.json").exists()
    (tmp_path / "base").rename(tmp_path / "away")
    same(acting, load_for_acting(str(tmp_path / "out"), "cpu").policy)
    with pytest.raises(CheckpointError, match=r"its base .* is not there") as missing:
        load_for_acting(str(part / "pretrained_model"), "cpu")
    assert "put the base back" in str(missing.value)
    with pytest.raises(CheckpointError, match="refers to its base"):
        upload_command(PushOptions(path=str(part), repo_id="user/policy"))


def test_whole_checkpoints_are_written_where_they_are_asked_for(vla, tmp_path):
    state = train(vla("whole", "--checkpoint_frozen=whole", "--steps=1")).state
    assert state.policy.reference is None
    folder = home_of(tmp_path / "whole") / "000001" / "pretrained_model"
    assert (folder / "model.safetensors").is_file()
    assert not (folder / "base.json").exists()
    assert json.loads((folder / "train_config.json").read_text())["checkpoint_frozen"] == "whole"


def test_tensors_that_do_not_fit_are_all_in_one_table(base, tmp_path):
    config = small_run(options={"dim_feedforward": 96, "n_decoder_layers": 2}).policy
    other = write_base(tmp_path / "other", config)
    with pytest.raises(PolicyError) as caught:
        load_weights(other, base / "model.safetensors")
    said = str(caught.value)
    assert "missing: model.decoder.layers.{1}.linear1.weight (96, 64)" in said
    assert "of another shape: model.encoder.layers.{0}.linear1.weight (64, 64) for (96, 64)" in said
    names = [name for name in other.state_dict() if ".layers.1." in name]
    assert said.count("missing: ") == len(names)


def test_a_rename_that_fits_is_offered_by_likeness_and_then_in_order():
    camera, state = (Feature(kind, (3, 8, 8)) for kind in (FeatureType.VISUAL, FeatureType.STATE))
    keys = [f"observation.images.{name}" for name in ("camera1", "wrist_image", "camera3")]
    wanted = small_run().policy.with_features(dict.fromkeys(keys, camera), {})
    images = [f"observation.images.{name}" for name in ("top", "wrist_images", "camera3")]
    offered = offered_rename(wanted, {**dict.fromkeys(images, camera), "observation.state": state})
    assert offered == {
        "observation.images.wrist_images": "observation.images.wrist_image",
        "observation.images.top": "observation.images.camera1",
    }
