"""DeepSpeed trains what one rank does, and what it saves is whole."""

import pytest

from kata.cli import main
from tests.conftest import TINY_ACT
from tests.dist import ranks, scenes
from tests.dist.test_equal import batch, close, record

pytestmark = pytest.mark.long
pytest.importorskip("deepspeed", reason="ZeRO needs the extra `deepspeed`")

OPTIONS = (
    "--optimizer.type=sgd",
    "--optimizer.lr=0.01",
    "--optimizer.momentum=0.9",
    "--policy.dropout=0",
)


def test_each_stage_makes_the_run_of_one_rank(vector_dataset, tmp_path):
    """Validated, saved, and continued by others: a stage goes on from what another one or one
    rank has left.
    """

    def args(name, size, *more):
        data = [
            f"--dataset.root={vector_dataset}",
            "--dataset.repo_id=tests/vectors",
            "--dataset.eval_split=0.25",
        ]
        own = [
            f"--output_dir={tmp_path / name}",
            "--engine=accelerate" if size > 1 else "--engine=native",
        ]
        return [
            *data,
            *TINY_ACT,
            *OPTIONS,
            *own,
            *batch(6 // size, 2),
            "--steps=8",
            "--save_freq=4",
            *more,
        ]

    def stage(number):
        return f"--deepspeed.zero_stage={number}"

    assert main(["train", *args("whole", 1)]) == 0
    assert main(["train", *args("handed", 1, "--steps=4")]) == 0
    runs = [args(f"zero{number}", 2, stage(number)) for number in (1, 2, 3)]
    runs += [args("back", 2, stage(2), "--steps=4"), args("handed", 2, stage(3), "--resume=true")]
    group = ranks.start(2, scenes.train_runs_with_deepspeed, *runs, folder=tmp_path / "out")
    assert group.ended(900) == [0, 0], group.said(0) + group.said(1)
    assert "DeepSpeed ZeRO 3" in group.said(0)
    assert main(["train", *args("back", 1, "--resume=true")]) == 0
    for name in ("zero1", "zero2", "zero3", "handed", "back"):
        close(tmp_path / "whole", tmp_path / name)
    for ours, theirs in zip(record(tmp_path / "whole"), record(tmp_path / "zero3"), strict=True):
        assert theirs == pytest.approx(ours, rel=1e-4, abs=1e-5, nan_ok=True)


@pytest.mark.parametrize("stage", [1, 2, 3])
def test_a_full_memory_of_one_rank_ends_all_with_the_options_that_need_less(
    stage, vector_dataset, tmp_path
):
    args = [
        f"--dataset.root={vector_dataset}",
        "--dataset.repo_id=tests/vectors",
        *TINY_ACT,
        *OPTIONS,
        f"--output_dir={tmp_path / 'run'}",
        "--engine=accelerate",
        *batch(4),
        "--steps=6",
        f"--deepspeed.zero_stage={stage}",
    ]
    group = ranks.start(
        2, scenes.train_with_deepspeed_and_full_memory, 1, 1, args, folder=tmp_path / "out"
    )
    assert group.ended() == [2, 2], group.said(0) + group.said(1)
    assert "cpu is out of memory" in group.said(1)
    assert "--batch_size=2 --accelerator.gradient_accumulation.steps=2" in group.said(1)
    assert "rank 1 (process" in group.said(0)
