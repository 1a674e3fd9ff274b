"""Nothing is lost when the terminal goes: closed pipes, SIGHUP, a report that fails after the
last step.
"""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from torch import nn

from kata.errors import CheckpointError, ConfigError
from kata.run import resolve_run
from kata.train import train, trainer
from kata.train.evaluation.report_samples import SampleBudget
from kata.train.stopping import SIGNALS, STOPPED, StopSignal
from kata.train.summary import report_line, run_summary
from tests.conftest import TINY_ACT

needs_hangup = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGHUP")


@needs_hangup
def test_a_run_outlives_its_terminal_and_its_log_file_goes_on(vector_dataset, tmp_path):
    """As `kata train | head` in a terminal that is closed; then the same command goes on.

    Python itself is started here, for it writes to its closed output once more when it ends.
    """
    args = [f"--dataset.root={vector_dataset}", "--dataset.repo_id=tests/vectors", *TINY_ACT]
    command = [
        sys.executable, "-m", "kata", "train", *args, "--steps=1000000", "--log_freq=1",
        f"--output_dir={tmp_path}/run",
    ]  # fmt: skip
    log = tmp_path / "run" / "log.txt"
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_DFL),  # ignored under nohup
    )
    assert process.stdout is not None
    process.stdout.readline()
    process.stdout.close()
    until_s = time.monotonic() + 120
    while not (log.exists() and "step 20/" in log.read_text()) and time.monotonic() < until_s:
        assert process.poll() is None, log.read_text()
        time.sleep(0.05)
    process.send_signal(signal.SIGHUP)
    assert process.wait(60) == STOPPED
    assert (tmp_path / "run" / "checkpoints" / "last" / "manifest.json").is_file()
    said = log.read_text()
    for words in ("learning rate", "SIGHUP: saving", "stopped after", "report: "):
        assert said.count(words) == 1
    step = len((tmp_path / "run" / "losses.f32").read_bytes()) // 4
    resumed = resolve_run(
        [*args, "--resume=true", f"--output_dir={tmp_path}/run", f"--steps={step}"]
    )
    train(resumed[0])
    assert log.read_text().startswith(said)
    assert "continuing from" in log.read_text().removeprefix(said)


@needs_hangup
def test_under_nohup_a_hangup_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with StopSignal() as stop_signal:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not stop_signal.should_stop()
        assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.SIGHUP in SIGNALS


def test_a_stop_that_saves_nothing_says_what_is_lost(vector_run, caplog):
    with StopSignal(saves=False):
        os.kill(os.getpid(), signal.SIGTERM)
    assert "leaving without a save (save_checkpoint=false)" in caplog.text
    run = vector_run("--save_checkpoint=false", "--max_time=1e-9")
    said = run_summary(run, train(run))
    assert "is lost" in said
    assert "--resume" not in said


def test_a_report_that_fails_leaves_a_finished_run(vector_run, monkeypatch, caplog):
    def fail(*_):
        raise RuntimeError("a font is absent")

    told = []
    monkeypatch.setattr(trainer, "write_report", fail)
    monkeypatch.setattr(trainer, "sample_views", fail)
    trained = train(vector_run("--steps=1"), tell=told.append)
    assert trained.state.step == 1
    assert [one.folder for one in told] == [trained.folder]
    assert report_line(trained) == "no report: RuntimeError: a font is absent\n"
    assert "no samples: RuntimeError: a font is absent" in caplog.text


class Slow(nn.Module):
    """A policy whose chunk takes many calls of one unit."""

    def __init__(self):
        super().__init__()
        self.unit = nn.Identity()

    def shard_units(self):
        return [self.unit]

    def predict(self, calls):
        for _ in range(calls):
            self.unit(torch.zeros(1))


def test_samples_end_when_their_time_is_over_or_a_signal_comes():
    policy, done, asked = Slow(), [], iter([False] * 5 + [True])
    with SampleBudget(1e9, lambda: next(asked)).watching(policy, 3, done):
        for _ in range(3):
            policy.predict(3)
            done.append(1)
    assert len(done) == 1
    with SampleBudget(0.0).watching(policy, 3, done):
        policy.predict(1)
        done.append(1)
    assert len(done) == 1
    policy.predict(1)
    with SampleBudget(0.0, is_bound=False).watching(policy, 3, done):
        policy.predict(1)
        done.append(1)
    assert len(done) == 2


@pytest.mark.parametrize("name", ["a/b/c", "me/", "me/so--named"])
def test_a_name_that_the_hub_would_refuse_is_found_before_step_1(vector_run, name):
    run = vector_run("--policy.push_to_hub=true", f"--policy.repo_id={name}")
    with pytest.raises(ConfigError, match=r"policy\.repo_id"):
        train(run)
    assert not Path(run.output_dir).exists()


def test_a_folder_that_cannot_be_made_is_refused(vector_run):
    with pytest.raises(CheckpointError, match="output_dir"):
        train(vector_run("--output_dir=/proc/kata/run"))
