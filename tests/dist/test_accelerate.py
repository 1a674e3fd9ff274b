"""Accelerate's engine trains what kata's own does."""

import sys
from dataclasses import replace

import pytest
import torch

from kata.dist import deepspeed
from kata.dist.process_group import ProcessGroup
from kata.errors import ConfigError
from kata.run import resolve_run
from tests.conftest import TINY_ACT
from tests.dist import ranks
from tests.dist.test_equal import PLAIN, batch, close, record, trained
from tests.dist.toy import Case, compare

__all__ = ["trained"]  # a fixture


CASES = {
    "DDP": (2, Case(), Case(accumulation=2), Case(changes=True, accumulation=2), Case(bf16=True)),
    "FSDP2": (
        2,
        Case(shards=2),
        Case(shards=2, accumulation=2),
        Case(shards=2, changes=True, adam=True),
    ),
    "HSDP": (4, Case(shards=2, accumulation=2)),
}


@pytest.mark.parametrize("name", CASES)
def test_several_ranks_are_one(name, tmp_path):
    size, *cases = CASES[name]
    group = ranks.start(
        size, compare, *(replace(case, accelerated=True) for case in cases), folder=tmp_path
    )
    assert group.ended() == [0] * size, group.said(0) + group.said(1)


def test_both_engines_make_the_same_run(trained):
    """Ragged windows, micro-batches, averages; each rank has other masks. The table says which
    engine it is.
    """
    options = (*PLAIN, "--ema.enable=true", *batch(3, 2))
    native = trained("native", 2, *options)
    for name, shards in (
        ("DDP", ()),
        ("FSDP", ("--parallelism.dp_shard=-1", "--checkpoint_format=safetensors")),
    ):
        other = trained(name, 2, *options, "--engine=accelerate", *shards)
        close(native, other)
        for ours, theirs in zip(record(native), record(other), strict=True):
            assert theirs == pytest.approx(ours, rel=1e-5, abs=1e-5, nan_ok=True)
        assert "accelerate" in (other.parent / f"{name}-out" / "rank-0.txt").read_text()


def test_the_launcher_chooses_the_engine():
    args = ["--dataset.repo_id=x/y", *TINY_ACT]
    launched = {"ACCELERATE_MIXED_PRECISION": "no"}
    assert resolve_run(args, 2, {})[0].engine == "native"
    assert resolve_run(args, 2, launched)[0].engine == "accelerate"
    assert resolve_run([*args, "--engine=native"], 2, launched)[0].engine == "native"


def test_deepspeed_that_is_not_installed_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "deepspeed", None)
    monkeypatch.setattr(deepspeed, "tell_environment", lambda world: None)
    with pytest.raises(ConfigError, match=r"install kata\[deepspeed\]"):
        deepspeed.Zero(
            ProcessGroup(), torch.device("cpu"), accumulation=1, max_norm=0.0, settings={"stage": 1}
        )
