"""`kata bench scale` measures what more ranks bring and cost, and lays out ranks that are not
there.
"""

import json
import os

import pytest

from kata.bench.scale.command import ROBOT
from kata.bench.scale.layouts import lay_out
from kata.bench.scale.scale_spawn import run_ranks
from kata.bench.scale.show import layouts_text, measured_text
from kata.bench.scale.verdict import bound_by, summarise_ranks
from kata.cli import BENCH
from kata.config.verb import read_options
from kata.errors import ConfigError
from tests.conftest import TINY_ACT
from tests.dist import ranks, scenes

SEEN = {"observation.state": 3, "observation.environment_state": 2}
FEATURES = (
    "--policy.input_features="
    + json.dumps(
        {
            k: {
                "type": "STATE" if "." not in k[12:] and k.endswith(".state") else "ENV",
                "shape": [n],
            }
            for k, n in SEEN.items()
        }
    ),
    '--policy.output_features={"action": {"type": "ACTION", "shape": [2]}}',
    "--dataset.repo_id=x",
)


def measured(size, *, step, wait=0.0, apart=1.0, together=None, send=0.2, cpu=1.0, batch=8):
    """What rank 0 tells of steps that all take the same on each rank, but that the last rank is
    a tenth slower.
    """
    each = {"step_s": step, "wait_s": wait, "cpu_s": cpu, "apart_s": apart, "apart_cpu_s": cpu}
    if size > 1:
        each |= {
            "after_s": together + 0.1,
            "together_s": together,
            "together_cpu_s": 1.2 * cpu,
            "send_s": send,
            "send_cpu_s": 0.1,
        }
    slow = [1.0] * (size - 1) + [1.1]
    steps = {name: [[value * by] * 3 for by in slow] for name, value in each.items()}
    return {"ranks": size, "batch_size": batch, "steps": steps, "other_cores": 0.5}


def test_what_more_ranks_bring_and_what_a_step_costs():
    one, two = measured(1, step=1.0), measured(2, step=1.5, apart=1.2, together=1.3)
    found = summarise_ranks({1: [one, one], 2: [two, two]})
    assert found[1]["efficiency"] == 1.0
    assert found[2]["samples_s"] == pytest.approx(16 / 1.65)
    assert found[2]["efficiency"] == pytest.approx(1 / 1.5)
    assert found[2]["cpu_s"] == pytest.approx(2.1), "of both ranks"
    assert found[2]["exposed_s"] == pytest.approx(0.11)
    assert found[2]["hidden"] == pytest.approx(0.5)
    assert found[2]["cost"] == pytest.approx(0.3)
    assert found[2]["cost_communication"] + found[2]["cost_shared_machine"] == pytest.approx(
        found[2]["cost"]
    )
    said = measured_text(found)
    assert (
        "an update of 2 ranks takes +30% over one rank's with the same threads: +10% "
        "communication, +20% from" in said
    )
    assert "2 ranks: bound by compute" in said


def test_a_stated_global_batch_has_no_cost_over_one_rank():
    whole, half = measured(1, step=1.0), measured(2, step=0.6, apart=0.5, together=0.6, batch=4)
    found = summarise_ranks({1: [whole], 2: [half]})
    assert found[2]["efficiency"] == pytest.approx(1 / 1.2)
    assert "cost" not in found[2]


@pytest.mark.parametrize(
    ("wait_s", "exposed_s", "named"),
    [(0.2, 0.5, "data"), (0.05, 0.2, "communication"), (0.05, 0.05, "compute")],
)
def test_what_binds(wait_s, exposed_s, named):
    assert (
        bound_by({"step_s": 1.0, "wait_s": wait_s, "together_s": 1.0, "exposed_s": exposed_s})
        == named
    )


def test_two_ranks_tell_each_step_of_both(vector_dataset, tmp_path):
    args = [
        f"--dataset.root={vector_dataset}",
        "--dataset.repo_id=tests/vectors",
        *TINY_ACT,
        "--steps=100",
    ]
    group = ranks.start(
        2, scenes.measure_scaling, {"args": args, "steps": 2, "warmup": 1}, folder=tmp_path
    )
    assert group.ended() == [0, 0], group.said(0) + group.said(1)
    told = json.loads(group.said(0).strip().splitlines()[-1])
    assert (told["ranks"], told["batch_size"]) == (2, 4)
    assert {len(steps) for each in told["steps"].values() for steps in each} == {2}
    assert {len(each) for each in told["steps"].values()} == {2}
    assert {"step_s", "wait_s", "cpu_s", "together_s", "after_s", "apart_cpu_s", "send_s"} <= told[
        "steps"
    ].keys()


def test_the_pieces_on_many_ranks_make_the_whole():
    ddp, fsdp, hsdp = lay_out(16, [[*TINY_ACT, *FEATURES]])
    assert [each["layout"] for each in (ddp, fsdp, hsdp)] == ["DDP", "FSDP2", "HSDP 2 x 8"]
    assert ddp["weights_bytes"] == ddp["gradients_bytes"]
    assert ddp["moments_bytes"] == pytest.approx(2 * ddp["weights_bytes"], rel=0.05), (
        "AdamW, and its counts of steps"
    )
    for part in ("weights", "gradients"):
        name = f"{part}_bytes"
        assert ddp[name] / 16 <= fsdp[name] < hsdp[name] < ddp[name]
    assert ddp["sent_bytes"] == 2 * 15 * ddp["gradients_bytes"] // 16
    assert "HSDP 2 x 8" in layouts_text(16, [ddp, fsdp, hsdp])


def test_clip_is_laid_out_at_full_size_without_a_network(monkeypatch):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    ddp, fsdp, hsdp = lay_out(16, [[*ROBOT, "--policy.type=multi_task_dit"]])
    frozen = 63_165_952 + 2 * 768  # CLIP's text half, and a norm that nothing reads
    assert ddp["weights_bytes"] - ddp["gradients_bytes"] == 4 * frozen
    assert ddp["gradients_bytes"] == pytest.approx(601.5 * 2**20, rel=1e-4)
    assert (
        ddp["weights_bytes"] / 16
        <= fsdp["weights_bytes"]
        < hsdp["weights_bytes"]
        < ddp["weights_bytes"]
    )


def test_a_policy_that_cannot_be_built_is_named():
    (found,) = lay_out(4, [["--policy.type=act", "--dataset.repo_id=x"]])
    assert found["policy"] == "act"
    assert found["error"] in layouts_text(4, [found])


def test_what_ends_badly_or_never_is_ended_with_its_last_words(tmp_path, monkeypatch):
    (tmp_path / "sleeps.py").write_text("import time\ntime.sleep(60)\n")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path), prepend=os.pathsep)
    with pytest.raises(ConfigError, match=r"rank \d of 2: .*no_such_module"):
        run_ranks("kata.no_such_module", {}, 2, 1, 60.0)
    with pytest.raises(ConfigError, match=r"rank 0 of 2: did not end within 0.5 s"):
        run_ranks("sleeps", {}, 2, 1, 0.5)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["--ranks=2,1"], "rising"),
        (["--ranks=two"], "whole numbers"),
        (["--steps=0"], "at least 1"),
        (["--rank=2"], "did you mean|ranks"),
    ],
)
def test_bad_options_are_refused(args, said):
    with pytest.raises(ConfigError, match=said):
        read_options(BENCH.verbs["scale"], args, "kata bench scale")


def test_ranks_may_be_a_list_without_brackets():
    scale = BENCH.verbs["scale"]
    assert read_options(scale, ["--ranks=1,2,4"], "kata bench scale").ranks == [1, 2, 4]
    assert read_options(scale, ["--ranks="], "kata bench scale").ranks == []
