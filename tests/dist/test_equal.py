"""However many ranks share a step, it is the same step: parameters, records and figures of one
rank.
"""

import json

import pytest
import torch
from safetensors.torch import load_file

from kata.config.changes import flat
from kata.train.metrics.meter import read_metrics
from tests.conftest import TINY_ACT
from tests.data.small_maker import small
from tests.dist import ranks
from tests.train.metrics.test_bad_frames import PACKETS, SMALL, damage
from tests.train.test_every_policy import TINY
from tests.train.test_train import SILENT

SGD = (
    "--optimizer.type=sgd",
    "--optimizer.lr=0.01",
    "--steps=20",
    "--log_freq=10",
    "--dataset.eval_split=0.25",
)
VQBET = TINY["vqbet"]
PLAIN = (*SGD, "--policy.dropout=0")


@pytest.fixture
def trained(vector_dataset, tmp_path):
    """Train on so many ranks with options, and return the run's folder."""

    vectors = (f"--dataset.root={vector_dataset}", "--dataset.repo_id=tests/vectors")

    def run(name, size, *options, data=vectors, policy=TINY_ACT):
        folder = tmp_path / name
        group = ranks.train(
            size,
            *data,
            *policy,
            f"--output_dir={folder}",
            *options,
            folder=tmp_path / f"{name}-out",
        )
        assert group.ended() == [0] * size, "\n".join(group.said(rank) for rank in range(size))
        return folder

    return run


def weights(folder):
    return load_file(folder / "checkpoints" / "last" / "pretrained_model" / "model.safetensors")


def close(one, other, atol=1e-6):
    ours, theirs = weights(one), weights(other)
    for name in ours:
        torch.testing.assert_close(
            ours[name], theirs[name], rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )


def record(folder):
    """Every number but times; what is not logged at a step is nothing."""
    lines = [
        line
        for line in read_metrics(folder / "metrics.jsonl")
        if line["kind"] in ("train", "validation")
    ]
    return [
        flat({name: value for name, value in line.items() if name not in (*SILENT, "kind")})
        for line in lines
    ]


def batch(size, accumulation=1):
    return (f"--batch_size={size}", f"--accelerator.gradient_accumulation.steps={accumulation}")


def test_one_two_three_and_four_ranks_make_the_same_run(trained):
    """The windows of five actions reach over the ends of episodes of four frames: every rank has
    other masks.
    """
    one = trained("one", 1, *PLAIN, *batch(12))
    assert "12 per rank" in (one.parent / "one-out" / "rank-0.txt").read_text()
    for name, size, shares in (
        ("two", 2, batch(3, 2)),
        ("three", 3, batch(4)),
        ("four", 4, batch(3)),
    ):
        several = trained(name, size, *PLAIN, *shares)
        close(one, several)
        for ours, theirs in zip(record(one), record(several), strict=True):
            assert theirs == pytest.approx(ours, rel=1e-5, abs=1e-5, nan_ok=True), name
        said = (several.parent / f"{name}-out" / f"rank-{size - 1}.txt").read_text()
        assert not said, "only rank 0 speaks"


@pytest.mark.long
def test_dropout_and_average_too_where_micro_batches_are_equally_large(trained):
    """And the stop of one run and start on another number of ranks is no interruption."""
    options = (*SGD, "--ema.enable=true", "--policy.dropout=0.3")
    one = trained("one", 1, *options, *batch(3, 4))
    close(one, trained("four", 4, *options, *batch(3)))
    part = trained("part", 2, *options, *batch(3, 2), "--steps=8")
    said = (
        trained("part", 1, *options, *batch(3, 2), "--resume=true").parent
        / "part-out"
        / "rank-0.txt"
    )
    assert "4 micro-batches per step instead of 2: 12 samples per step stay" in said.read_text()
    close(one, part)
    assert json.loads((part / "train_config.json").read_text())["global_batch_size"] == 12


def test_a_mixture_is_counted_over_all_ranks(trained, tmp_path):
    """Actions of unequal width, of which each rank sees another share; the losses of each
    dataset are logged too.
    """
    roots = {
        "narrow": small(tmp_path / "narrow"),
        "wide": small(tmp_path / "wide", seed=1, action=4, state=5),
    }
    entries = [
        {"repo_id": f"tests/{name}", "root": str(root), "name": name}
        for name, root in roots.items()
    ]
    mix = (
        f"--dataset.mix={json.dumps(entries)}",
        "--dataset.mix_pad_vectors=true",
        "--policy.dropout=0",
    )
    one, two = (trained(f"mix-{n}", n, *SGD, *mix, *batch(6 // n), data=()) for n in (1, 2))
    close(one, two)
    for ours, theirs in zip(record(one), record(two), strict=True):
        assert theirs == pytest.approx(ours, rel=1e-5, abs=1e-5)
    assert any(name.startswith("loss_by_dataset.") for name in record(two)[0])


def test_what_cannot_be_decoded_is_substituted_alike(trained, tiny_dataset, tmp_path):
    """Each rank finds the substitutes of its part, and lists them in a file of its own."""
    root = damage(tiny_dataset, tmp_path / "damaged", PACKETS)
    data = (f"--dataset.root={root}", "--dataset.repo_id=tests/damaged")
    options = (*PLAIN, SMALL, "--dataset.eval_split=0.34", "--steps=8", "--on_bad_frame=substitute")
    one, two = (trained(f"bad-{n}", n, *options, *batch(4 // n), data=data) for n in (1, 2))
    close(one, two)
    ours = {line["position"]: line for line in read_metrics(one / "bad_frames.jsonl")}
    lists = [two / name for name in ("bad_frames.jsonl", "bad_frames.rank1.jsonl")]
    theirs = {
        line["position"]: line for path in lists if path.exists() for line in read_metrics(path)
    }
    assert theirs == ours
    assert ours


def test_codebooks_and_phases_are_those_of_one_rank(trained, tiny_dataset):
    """VQ-BeT moves its codes by sums over the whole step, and trains other parameters from the
    third step on.
    """
    data = (f"--dataset.root={tiny_dataset}", "--dataset.repo_id=tests/tiny")
    options = (
        "--policy.type=vqbet",
        *VQBET,
        *SGD,
        "--steps=4",
        "--policy.device=cpu",
        "--policy.push_to_hub=false",
    )
    one, two = (
        trained(f"vqbet-{n}", n, *options, *batch(4 // n), data=data, policy=()) for n in (1, 2)
    )
    close(one, two, atol=1e-5)
