"""Evaluation beside training: its own process, its result in the record, training undisturbed."""

import json
import os
import signal
import sys
import threading
import time
from pathlib import Path

import pytest
import torch

from kata.cli import main
from kata.eval.envs.reach import CAMERAS, SIZE
from kata.eval.record.demonstrations import record
from kata.run import resolve_run
from kata.train import train
from kata.train.metrics.meter import read_metrics
from tests.conftest import TINY_ACT

INPUTS = {
    f"observation.images.{CAMERAS[0]}": {"type": "VISUAL", "shape": [3, SIZE, SIZE]},
    "observation.state": {"type": "STATE", "shape": [2]},
}
ENV = ("--env.type=kata", "--env.max_steps=4", "--eval.n_episodes=2", "--eval.videos=1")


@pytest.fixture(autouse=True)
def quick_cameras():
    """Replace the narrow backbone: real evaluations load what this process trained."""


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    return record(
        tmp_path_factory.mktemp("demos") / "reach", num_episodes=2, codec="h264", workers=1
    )


@pytest.fixture
def run_of(demos, tmp_path):
    fixed = [
        f"--dataset.root={demos}",
        "--dataset.repo_id=kata/reach",
        *TINY_ACT,
        "--steps=2",
        "--log_freq=1",
        f"--policy.input_features={json.dumps(INPUTS)}",
    ]
    return lambda *more: resolve_run([*fixed, f"--output_dir={tmp_path}/run", *more])[0]


def test_results_land_in_the_record_and_the_report_and_change_nothing(run_of, tmp_path, capsys):
    alone = train(run_of(f"--output_dir={tmp_path}/alone"))
    assert "evaluation" not in capsys.readouterr().out
    trained = train(run_of(*ENV, "--env_eval_freq=0"))
    said = " ".join(capsys.readouterr().out.split())
    assert "evaluation 2 episodes of kata, at the end, by a process; each takes" in said
    assert sorted(trained.evaluations) == [2]
    lines = [x for x in read_metrics(trained.folder / "metrics.jsonl") if x["kind"] == "evaluation"]
    assert [x["step"] for x in lines] == [2]
    assert all(
        x["num_episodes"] == 2 and 0 <= x["success_low"] <= x["success_high"] <= 1 for x in lines
    )
    assert "after 2 steps of training" in trained.report.read_text()
    kept = json.loads((trained.folder / "evaluations" / "000002" / "eval.json").read_text())
    assert [e["seed"] for e in kept["episodes"]] == [1000, 1001]
    assert not list((trained.folder / "evaluations").glob("*/pretrained_model"))
    straight, beside = (t.state.policy.state_dict() for t in (alone, trained))
    assert all(torch.equal(straight[name], beside[name]) for name in straight)


def python_that(does: str, folder: Path, monkeypatch) -> None:
    """Let a script stand for the interpreter: -P -m kata.eval.env_worker checkpoint options out."""
    script = folder / "python"
    script.write_text(f"#!/bin/sh\n{does}\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))


def test_the_start_and_every_second_step_are_evaluated_too(
    run_of, monkeypatch, tmp_path, narrow_backbone
):
    result = json.dumps({"num_episodes": 2, "success_interval": [0.0, 0.7]})
    python_that(f"echo '{result}' > $6", tmp_path, monkeypatch)
    options = ("--env_eval_freq=2", "--env_eval_at_start=true", "--steps=5")
    trained = train(run_of(*ENV, *options))
    assert trained.evaluations.keys() >= {0, 5}, "one of step 2 or 4 may be left out"
    lines = [x for x in read_metrics(trained.folder / "metrics.jsonl") if x["kind"] == "evaluation"]
    assert sorted(x["step"] for x in lines) == [0, 2, 4, 5]
    assert trained.evaluations[0]["success_high"] == 0.7


def test_an_environment_that_does_not_fit_is_refused_before_step_1(
    vector_dataset, tmp_path, capsys
):
    other = [f"--dataset.root={vector_dataset}", "--dataset.repo_id=t/v"]
    args = [*other, *TINY_ACT, *ENV, f"--output_dir={tmp_path}/run"]
    assert main(["train", *args]) == 2
    said = capsys.readouterr()
    assert "kata/Reach-v0" in said.err
    assert "remedy" in said.err
    assert "step 1" not in said.out
    assert not (tmp_path / "run").exists()


def test_a_signal_ends_an_evaluation_that_is_waited_for(run_of, tmp_path):
    """After the last step, with everything saved, only the evaluation is left, and it would take
    hours.
    """
    log = tmp_path / "run" / "evaluations" / "000002" / "log.txt"

    def ask():
        until_s = time.monotonic() + 120
        while not log.exists() and time.monotonic() < until_s:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    asking = threading.Thread(target=ask)
    asking.start()
    trained = train(
        run_of(
            "--env.type=kata", "--eval.n_episodes=1000000", "--eval.videos=0", "--env_eval_freq=0"
        )
    )
    asking.join()
    assert trained.stopped is None
    assert "the evaluation ended with status" in trained.evaluations[2]["error"]
    assert (trained.folder / "checkpoints" / "000002" / "training_state").is_dir()
    assert not list((trained.folder / "evaluations").glob("*/pretrained_model"))


def test_an_evaluation_that_fails_is_said_and_training_goes_on(
    run_of, monkeypatch, tmp_path, narrow_backbone
):
    python_that("exit 7", tmp_path, monkeypatch)
    trained = train(run_of(*ENV, "--env_eval_freq=0"))
    assert trained.state.step == 2
    assert "status 7" in trained.evaluations[2]["error"]
