"""A run goes on among other ranks, whatever its checkpoints hold the state as, and ends as one
that was not stopped.
"""

import pytest
import torch
from safetensors.torch import load_file

from kata.cli import main
from kata.run import resolve_run
from kata.train import train
from tests.conftest import TINY_ACT
from tests.dist import ranks

SGD = (
    "--optimizer.type=sgd",
    "--optimizer.lr=0.01",
    "--optimizer.momentum=0.9",
    "--policy.dropout=0",
    "--log_freq=1",
)
SEGMENTS = (  # ranks, ranks per copy, what checkpoints hold, the step up to which they train
    (4, 2, "dcp", 2),
    (2, -1, "both", 3),
    (1, 1, "safetensors", 4),
    (3, -1, "dcp", 5),
    (2, 1, "auto", 6),
)
FILES = ("pretrained_model/model", "pretrained_model_ema/model", "training_state/optimizer_state")


@pytest.mark.long
def test_four_two_one_three_and_two_ranks_make_one_run(vector_dataset, tmp_path):
    data = [
        f"--dataset.root={vector_dataset}",
        "--dataset.repo_id=tests/vectors",
        "--ema.enable=true",
    ]
    args = [*data, *TINY_ACT, *SGD, f"--output_dir={tmp_path}/run"]
    home = tmp_path / "run" / "checkpoints"
    for size, shards, stored_as, steps in SEGMENTS:
        more = [
            f"--steps={steps}",
            f"--parallelism.dp_shard={shards}",
            f"--checkpoint_format={stored_as}",
        ]
        first = steps == SEGMENTS[0][-1]
        own = [a for a in args if first or not a.startswith("--batch_size")]
        more += ["--batch_size=3"] if first else ["--resume=true"]
        group = ranks.train(size, *own, *more, folder=tmp_path / f"out-{size}")
        assert group.ended(600) == [0] * size, "".join(group.said(rank) for rank in range(size))
        held = home / f"{steps:06d}"
        assert (held / "sharded_state").is_dir() == (stored_as in ("dcp", "both"))
        assert (held / "pretrained_model/model.safetensors").is_file() == (stored_as != "dcp")
    straight = train(
        resolve_run([*args, "--batch_size=12", "--steps=6", f"--output_dir={tmp_path}/straight"])[0]
    )
    close(home / "000006", straight.folder / "checkpoints/last")
    assert (
        main(
            [
                "checkpoint",
                "convert",
                str(home / "000005"),
                "--to=safetensors",
                f"--out={tmp_path}/five",
            ]
        )
        == 0
    )
    again = train(
        resolve_run([*args, "--batch_size=12", "--steps=5", f"--output_dir={tmp_path}/again"])[0]
    )
    close(tmp_path / "five", again.folder / "checkpoints/last")


def close(ours, theirs):
    for name in FILES:
        mine, other = (load_file(folder / f"{name}.safetensors") for folder in (ours, theirs))
        assert mine.keys() == other.keys()
        for key, tensor in mine.items():
            torch.testing.assert_close(
                tensor, other[key], rtol=0, atol=1e-6, msg=lambda m, n=key: f"{n}: {m}"
            )
