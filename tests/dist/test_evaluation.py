"""An evaluation that ranks share is the evaluation of one."""

import hashlib
import json
import os
import signal
import time

import numpy as np
import pytest

from kata.eval import env_worker
from kata.eval.record.demonstrations import record
from kata.train.metrics.meter import read_metrics
from tests.conftest import TINY_ACT
from tests.dist import ranks, scenes

ENV = (
    "--env.type=kata",
    "--env.max_steps=6",
    "--env_eval_freq=0",
    "--steps=2",
    "--log_freq=1",
    "--batch_size=2",
)


@pytest.fixture(scope="module")
def demos(tmp_path_factory):
    return record(
        tmp_path_factory.mktemp("demos") / "reach", num_episodes=2, codec="h264", workers=1
    )


@pytest.fixture
def args(demos, tmp_path):
    fixed = [
        f"--dataset.root={demos}",
        "--dataset.repo_id=kata/reach",
        *TINY_ACT,
        f"--output_dir={tmp_path}/run",
    ]
    return lambda *more: [*fixed, *ENV, *more]


def evaluations(folder):
    return [line for line in read_metrics(folder / "metrics.jsonl") if line["kind"] == "evaluation"]


@pytest.mark.long
def test_two_ranks_find_what_one_finds(args, tmp_path):
    """Bit for bit, also where weights lie in shards.

    The second round is split between the ranks, and both film.
    """
    wanted = (
        "--eval.n_episodes=5",
        "--eval.batch_size=2",
        "--eval.videos=5",
        "--parallelism.dp_shard=2",
    )
    group = ranks.train(2, *args(*wanted), folder=tmp_path / "out")
    assert group.ended(300) == [0, 0], group.said(0) + group.said(1)
    home = tmp_path / "run" / "evaluations" / "000002"
    checkpoint = tmp_path / "run" / "checkpoints" / "last" / "pretrained_model"
    assert (
        env_worker.main(
            [str(checkpoint), str(home / "options.json"), str(tmp_path / "one" / "eval.json")]
        )
        == 0
    )
    one, two = (
        json.loads((folder / "eval.json").read_text()) for folder in (tmp_path / "one", home)
    )
    for found in (one, two):
        del found["seconds"], found["policy"]["path"]
    assert two == one
    ours, theirs = (dict(np.load(folder / "strips.npz")) for folder in (tmp_path / "one", home))
    assert len(ours) == 5
    for name, frames in ours.items():
        assert np.array_equal(theirs[name], frames)
        assert not np.array_equal(frames[0], frames[-1]), "the tool has moved"
    films = {path.name for path in home.glob("videos/*")}
    assert films == {path.name for path in (tmp_path / "one").glob("videos/*")}
    left = {path.name for path in home.iterdir()}
    assert left == {"eval.json", "log.rank1.txt", "log.txt", "options.json", "strips.npz", "videos"}
    assert [line["num_episodes"] for line in evaluations(tmp_path / "run")] == [5]
    assert "after 2 steps of training" in (tmp_path / "run" / "report.html").read_text()


def shell(path, text):
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


def test_a_rank_whose_evaluation_fails_is_named_and_training_goes_on(args, tmp_path):
    """The third rank has no episode to play; the others act with the same weights."""
    # -P -m kata.eval.env_worker checkpoint options tally
    seen = 'sha256sum < "$4/model.safetensors"\n'
    good = shell(tmp_path / "good", seen + 'echo "{}" > "$6"')
    bad = shell(tmp_path / "bad", seen + "exit 7")
    options = args("--eval.n_episodes=2")
    each = {0: [good, options], 1: [bad, options], 2: [str(tmp_path / "nowhere"), options]}
    group = ranks.start(3, scenes.evaluating_with, folder=tmp_path / "out", each=each)
    assert group.ended() == [0, 0, 0], group.said(0) + group.said(1)
    (line,) = evaluations(tmp_path / "run")
    home = tmp_path / "run" / "evaluations" / "000002"
    assert line["error"].startswith(f"rank 1 (process {group.processes[1].pid} on ")
    assert line["error"].endswith(f"the evaluation ended with status 7; see {home}/log.rank1.txt")
    weights = (
        tmp_path / "run" / "checkpoints" / "last" / "pretrained_model" / "model.safetensors"
    ).read_bytes()
    for log in (home / "log.txt", home / "log.rank1.txt"):
        assert log.read_text().split()[0] == hashlib.sha256(weights).hexdigest()
    assert {path.name for path in home.iterdir()} == {"log.rank1.txt", "log.txt", "options.json"}


def endless(folder):
    """Plays for as long as the rank is there that started it."""
    return shell(folder / "endless", f"touch {folder}/$7\nwhile kill -0 $PPID; do sleep 0.2; done")


def when_all_play(folder):
    until_s = time.monotonic() + 120
    while not all((folder / str(rank)).exists() for rank in (0, 1)) and time.monotonic() < until_s:
        time.sleep(0.1)


@pytest.mark.long
def test_a_signal_to_one_rank_ends_the_evaluation_of_all(args, tmp_path):
    """After the last step, with everything saved, only the evaluation is left, and it would take
    hours.
    """
    group = ranks.start(
        2, scenes.evaluating_with, endless(tmp_path), args(), folder=tmp_path / "out"
    )
    when_all_play(tmp_path)
    os.kill(group.processes[1].pid, signal.SIGTERM)
    assert group.ended() == [0, 0], group.said(0) + group.said(1)
    (line,) = evaluations(tmp_path / "run")
    assert "the evaluation ended with status -15" in line["error"]


@pytest.mark.long
def test_a_rank_that_is_gone_is_not_waited_for(args, tmp_path):
    options = args("--dist_timeout=10s")
    group = ranks.start(
        2, scenes.evaluating_with, endless(tmp_path), options, folder=tmp_path / "out"
    )
    when_all_play(tmp_path)
    os.kill(group.processes[1].pid, signal.SIGKILL)
    assert group.ended() == [2, -9], group.said(0)
    assert f"rank 1 (process {group.processes[1].pid} on " in group.said(0)
    assert "no sign of life" in group.said(0)
