"""Copies and ranks per copy: derived where left open, refused where they do not multiply to the
ranks.
"""

import pytest

from kata.errors import ConfigError
from kata.run import resolve_run
from kata.run.parallel import ParallelismConfig

BASE = ("--dataset.repo_id=a/b", "--policy.type=act", "--policy.push_to_hub=false")


@pytest.mark.parametrize(
    ("copies", "shards", "ranks", "mesh"),
    [
        (None, 1, 4, (4, 1)),
        (1, 1, 4, (4, 1)),  # what LeRobot writes for DDP
        (4, 1, 4, (4, 1)),
        (None, -1, 4, (1, 4)),
        (-1, None, 1, (1, 1)),
        (None, 2, 8, (4, 2)),
        (2, -1, 8, (2, 4)),
        (2, 4, 8, (2, 4)),
    ],
)
def test_what_is_left_open_is_what_the_ranks_leave(copies, shards, ranks, mesh):
    assert ParallelismConfig(dp_replicate=copies, dp_shard=shards).mesh(ranks) == mesh


@pytest.mark.parametrize(
    ("flags", "ranks", "said"),
    [
        (
            ("dp_shard=4",),
            6,
            "dp_shard=3 --parallelism.dp_replicate=2 or --parallelism.dp_shard=6",
        ),
        (("dp_shard=2", "dp_replicate=2"), 6, "or 4 or 8 ranks"),
        (
            ("dp_replicate=3",),
            2,
            "--parallelism.dp_replicate=2 --parallelism.dp_shard=1; or 3 ranks",
        ),
        (("dp_shard=2",), 1, "--parallelism.dp_shard=1 --parallelism.dp_replicate=1; or 2 ranks"),
        (("dp_replicate=3", "dp_shard=-1"), 4, "dp_replicate=2 --parallelism.dp_shard=2"),
        (("dp_shard=0",), 4, "-1"),
    ],
)
def test_what_does_not_multiply_to_the_ranks_is_refused_with_the_nearest_that_does(
    flags, ranks, said
):
    with pytest.raises(ConfigError) as caught:
        resolve_run([*BASE, *(f"--parallelism.{flag}" for flag in flags)], ranks)
    assert flags[0] in caught.value.what
    assert said in caught.value.remedy


def test_shards_alone_are_what_is_kept_where_weights_are_in_shards():
    assert resolve_run(BASE, 4)[0].stored_as == "safetensors"
    assert resolve_run([*BASE, "--parallelism.dp_shard=-1"], 4)[0].stored_as == "both"
    assert resolve_run([*BASE, "--checkpoint_format=dcp"], 1)[0].stored_as == "dcp"


@pytest.mark.parametrize(
    "flags",
    [
        ("--parallelism.dp_shard=2", "--ddp.compression=bf16"),
        ("--checkpoint_format=pickle",),
        ("--checkpoint_format=dcp", "--policy.push_to_hub=true", "--policy.repo_id=a/b"),
    ],
)
def test_options_without_effect_are_refused(flags):
    with pytest.raises(ConfigError) as caught:
        resolve_run([*BASE, *flags], 2)
    assert caught.value.remedy
