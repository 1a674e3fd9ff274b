"""When something happens to one rank, all of them end, soon, and say what it was."""

import json
import socket
import time

import pytest
import torch
from safetensors.torch import load_file

from kata.train.stopping import STOPPED
from tests.conftest import TINY_ACT
from tests.dist import ranks, scenes
from tests.dist.test_equal import PLAIN, batch
from tests.train.test_train import equal

LONG = (
    "--steps=100000",
    "--log_freq=1",
    "--policy.dropout=0",
    "--optimizer.type=sgd",
    "--optimizer.lr=0.01",
)


@pytest.fixture
def args(vector_dataset, tmp_path):
    """Options of a run on two ranks; the last of two equal flags counts."""

    def make(*options, name="run"):
        data = [f"--dataset.root={vector_dataset}", "--dataset.repo_id=tests/vectors"]
        return [*data, *TINY_ACT, f"--output_dir={tmp_path / name}", *batch(4), *options]

    return make


def test_a_signal_to_one_rank_stops_all_at_one_step_with_a_checkpoint(args, tmp_path):
    group = ranks.start(
        2, scenes.train_until, 5, "SIGUSR1", 1, args(*LONG), folder=tmp_path / "out"
    )
    assert group.ended() == [STOPPED] * 2, group.said(0) + group.said(1)
    assert "SIGUSR1 on rank 1" in group.said(0)
    last = tmp_path / "run" / "checkpoints" / "last"
    step = json.loads((last / "training_state" / "training_step.json").read_text())["step"]
    assert step in (6, 7)
    whole = ranks.train(
        2, *args(*LONG, f"--steps={step}", name="whole"), folder=tmp_path / "whole-out"
    )
    assert whole.ended() == [0, 0]
    ours, theirs = (
        load_file(tmp_path / n / "checkpoints/last/pretrained_model/model.safetensors")
        for n in ("run", "whole")
    )
    assert equal(ours, theirs)


def test_a_killed_rank_is_named_by_the_others(args, tmp_path):
    began_s = time.monotonic()
    group = ranks.start(
        3, scenes.train_until, 3, "SIGKILL", 1, args(*LONG), folder=tmp_path / "out"
    )
    assert group.ended() == [2, -9, 2], group.said(0) + group.said(2)
    assert time.monotonic() - began_s < 60
    for rank in (0, 2):
        assert f"rank 1 (process {group.processes[1].pid} on " in group.said(rank)
        assert "no sign of life" in group.said(rank)


def test_rank_0_killed_is_named_too(args, tmp_path):
    group = ranks.start(
        2, scenes.train_until, 3, "SIGKILL", 0, args(*LONG), folder=tmp_path / "out"
    )
    assert group.ended() == [-9, 2], group.said(1)
    assert "rank 0 (process" in group.said(1)


def test_an_error_on_one_rank_reaches_all_in_its_words(args, tmp_path):
    group = ranks.start(2, scenes.train_until, 3, "raise", 1, args(*LONG), folder=tmp_path / "out")
    assert group.ended() == [2, 70], group.said(0) + group.said(1)
    assert "the third wheel is loose" in group.said(0)
    assert "rank 1 (process" in group.said(0)
    assert "Traceback" in group.said(1)


SGD = ("--policy.dropout=0", "--optimizer.type=sgd", "--optimizer.lr=0.01", "--log_freq=1")


def test_one_full_memory_halves_the_micro_batches_of_all_ranks(args, tmp_path):
    for name, step in (("plain", 0), ("crowded", 2)):
        options = args(*SGD, "--steps=4", name=name)
        group = ranks.start(
            2, scenes.train_with_full_memory, step, 1, options, folder=tmp_path / f"{name}-out"
        )
        assert group.ended() == [0, 0], group.said(0) + group.said(1)
    plain, crowded = (
        load_file(tmp_path / name / "checkpoints/last/pretrained_model/model.safetensors")
        for name in ("plain", "crowded")
    )
    for name, weight in plain.items():
        torch.testing.assert_close(crowded[name], weight, rtol=1e-4, atol=1e-6)
    log = (tmp_path / "crowded/log.txt").read_text()
    assert "memory was full at step 2: micro-batches of 2 samples" in log


@pytest.mark.parametrize(
    ("step", "layout"),
    [
        pytest.param(4, (), id="after the guarded steps of DDP"),
        # The other rank waits for a unit's weights in its backward pass, which never come.
        pytest.param(1, ("--parallelism.dp_shard=-1",), id="in shards"),
    ],
)
def test_a_full_memory_that_ranks_cannot_agree_on_ends_all(step, layout, args, tmp_path):
    options = args(*SGD, *layout, "--steps=6")
    group = ranks.start(2, scenes.train_with_full_memory, step, 1, options, folder=tmp_path / "out")
    assert group.ended() == [2, 2], group.said(0) + group.said(1)
    assert "cpu is out of memory" in group.said(1)
    assert "--batch_size=2 --accelerator.gradient_accumulation.steps=2" in group.said(1)
    assert "rank 1 (process" in group.said(0)


def test_a_rank_without_the_dataset_is_named(args, tmp_path):
    other = args(f"--dataset.root={tmp_path}/nowhere")
    group = ranks.train(2, *args(), folder=tmp_path / "out", each={1: other})
    assert group.ended() == [2, 2]
    assert "rank 1 (process" in group.said(0)
    assert "nowhere" in group.said(0)
    assert not (tmp_path / "run").exists()


def test_ranks_that_were_given_other_options_are_refused(args, tmp_path):
    group = ranks.train(2, *args(), folder=tmp_path / "out", each={1: args("--optimizer.lr=2e-3")})
    assert group.ended() == [2, 2]
    assert "ranks disagree: optimizer.lr is 0.001 on rank 0 and 0.002 on rank 1" in group.said(0)
    assert group.said(1) in ("", group.said(0)), "one sentence will do"


def test_ranks_that_see_other_data_are_refused(args, tiny_dataset, tmp_path):
    group = ranks.train(
        2, *args(), folder=tmp_path / "out", each={1: args(f"--dataset.root={tiny_dataset}")}
    )
    assert group.ended() == [2, 2]
    assert "ranks disagree: dataset tests/vectors is" in group.said(0) + group.said(1)


@pytest.mark.long
def test_what_rank_0_does_alone_outlasts_the_time_limit(args, tmp_path):
    """The limit is two seconds, the work takes three times as long: with ten minutes, half an
    hour.
    """
    options = (*PLAIN, "--dist_timeout=2s", "--steps=3")
    group = ranks.start(
        2, scenes.train_with_long_work, 6.0, args(*options), folder=tmp_path / "out"
    )
    assert group.ended() == [0, 0], group.said(0) + group.said(1)


def test_a_port_that_is_taken(args, tmp_path):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        address = {"MASTER_PORT": str(taken.getsockname()[1])}
        group = ranks.start(
            1,
            scenes.with_environment,
            {**address, "WORLD_SIZE": "2"},
            args(),
            folder=tmp_path / "out",
        )
        assert group.ended() == [2]
    assert "the port is taken" in group.said(0)
    assert "--master-port" in group.said(0)
