"""A step's samples shared out among ranks, from what the user states."""

import json

import pytest

from kata.errors import ConfigError
from kata.files import write_json
from kata.run import resolve_run

BASE = ["--policy.type=act", "--dataset.repo_id=x/y"]
ACCUMULATED = "--accelerator.gradient_accumulation.steps"


def resolved(*args, ranks=1):
    run, notes = resolve_run([*BASE, *args], ranks)
    return (run.batch_size, run.ranks, run.accumulation, run.effective_batch), notes


def test_either_size_of_the_batch_gives_the_other():
    assert resolved(ranks=4)[0] == (8, 4, 1, 32)
    assert resolved("--batch_size=2", f"{ACCUMULATED}=3", ranks=4)[0] == (2, 4, 3, 24)
    assert resolved("--global_batch_size=64", ranks=4)[0] == (16, 4, 1, 64)
    assert resolved("--global_batch_size=64", f"{ACCUMULATED}=2", ranks=4)[0] == (8, 4, 2, 64)


def test_a_flag_wins_over_a_file_that_has_both(tmp_path):
    file = tmp_path / "run.json"
    file.write_text(json.dumps({"batch_size": 4, "global_batch_size": 8}))
    config = f"--config={file}"
    assert resolved(config, ranks=2)[0] == (4, 2, 1, 8)
    assert resolved(config, ranks=1)[0] == (4, 1, 2, 8), "what goes through the model at once stays"
    assert resolved(config, "--batch_size=16", ranks=2)[0] == (16, 2, 1, 32)
    assert resolved(config, "--global_batch_size=16", ranks=2)[0] == (8, 2, 1, 16)
    assert resolved(config, f"{ACCUMULATED}=3", ranks=2)[0] == (4, 2, 3, 24)


@pytest.fixture
def recorded(tmp_path):
    """A run of eight samples per step on two ranks, recorded; returns how it is resumed."""
    from kata.config import encode

    args = [*BASE, f"--output_dir={tmp_path}", "--batch_size=4"]
    run, _ = resolve_run(args, 2)
    write_json(tmp_path / "train_config.json", encode(run))
    return lambda *more, ranks: resolved(
        f"--output_dir={tmp_path}", "--resume=true", *more, ranks=ranks
    )


def test_a_resumed_run_keeps_its_global_batch(recorded):
    assert recorded(ranks=2) == ((4, 2, 1, 8), [])
    assert recorded("--batch_size=4", ranks=1)[0] == (4, 1, 2, 8)
    assert recorded(ranks=8)[0] == (1, 8, 1, 8)
    assert "other dropout masks" in recorded(ranks=8)[1][0]
    assert recorded(f"{ACCUMULATED}=4", ranks=1)[0] == (2, 1, 4, 8)
    with pytest.raises(ConfigError, match="global_batch_size was 8 and is now 16"):
        recorded("--global_batch_size=16", ranks=2)
    with pytest.raises(ConfigError, match="global_batch_size=8 on 3 ranks"):
        recorded(ranks=3)


def test_a_batch_that_cannot_be_shared_out_is_refused_with_the_nearest_that_can():
    with pytest.raises(ConfigError) as caught:
        resolved("--global_batch_size=10", ranks=4)
    assert caught.value.what == "global_batch_size=10 on 4 ranks x 1 accumulated"
    assert caught.value.remedy == "--global_batch_size=8 or --global_batch_size=12; or 2 or 5 ranks"
    with pytest.raises(ConfigError, match="batch_size=4 and global_batch_size=8"):
        resolved("--batch_size=4", "--global_batch_size=8", ranks=2)


def test_the_learning_rate_is_scaled_on_request_alone():
    def scale(*args, ranks):
        run, _ = resolve_run([*BASE, *args], ranks)
        return run.lr_scale, run.optimizer.lr

    base = scale(ranks=1)[1]
    assert scale(ranks=4) == (1.0, base)
    assert scale("--scale_lr=linear", ranks=4) == (4.0, base)
    assert scale("--scale_lr=sqrt", ranks=4) == (2.0, base)
    assert scale("--scale_lr=linear", "--global_batch_size=64", "--scale_lr_by=8", ranks=2) == (
        8.0,
        base,
    )
    for args, named in (
        (
            ("--scale_lr=linear", "--global_batch_size=64"),
            "scale_lr=linear with global_batch_size=64",
        ),
        (("--scale_lr=liner",), "scale_lr=liner"),
        (("--scale_lr_by=2",), "scale_lr_by=2"),
        (("--ddp.compression=fp8",), "ddp.compression=fp8"),
        (("--ddp.bucket_mb=0",), "ddp.bucket_mb=0"),
        (("--dist_timeout=soon",), "soon"),
    ):
        with pytest.raises(ConfigError) as caught:
            scale(*args, ranks=2)
        assert named in caught.value.what


def test_a_scaled_rate_stays_where_it_is_on_another_number_of_ranks(tmp_path):
    from kata.config import encode

    args = [*BASE, f"--output_dir={tmp_path}", "--scale_lr=linear", "--resume=true"]
    run, _ = resolve_run(args, 2)
    write_json(tmp_path / "train_config.json", encode(run))
    again, _ = resolve_run(args, 4)
    assert (run.lr_scale, again.lr_scale) == (2.0, 2.0)
