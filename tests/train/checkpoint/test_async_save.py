"""Saving beside training: the same bytes as standing still, errors that are seen, a full disk
that costs no run.
"""

import json
import logging
import threading
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file

from kata.errors import CheckpointError
from kata.train import train
from kata.train.checkpoint import async_save as saving_module
from kata.train.checkpoint.folder import checkpoints
from kata.train.checkpoint.manifest import MANIFEST
from kata.train.checkpoint.retention import Keep, room_needed
from kata.train.checkpoint.snapshot import HostTensors, snapshot_state
from kata.train.components import build_components
from kata.train.metrics.meter import read_metrics
from tests.train.conftest import fill_up


def files(folder):
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def saves(trained):
    return [
        line for line in read_metrics(trained.folder / "metrics.jsonl") if line["kind"] == "saved"
    ]


@pytest.fixture
def started(monkeypatch):
    """Calls the given function with (saving, state) after each step of a run, in place of its
    own callbacks.
    """
    begun = {}

    def with_chore(callback):
        def open_with_chore(live, *parts):
            job = build_components(live, *parts)
            return replace(job, callbacks=[(1, lambda state: callback(job.saving, state))])

        monkeypatch.setattr("kata.train.trainer.build_components", open_with_chore)
        return begun

    return with_chore


def test_the_bytes_are_those_of_a_save_that_stands_still(light_run, started, tmp_path):
    """Also with an average, and while training goes on changing the state under the writer."""

    def callback(saving, state):
        still = tmp_path / f"{state.step:06d}"
        still.mkdir()
        saving.saver.write(still, state.policy, snapshot_state(state, HostTensors(), saving.engine))
        saving.checkpoint(state)

    started(callback)
    trained = train(light_run("--ema.enable=true"))
    assert len(checkpoints(trained.folder / "checkpoints")) == 6
    for folder in checkpoints(trained.folder / "checkpoints"):
        ours = {name: raw for name, raw in files(folder).items() if name != MANIFEST}
        assert ours == files(tmp_path / folder.name)


def test_what_changes_after_the_copy_does_not_reach_the_file(
    light_run, started, monkeypatch, tmp_path
):
    """The writer is held back until training has changed every tensor."""
    go_on, real = threading.Event(), saving_module.publish
    monkeypatch.setattr(saving_module, "publish", lambda *args: go_on.wait(30) and real(*args))

    def callback(saving, state):
        if state.step == 1:
            saving.checkpoint(state)
            names = state.policy.key_map()
            expected.update(
                {names.to_lerobot(n): t.clone() for n, t in state.policy.state_dict().items()}
            )
            with torch.no_grad():
                for tensor in (*state.policy.parameters(), *moments(state)):
                    tensor.add_(1)
            go_on.set()

    def moments(state):
        return [value for named in state.optimizer.state.values() for value in named.values()]

    expected = {}
    started(callback)
    folder = train(light_run("--steps=2")).folder / "checkpoints/000001"
    stored = load_file(folder / "pretrained_model/model.safetensors")
    assert all(torch.equal(tensor, expected[name]) for name, tensor in stored.items())
    counts = [
        t
        for n, t in load_file(folder / "training_state/optimizer_state.safetensors").items()
        if "/step" in n
    ]
    assert {float(count) for count in counts} == {1.0}


def test_the_next_save_waits_for_the_one_at_work_and_the_wait_is_counted(
    light_run, started, monkeypatch
):
    real = saving_module.publish
    monkeypatch.setattr(
        saving_module, "publish", lambda *args: threading.Event().wait(1.5) or real(*args)
    )
    started(lambda saving, state: saving.checkpoint(state))
    found = saves(train(light_run("--steps=2")))
    assert [line["step"] for line in found] == [1, 2]
    assert found[0]["save_stall_s"] < 0.8 < found[1]["save_stall_s"]
    assert all(line["save_s"] >= 1.5 and line["bytes"] > 0 for line in found)


def test_a_save_that_fails_ends_the_run_at_the_next_step(light_run, started, tmp_path):
    def callback(saving, state):
        if state.step == 1:
            (tmp_path / "run/checkpoints").write_text("a file where the folder should be")
            saving.checkpoint(state)
            saving_module.wait([job.future for job in saving._jobs])
        reached.append(state.step)

    reached = []
    started(callback)
    with pytest.raises(CheckpointError, match="cannot be written"):
        train(light_run("--save_freq=100"))
    assert reached == [1]


def test_a_run_keeps_what_was_asked_for(light_run, tmp_path):
    options = (
        "--save_freq=1",
        "--keep_last=2",
        "--keep_every=3",
        "--dataset.eval_split=0.3",
        "--eval_steps=1",
    )
    trained = train(light_run(*options, "--keep_best=2"))
    home = trained.folder / "checkpoints"
    assert [path.name for path in checkpoints(home)] == ["000003", "000005", "000006"]
    assert len(list(home.glob("best-*"))) == 2
    best = json.loads((home / "best" / "validation.json").read_text())
    assert best["step"] == trained.best["step"]
    assert not list(home.glob(".*"))


def test_the_room_for_a_run_is_what_it_takes_at_most(light_run, tmp_path):
    def checkpoints_needed(*options, done=0):
        return (
            room_needed(
                light_run("--steps=100", "--save_freq=10", *options), tmp_path, done, 1000, 1
            ).run
            / 1000
        )

    assert checkpoints_needed() == 10
    assert checkpoints_needed(done=35) == 7
    assert checkpoints_needed(done=100) == 0
    assert checkpoints_needed("--save_checkpoint=false") == 0
    assert checkpoints_needed("--save_freq=0") == 1
    assert checkpoints_needed("--keep_last=2") == 3
    assert checkpoints_needed("--keep_last=2", "--keep_every=50") == 6
    assert 10 < checkpoints_needed("--dataset.eval_split=0.1") < 10.01


# A full disk, with a real small file system.


def test_a_run_that_will_not_fit_is_refused_before_it_starts(light_run, small_disk):
    (small_disk / "ballast").write_bytes(b"x" * 300_000)
    with pytest.raises(CheckpointError, match="--keep_last=2") as caught:
        train(light_run(f"--output_dir={small_disk}/run", "--save_freq=1"))
    assert "checkpoints" in caught.value.rule
    assert not (small_disk / "run").exists()


def test_a_disk_that_fills_costs_that_save_and_not_the_run(light_run, small_disk, started, caplog):
    def callback(saving, state):
        if state.step == 2:
            fill_up(small_disk)
        if state.step == 4:
            (small_disk / "ballast").unlink()
        if state.step in (1, 3, 5, 6):
            saving.checkpoint(state)
            saving_module.wait([job.future for job in saving._jobs])

    started(callback)
    with caplog.at_level(logging.WARNING):
        trained = train(light_run(f"--output_dir={small_disk}/run", "--save_freq=100"))
    home = trained.folder / "checkpoints"
    assert [path.name for path in checkpoints(home)] == ["000001", "000005", "000006"]
    assert (home / "last").resolve().name == "000006"
    assert "Training continues" in caplog.text
    found = saves(trained)
    assert [(line["step"], "error" in line) for line in found] == [
        (1, False),
        (3, True),
        (5, False),
        (6, False),
    ]
    straight = train(light_run("--save_freq=100"))
    ours, theirs = trained.state.policy.state_dict(), straight.state.policy.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_the_last_save_of_a_run_failing_is_an_error_that_says_what_to_do(
    light_run, small_disk, started
):
    def callback(saving, state):
        if state.step == 2:
            saving.checkpoint(state)
            saving_module.wait([job.future for job in saving._jobs])
            fill_up(small_disk)

    started(callback)
    options = (f"--output_dir={small_disk}/run", "--save_freq=100")
    with pytest.raises(CheckpointError) as caught:
        train(light_run(*options))
    assert "step 6" in caught.value.what
    assert "--resume=true" in caught.value.remedy
    assert "step 2" in caught.value.remedy
    (small_disk / "ballast").unlink()
    assert train(light_run(*options, "--resume=true")).state.step == 6


def test_the_last_save_is_tried_once_more_after_pruning(
    light_run, small_disk, started, monkeypatch
):
    """Room for one more checkpoint appears when the older ones may go."""

    def callback(saving, state):
        saving.checkpoint(state)
        saving_module.wait([job.future for job in saving._jobs])
        if state.step == 5:
            fill_up(small_disk)
            object.__setattr__(saving, "keep", Keep(last=1))

    started(callback)
    trained = train(
        light_run(f"--output_dir={small_disk}/run", "--save_freq=100", "--steps=6", "--keep_last=3")
    )
    assert [path.name for path in checkpoints(trained.folder / "checkpoints")] == ["000006"]
