"""A run that is asked to stop finishes its step, saves, and later goes on as if nothing had happened."""

import os
import signal
import subprocess
import sys
import threading
import time

import pytest
import torch

from kata.errors import ConfigError
from kata.train import train
from kata.train.guard import SIGNALS, STOPPED, Guard


def test_a_run_out_of_time_continues_exactly(tiny_run, tmp_path):
    straight = train(tiny_run())
    part = f"--output_dir={tmp_path}/part"
    stopped = train(tiny_run(part, "--max_time=0.001"))
    assert stopped.stopped is not None
    assert stopped.state.step < 6
    while stopped.stopped is not None:
        stopped = train(tiny_run(part, "--resume=true", "--max_time=0.4"))
    ours, theirs = straight.state.policy.state_dict(), stopped.state.policy.state_dict()
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)


@pytest.mark.parametrize("number", SIGNALS)
def test_each_signal_is_noted_and_the_old_handlers_come_back(number):
    before = signal.getsignal(number)
    with Guard() as guard:
        assert not guard.stops()
        os.kill(os.getpid(), number)
        assert guard.stops()
        assert guard.reason == signal.Signals(number).name
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
    assert signal.getsignal(number) == before


def test_a_guard_in_another_thread_minds_the_clock_alone():
    seen = []

    def work():
        with Guard(0.0) as guard:
            seen.append(guard.stops())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [True]


def test_a_signal_ends_the_command_with_its_own_status_and_a_checkpoint(tiny_args, tmp_path):
    command = [sys.executable, "-m", "kata", "train", *tiny_args, "--steps=100000", "--log_freq=1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        record = tmp_path / "run" / "metrics.jsonl"
        until_s = time.monotonic() + 120
        while not (record.exists() and record.stat().st_size) and time.monotonic() < until_s:
            time.sleep(0.05)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=60)
    assert process.returncode == STOPPED, err
    assert "stopped after" in out
    assert "--resume=true" in out
    assert (tmp_path / "run" / "checkpoints" / "last" / "training_state" / "training_step.json").is_file()


@pytest.mark.parametrize("text", ["soon", "0", "-1h", "nan"])
def test_a_time_that_is_none_is_refused(tiny_run, text):
    with pytest.raises(ConfigError, match="max_time"):
        tiny_run(f"--max_time={text}")
