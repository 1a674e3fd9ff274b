"""Equalities of training: what must not change the result does not."""

import json
from pathlib import Path

import pytest
import torch

from kata.errors import CheckpointError
from kata.run import resolve_run
from kata.train import train
from kata.train.checkpoint.manifest import damage
from kata.train.metrics.meter import read_metrics
from kata.train.stopping import StopSignal
from tests.conftest import TINY_ACT, narrow_backbones, undrawn_charts

SILENT = {
    "time",
    "dataloading_s",
    "preprocessing_s",
    "update_s",
    "step_s",
    "samples_per_s",
    "data_wait_share",
    "eta_s",
    "memory_bytes",
    "spent",
    "bound_by",
}


def weights(trained):
    return {name: tensor.clone() for name, tensor in trained.state.policy.state_dict().items()}


def numbers(trained):
    """The record of a run without times and paths, and without when a save reached the disk."""
    lines = read_metrics(trained.folder / "metrics.jsonl")
    kept = [line for line in lines if line["kind"] != "saved"]
    return [{k: v for k, v in line.items() if k not in SILENT and k != "path"} for line in kept]


def equal(a, b):
    return all(torch.equal(a[name], b[name]) for name in a)


def close(a, b, atol):
    for name in a:
        torch.testing.assert_close(
            a[name], b[name], rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )


@pytest.fixture(scope="module")
def trained_once(tiny_dataset, tmp_path_factory):
    """trained_once('--steps=3') is the run of `tiny_run` with these options, which tests share."""
    done = {}

    def trained(*options):
        if options not in done:
            data = [f"--dataset.root={tiny_dataset}", "--dataset.repo_id=tests/tiny"]
            folder = tmp_path_factory.mktemp("shared") / "run"
            args = [*data, *TINY_ACT, f"--output_dir={folder}", *options]
            done[options] = train(resolve_run(args)[0])
        return done[options]

    with pytest.MonkeyPatch.context() as patch:
        narrow_backbones(patch)
        undrawn_charts(patch)
        yield trained


def test_a_run_repeats_bit_for_bit(tiny_run, trained_once):
    again = train(tiny_run())
    assert equal(weights(trained_once()), weights(again))
    assert numbers(trained_once()) == numbers(again)


def test_a_run_folder_that_is_moved_away_costs_nothing(light_run, tmp_path, monkeypatch):
    run, stops = light_run(), StopSignal.should_stop

    def moved(guard):
        found = Path(run.output_dir, "metrics.jsonl")
        if found.exists() and found.stat().st_size:
            found.parent.rename(tmp_path / "m")
        return stops(guard)

    monkeypatch.setattr(StopSignal, "should_stop", moved)
    with pytest.raises(CheckpointError, match=r"moved or removed.* 6 steps are done") as caught:
        train(run)
    assert "move the checkpoints" in caught.value.remedy
    whole = [line for line in read_metrics(tmp_path / "m/metrics.jsonl") if line["kind"] == "train"]
    assert whole[-1]["step"] == 6
    assert damage(Path(run.output_dir, "checkpoints/000006")) == []


CLIPS = ("--dataset.shuffle=clips", "--dataset.clip_pool=5", "--dataset.frame_memory=400KB")


@pytest.mark.parametrize(
    "options", [(), CLIPS, ("--ema.enable=true", "--accelerator.gradient_accumulation.steps=2")]
)
def test_resumed_equals_straight(tiny_run, tmp_path, options):
    straight = train(
        tiny_run("--dataset.eval_split=0.3", "--eval_steps=3", "--save_freq=3", *options)
    )
    part = train(tiny_run("--dataset.eval_split=0.3", "--eval_steps=3", "--save_freq=3", "--steps=3",  # noqa: E501
                          f"--output_dir={tmp_path}/part", *options))  # fmt: skip
    assert part.state.step == 3
    args = [
        "--dataset.eval_split=0.3",
        "--eval_steps=3",
        "--save_freq=3",
        f"--output_dir={tmp_path}/part",
        *options,
    ]
    resumed = train(tiny_run(*args, "--resume=true"))
    assert equal(weights(straight), weights(resumed))
    assert numbers(straight) == numbers(resumed)
    assert straight.best["action_error"] == resumed.best["action_error"]
    if straight.state.ema is not None:
        assert equal(straight.state.ema.state_dict(), resumed.state.ema.state_dict())
    moments = [t.state.optimizer.state_dict()["state"] for t in (straight, resumed)]
    assert all(
        torch.equal(moments[0][i][n], moments[1][i][n]) for i in moments[0] for n in moments[0][i]
    )


def test_accumulation_does_not_change_the_update(tiny_run, tmp_path):
    """Four micro-batches of one sample are one batch of four: the padded tails differ from
    sample to sample.
    """
    # Without dropout, whose masks belong to a micro-batch; by SGD, since Adam turns rounding near
    # zero into steps.
    plain = ("--policy.dropout=0", "--optimizer.type=sgd", "--optimizer.lr=0.01")
    whole = train(tiny_run(*plain))
    options = ("--batch_size=1", "--accelerator.gradient_accumulation.steps=4")
    split = train(tiny_run(f"--output_dir={tmp_path}/split", *plain, *options))
    close(weights(whole), weights(split), atol=1e-6)
    assert whole.last["loss"] == pytest.approx(split.last["loss"], abs=1e-5)


def test_validation_repeats_and_does_not_disturb_training(tiny_run, trained_once):
    quiet = trained_once("--dataset.eval_split=0.3", "--eval_steps=6", "--save_freq=4")
    often = train(tiny_run("--dataset.eval_split=0.3", "--eval_steps=1"))
    assert equal(weights(quiet), weights(often))
    validations = [[x for x in numbers(t) if x["kind"] == "validation"] for t in (quiet, often)]
    assert [len(v) for v in validations] == [1, 6]
    assert validations[0][-1] == validations[1][-1]


def test_threads_and_read_ahead_do_not_change_the_result(tiny_run, trained_once):
    many = train(tiny_run("--num_workers=3", "--prefetch_factor=1"))
    assert equal(weights(trained_once()), weights(many))


def test_bf16_trains_close_to_fp32_and_keeps_fp32_weights(tiny_run, trained_once):
    full = trained_once()
    half = train(tiny_run("--accelerator.mixed_precision=bf16"))
    assert all(t.dtype == torch.float32 for t in weights(half).values())
    assert not equal(weights(full), weights(half))
    assert half.last["loss"] == pytest.approx(full.last["loss"], rel=0.05)


def test_the_loss_falls_below_the_mean_actions(light_run):
    trained = train(
        light_run(
            "--save_freq=100",
            "--steps=60",
            "--log_freq=100",
            "--dataset.eval_split=0.2",
            "--optimizer.lr=3e-3",
        )
    )
    assert trained.best["action_error"] < 0.7 * trained.best["mean_action_error"]


def test_the_average_of_the_weights_is_judged_and_saved_beside_them(tiny_run):
    trained = train(tiny_run("--ema.enable=true", "--dataset.eval_split=0.3"))
    assert not equal(trained.state.ema.state_dict(), trained.state.policy.state_dict())
    last = trained.folder / "checkpoints" / "last"
    assert (last / "pretrained_model_ema" / "model.safetensors").is_file()


def test_the_resolved_config_reproduces_the_run(trained_once, tmp_path):
    first = trained_once("--dataset.eval_split=0.3", "--eval_steps=6", "--save_freq=4")
    config = first.folder / "train_config.json"
    again = train(resolve_run([f"--config={config}", f"--output_dir={tmp_path}/again"])[0])
    assert equal(weights(first), weights(again))


def test_fine_tuning_starts_from_the_checkpoints_weights(trained_once, tiny_args, tmp_path):
    first = trained_once()
    others = [a for a in tiny_args if not a.startswith("--policy.")]
    frozen = [
        "--steps=1",
        "--optimizer.lr=0",
        "--policy.optimizer_lr_backbone=0",
        "--optimizer.weight_decay=0",
    ]
    path = f"--policy.path={first.folder}/checkpoints/last"
    tuned = train(resolve_run([*others, path, f"--output_dir={tmp_path}/tuned", *frozen])[0])
    assert equal(weights(first), weights(tuned))


def test_a_run_folder_holds_what_the_documentation_says(trained_once):
    trained = trained_once("--dataset.eval_split=0.3", "--eval_steps=6", "--save_freq=4")
    found = {str(p.relative_to(trained.folder)) for p in trained.folder.rglob("*") if p.is_file()}
    for name in ("train_config.json", "metrics.jsonl", "report.html"):
        assert name in found
    assert (trained.folder / "checkpoints/best/validation.json").is_file()
    for step in ("000004", "000006"):
        for name in (
            "config.json",
            "model.safetensors",
            "train_config.json",
            "policy_preprocessor.json",
            "policy_postprocessor.json",
        ):
            assert f"checkpoints/{step}/pretrained_model/{name}" in found
        for name in (
            "training_step.json",
            "optimizer_state.safetensors",
            "optimizer_param_groups.json",
        ):
            assert f"checkpoints/{step}/training_state/{name}" in found
        assert f"checkpoints/{step}/manifest.json" in found
    assert (trained.folder / "checkpoints" / "last").readlink().name == "000006"
    assert not [name for name in found if "partial" in name]
    config = json.loads(
        (trained.folder / "checkpoints/000006/pretrained_model/config.json").read_text()
    )
    assert next(iter(config)) == "type"
    assert config["input_features"]["observation.images.top"] == {
        "type": "VISUAL",
        "shape": [3, 48, 64],
    }
