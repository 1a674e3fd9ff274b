"""Accelerate's engine trains what kata's own does."""

import pytest

from kata.dist.accelerated import AcceleratedDdp
from kata.run import resolve_run
from tests.conftest import TINY_ACT
from tests.dist import ranks, toy
from tests.dist.test_engine import CASES
from tests.dist.test_equal import PLAIN, batch, close, record, trained

__all__ = ["trained"]  # a fixture

pytest.importorskip("accelerate", reason="Accelerate's engine needs the extra `accelerate`")


@pytest.mark.parametrize("name", ["plain", "accumulated", "gradients elsewhere from some step on", "sent as bf16"])
def test_two_ranks_are_one(name, tmp_path):
    team = ranks.start(2, toy.compare, *CASES[name], AcceleratedDdp, folder=tmp_path)
    assert team.ended() == [0, 0], team.said(0) + team.said(1)


def test_both_engines_make_the_same_run(trained):
    """Ragged windows, micro-batches, averages; each rank has other masks. The table says which engine it is."""
    options = (*PLAIN, "--ema.enable=true", *batch(3, 2))
    native = trained("native", 2, *options)
    other = trained("accelerate", 2, *options, "--engine=accelerate")
    close(native, other)
    for ours, theirs in zip(record(native), record(other), strict=True):
        assert theirs == pytest.approx(ours, rel=1e-5, abs=1e-5, nan_ok=True)
    assert "accelerate" in (other.parent / "accelerate-out" / "rank-0.txt").read_text()


def test_the_launcher_chooses_the_engine():
    args = ["--dataset.repo_id=x/y", *TINY_ACT]
    launched = {"ACCELERATE_MIXED_PRECISION": "no"}
    assert resolve_run(args, 2, {})[0].engine == "native"
    assert resolve_run(args, 2, launched)[0].engine == "accelerate"
    assert resolve_run([*args, "--engine=native"], 2, launched)[0].engine == "native"
