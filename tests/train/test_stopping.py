"""A run that is asked to stop finishes its step, saves, and later goes on as if nothing had
happened.
"""

import os
import signal
import threading
import time
from pathlib import Path

import pytest
import torch

from kata.errors import ConfigError
from kata.train import stopping as guards
from kata.train import train
from kata.train.stopping import ECHO_S, SIGNALS, STOPPED, StopSignal
from tests import forked
from tests.conftest import TINY_ACT


def test_a_run_out_of_time_continues_exactly(vector_run, tmp_path):
    straight = train(vector_run())
    part = f"--output_dir={tmp_path}/part"
    stopped = train(vector_run(part, "--max_time=0.001"))
    assert stopped.stopped is not None
    assert stopped.state.step < 6
    while stopped.stopped is not None:
        stopped = train(vector_run(part, "--resume=true", "--max_time=0.05"))
    ours, theirs = straight.state.policy.state_dict(), stopped.state.policy.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_stop_before_the_first_step_leaves_a_folder_that_can_be_continued(vector_run):
    stopped = train(vector_run("--max_time=1e-9"))
    assert stopped.state.step == 0
    assert stopped.stopped is not None
    assert not (stopped.folder / "checkpoints").exists()
    assert train(vector_run("--resume=true", "--max_time=null")).state.step == 6


@pytest.mark.parametrize("number", SIGNALS)
def test_each_signal_is_noted_and_the_old_handlers_come_back(number, monkeypatch):
    """Its echo is the same signal; after a while it is another one."""
    now_s = [100.0]
    monkeypatch.setattr(guards.time, "monotonic", lambda: now_s[0])
    if signal.getsignal(number) is signal.SIG_IGN:
        pytest.skip("this signal is ignored here, as SIGHUP is under nohup")
    before = signal.getsignal(number)
    with StopSignal() as stop_signal:
        assert not stop_signal.should_stop()
        os.kill(os.getpid(), number)
        assert stop_signal.should_stop()
        assert stop_signal.reason == signal.Signals(number).name
        os.kill(os.getpid(), number)
        now_s[0] += ECHO_S
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) == before


def test_another_signal_is_no_echo():
    with StopSignal() as stop_signal:
        os.kill(os.getpid(), signal.SIGTERM)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop_signal.reason == "SIGTERM"


@pytest.mark.parametrize(("limit_s", "agreed"), [(1e-9, None), (None, "SIGTERM on rank 1")])
def test_a_first_signal_to_a_run_that_is_stopping_anyway_lets_it_save(limit_s, agreed):
    """SLURM signals all ranks, of which one may have told the others before they hear it
    themselves.
    """
    with StopSignal(limit_s, lambda reason: agreed or reason) as stop_signal:
        assert stop_signal.should_stop()
        reason = stop_signal.reason
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop_signal.reason == reason


def test_a_guard_in_another_thread_minds_the_clock_alone():
    seen = []

    def work():
        with StopSignal(0.0) as stop_signal:
            seen.append(stop_signal.should_stop())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True]


def command(vector_run, tmp_path, *more) -> forked.Team:
    """`kata train` in a process of its own, saving at every step."""
    run = vector_run()
    data = [f"--dataset.root={run.dataset.root}", "--dataset.repo_id=tests/vectors"]
    options = [*data, *TINY_ACT, "--save_freq=1", *more, f"--output_dir={run.output_dir}"]
    return forked.kata(["train", *options], tmp_path / "said.txt")


def until(condition, process: forked.Team) -> None:
    until_s = time.monotonic() + 120
    while not condition():
        assert process.processes[0].is_alive(), process.said()
        assert time.monotonic() < until_s, process.said()
        time.sleep(0.002)


def saving(checkpoints: Path) -> bool:
    return checkpoints.is_dir() and any(name.startswith(".") for name in os.listdir(checkpoints))


def test_a_signal_ends_the_command_with_its_own_status_and_a_checkpoint(vector_run, tmp_path):
    process = command(vector_run, tmp_path, "--steps=100000", "--log_freq=1", "--save_freq=100000")
    record = tmp_path / "run" / "metrics.jsonl"
    until(lambda: record.exists() and record.stat().st_size, process)
    process.send_signal(signal.SIGTERM)
    assert process.ended(60) == [STOPPED], process.said()
    assert "stopped after" in process.said()
    assert "--resume=true" in process.said()
    last = tmp_path / "run" / "checkpoints" / "last"
    assert (last / "training_state" / "training_step.json").is_file()


def test_a_signal_during_a_save_leaves_the_save_whole(vector_run, tmp_path):
    process = command(vector_run, tmp_path, "--steps=60")
    checkpoints = tmp_path / "run" / "checkpoints"
    until(lambda: saving(checkpoints), process)
    process.send_signal(signal.SIGUSR1)
    assert process.ended(60) == [STOPPED], process.said()
    done = sorted(p.name for p in checkpoints.iterdir() if p.name.isdigit())
    assert 0 < len(done) < 60
    assert (checkpoints / "last").readlink().name == done[-1]
    resumed = train(vector_run("--steps=60", "--save_freq=60", "--resume=true"))
    straight = train(
        vector_run("--steps=60", "--save_freq=60", f"--output_dir={tmp_path}/straight")
    )
    ours, theirs = straight.state.policy.state_dict(), resumed.state.policy.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


def test_a_second_signal_leaves_at_once(vector_run, tmp_path):
    process = command(vector_run, tmp_path, "--steps=100000", "--keep_last=2")
    checkpoints = tmp_path / "run" / "checkpoints"
    until(lambda: saving(checkpoints), process)
    process.send_signal(signal.SIGTERM)
    process.send_signal(signal.SIGINT)
    assert process.ended(60) == [130], process.said()
    assert "interrupted" in process.said()
    assert (checkpoints / "last").exists() == any(p.name.isdigit() for p in checkpoints.iterdir())


@pytest.mark.parametrize("text", ["soon", "0", "-1h", "nan"])
def test_a_time_that_is_none_is_refused(tiny_run, text):
    with pytest.raises(ConfigError, match="max_time"):
        tiny_run(f"--max_time={text}")
