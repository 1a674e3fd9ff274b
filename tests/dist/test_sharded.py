"""Weights in shards: every policy trains, is judged, saved and continued as on one rank."""

import pytest
import torch
from safetensors.torch import load_file

from kata.config.changes import flat
from kata.run import resolve_run
from kata.train import train
from kata.train.metrics.meter import read_metrics
from tests.conftest import TINY_ACT
from tests.dist import ranks, scenes
from tests.train.test_every_policy import TINY
from tests.train.test_train import SILENT

SGD = (
    "--optimizer.type=sgd",
    "--optimizer.lr=0.01",
    "--optimizer.momentum=0.9",
    "--steps=4",
    "--log_freq=1",
)
OTHER = (
    "--dataset.eval_split=0.3",
    "--eval_steps=2",
    "--save_freq=2",
    "--num_workers=1",
    "--prefetch_factor=1",
)
SHARDS = "--parallelism.dp_shard=-1"
POLICIES = {
    "act": TINY_ACT,
    **{name: (f"--policy.type={name}", *own) for name, own in TINY.items()},
}
MICRO = "--accelerator.gradient_accumulation.steps"


@pytest.fixture
def args(tiny_dataset, tiny_clip, tmp_path):
    """Options of a run of a policy; micro-batches of two samples, four a step, however many
    ranks share them.
    """

    def make(name, folder, size, *options):
        own = [option.replace("{clip}", str(tiny_clip)) for option in POLICIES[name]]
        data = ["--dataset.repo_id=tests/tiny", f"--dataset.root={tiny_dataset}"]
        rest = [
            "--policy.device=cpu",
            "--policy.push_to_hub=false",
            f"--output_dir={tmp_path}/{name}-{folder}",
        ]
        return [
            *own,
            *data,
            *rest,
            *SGD,
            *OTHER,
            "--batch_size=2",
            f"{MICRO}={2 // size}",
            "--ema.enable=true",
            *options,
        ]

    return make


def record(folder):
    """Every figure but times."""
    lines = [
        line
        for line in read_metrics(folder / "metrics.jsonl")
        if line["kind"] in ("train", "validation")
    ]
    return [
        flat({name: value for name, value in line.items() if name not in (*SILENT, "kind")})
        for line in lines
    ]


def close(ours, theirs, atol):
    for part in ("pretrained_model", "pretrained_model_ema"):
        mine, other = (
            load_file(run / "checkpoints/last" / part / "model.safetensors")
            for run in (ours, theirs)
        )
        assert mine.keys() == other.keys()
        for name, tensor in mine.items():
            torch.testing.assert_close(
                tensor,
                other[name],
                rtol=0,
                atol=atol,
                msg=lambda m, n=f"{part} {name}": f"{n}: {m}",
            )


@pytest.mark.long
@pytest.mark.parametrize(("precision", "atol"), [("no", 1e-6), ("bf16", 1e-3)])
def test_every_policy_in_two_shards_is_that_of_one_rank(precision, atol, args, tmp_path):
    """Its average, moments, validation and report too."""
    asked = f"--accelerator.mixed_precision={precision}"
    runs = (args(name, "shards", 2, SHARDS, asked) for name in POLICIES)
    group = ranks.start(2, scenes.train_runs, *runs, folder=tmp_path / "out")
    ended = group.ended(1200)
    assert ended == [0, 0], group.said(0) + group.said(1)
    assert "1 copy in 2 shards each (FSDP)" in group.said(0)
    for name in POLICIES:
        whole = train(resolve_run(args(name, "whole", 1, asked))[0]).folder
        close(
            tmp_path / f"{name}-shards",
            whole,
            10 * atol if name in ("vqbet", "diffusion") else atol,
        )
        for ours, theirs in zip(record(tmp_path / f"{name}-shards"), record(whole), strict=True):
            assert ours == pytest.approx(theirs, rel=100 * atol, abs=10 * atol, nan_ok=True), name
        assert (tmp_path / f"{name}-shards" / "report.html").is_file()
