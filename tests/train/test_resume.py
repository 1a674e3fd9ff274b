"""A run that lost its newest checkpoints continues from an older one, and ends where a straight
one ends.
"""

import io

import pytest
import torch
from rich.console import Console

from kata.errors import CheckpointError
from kata.train import train
from tests.train.test_train import numbers


def equal(a, b):
    ours, theirs = a.state.policy.state_dict(), b.state.policy.state_dict()
    return all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.fixture
def options():
    return ("--dataset.eval_split=0.3", "--eval_steps=2", "--ema.enable=true", "--steps=8")


def cut(folder):
    path = folder / "pretrained_model" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:100])


def told(run):
    """The trained run, and what was printed before step 1, on lines that do not break."""
    said = io.StringIO()
    return train(run, console=Console(file=said, width=10_000)), said.getvalue()


def test_falling_back_leaves_the_weights_and_the_record_of_a_straight_run(
    light_run, options, tmp_path
):
    straight = train(light_run(*options))
    part = f"--output_dir={tmp_path}/part"
    stopped = train(light_run(*options, part, "--steps=6"))
    home = stopped.folder / "checkpoints"
    cut(home / "000006")
    (home / "000004/training_state/optimizer_state.safetensors").unlink()
    partial = home / ".000008.partial/pretrained_model"
    partial.mkdir(parents=True)
    resumed, said = told(light_run(*options, part, "--resume=true"))
    for words in (
        "000008 was half-written",
        "100 of ",
        "optimizer_state.safetensors: absent",
        "continuing from",
    ):
        assert words in said
    assert equal(straight, resumed)
    assert torch.equal(*(next(t.state.ema.parameters()) for t in (straight, resumed)))
    assert numbers(straight) == numbers(resumed)
    assert [p.name for p in sorted(home.glob("0*"))] == [
        "000002", "000004", "000004.damaged", "000006", "000006.damaged", "000008",
    ]  # fmt: skip
    assert straight.best["action_error"] == resumed.best["action_error"]


def test_a_run_whose_checkpoints_are_all_damaged_is_refused_and_stays_as_it_is(light_run, tmp_path):
    trained = train(light_run("--steps=4"))
    for name in ("000002", "000004"):
        cut(trained.folder / "checkpoints" / name)
    record = (trained.folder / "metrics.jsonl").read_bytes()
    with pytest.raises(CheckpointError) as caught:
        train(light_run("--resume=true"))
    assert "000002" in caught.value.what
    assert "000004" in caught.value.what
    assert (trained.folder / "metrics.jsonl").read_bytes() == record
    assert {p.name for p in (trained.folder / "checkpoints").iterdir()} == {
        "000002",
        "000004",
        "last",
    }


def test_resuming_where_nothing_was_saved_starts_and_says_so(light_run):
    trained, said = told(light_run("--steps=2", "--resume=true"))
    assert trained.state.step == 2
    assert "starting from step 0" in said


def test_a_checkpoint_without_a_manifest_is_continued_with_a_note(light_run, tmp_path):
    straight = train(light_run(f"--output_dir={tmp_path}/straight"))
    trained = train(light_run("--steps=4"))
    (trained.folder / "checkpoints/000004/manifest.json").unlink()
    resumed, said = told(light_run("--resume=true"))
    assert "has no manifest.json" in said
    assert equal(straight, resumed)


def test_a_run_takes_no_step_back(light_run):
    train(light_run("--steps=4"))
    with pytest.raises(CheckpointError, match="steps=3"):
        train(light_run("--steps=3", "--resume=true"))


def test_continuing_with_more_steps_is_the_longer_run(light_run, tmp_path):
    straight = train(light_run(f"--output_dir={tmp_path}/straight"))
    train(light_run("--steps=3"))
    assert equal(straight, train(light_run("--resume=true")))
