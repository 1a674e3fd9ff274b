"""Steps that are not finite change nothing, are named with their samples, and stop a run that
has too many.
"""

import json
import math
import shutil

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from kata.cli import main
from kata.dist.engine import Engine
from kata.dist.process_group import ProcessGroup
from kata.dist.skip_step import step_unless
from kata.errors import DivergedError
from kata.optim.build import build_optimizer
from kata.optim.config import AdamConfig, AdamWConfig, SGDConfig
from kata.optim.ema import ema_copy, ema_update
from kata.policies.base import ParamGroup
from kata.run import resolve_run
from kata.train import train
from kata.train.checkpoint.saver import last_finite
from kata.train.input.prepare import prepare
from kata.train.metrics.bad_steps import ENOUGH, BadStepMonitor
from kata.train.metrics.meter import Meter, read_metrics
from kata.update.state import build_state
from tests.conftest import TINY_ACT
from tests.train.test_every_policy import TINY
from tests.train.test_kill import AVERAGED, BF16, FOURTHS, saved
from tests.train.test_train import numbers

RAW = (
    '--policy.normalization_mapping={"STATE": "IDENTITY", "ACTION": "IDENTITY", "ENV": "IDENTITY"}'
)


def poison(dataset, root, key, row, value):
    """A copy of a dataset in which one number of one frame is changed."""
    shutil.copytree(dataset, root)
    path = next(root.glob("data/*/*.parquet"))
    table = pq.read_table(path)
    values = np.array(table[key].to_pylist())
    values[row, 0] = value
    column = pa.array(values.tolist(), type=table.schema.field(key).type)
    pq.write_table(
        table.set_column(table.schema.get_field_index(key), table.schema.field(key), column), path
    )


@pytest.fixture
def poisoned(vector_dataset, tmp_path):
    """A run over such a copy: poisoned('action', row, value, '--steps=3')."""

    def make(key, row, value, *more):
        root = tmp_path / "poisoned"
        if not root.exists():
            poison(vector_dataset, root, key, row, value)
        args = [
            f"--dataset.root={root}",
            "--dataset.repo_id=tests/poisoned",
            *TINY_ACT,
            RAW,
            "--log_freq=3",
        ]
        return resolve_run([*args, f"--output_dir={tmp_path}/run", *more])[0]

    return make


def listed(folder):
    return [json.loads(line) for line in (folder / "bad_steps.jsonl").read_text().splitlines()]


def in_folder(folder, step):
    """The bytes of one checkpoint, without the number of its step."""
    return {
        k: v
        for k, v in saved(folder / f"{step:06d}").items()
        if not k.endswith("training_step.json")
    }


@pytest.mark.parametrize("options", [(), (*FOURTHS, *AVERAGED, *BF16)])
def test_a_step_over_a_frame_that_overflows_changes_nothing(poisoned, options):
    """A state of 1e38 is a finite number in the data, and infinite after the first layer."""
    trained = train(poisoned("observation.state", 6, 1e38, "--steps=8", "--save_freq=1", *options))
    (first, second) = listed(trained.folder)
    assert (first["update"], second["update"]) == ("skipped", "skipped")
    for line in (first, second):  # once an epoch of four steps
        assert line["step"] - first["step"] in (0, second["step"] - first["step"])
        assert [(s["episode"], s["frame"]) for s in line["samples"]].count((1, 2)) == 1
        assert {s["position"] for s in line["samples"]} == set(
            range(4 * line["step"] - 4, 4 * line["step"])
        )
        assert line["samples"][0]["files"]["data"].endswith(".parquet")
    checkpoints = trained.folder / "checkpoints"
    for step in range(2, 9):
        same = in_folder(checkpoints, step) == in_folder(checkpoints, step - 1)
        assert same == (step in (first["step"], second["step"])), step
    notes = [
        line
        for line in read_metrics(trained.folder / "metrics.jsonl")
        if line["kind"] == "bad_step"
    ]
    assert [line["step"] for line in notes] == [first["step"], second["step"]]
    assert "2 steps were skipped" in trained.remarks[0]
    logged = {line["step"]: line["loss"] for line in numbers(trained) if line["kind"] == "train"}
    assert {step for step, loss in logged.items() if not math.isfinite(loss)} == {
        first["step"],
        second["step"],
    }
    losses = np.fromfile(trained.folder / "losses.f32", dtype="<f4")
    assert (np.flatnonzero(~np.isfinite(losses)) + 1).tolist() == [first["step"], second["step"]]


def test_the_statistics_of_batch_norms_stay_too(tiny_dataset, tmp_path):
    poison(tiny_dataset, tmp_path / "poisoned", "observation.state", slice(None), 1e38)
    args = [
        "--policy.type=diffusion",
        *TINY["diffusion"],
        "--policy.use_group_norm=false",
        "--policy.device=cpu",
    ]
    args += [
        f"--dataset.root={tmp_path}/poisoned",
        "--dataset.repo_id=x/y",
        "--policy.push_to_hub=false",
        RAW,
    ]
    args += [
        "--steps=2",
        "--save_freq=1",
        "--batch_size=2",
        "--num_workers=1",
        f"--output_dir={tmp_path}/run",
    ]
    asked = prepare(resolve_run([*args, *AVERAGED])[0]).run
    trained = train(asked)
    assert [line["step"] for line in listed(trained.folder)] == [1, 2]
    fresh = build_state(asked, Engine(ProcessGroup(), torch.device("cpu"))).policy.state_dict()
    assert any(key.endswith("running_mean") for key in fresh)
    for policy in (trained.state.policy, trained.state.ema):
        assert all(torch.equal(policy.state_dict()[key], tensor) for key, tensor in fresh.items())


def test_bad_steps_are_the_same_after_a_resume(poisoned, tmp_path):
    asked = ("observation.state", 6, 1e38, "--steps=8", "--save_freq=1", *AVERAGED)
    straight = train(poisoned(*asked))
    for step in (listed(straight.folder)[0]["step"], 7):
        part = tmp_path / f"from-{step}"
        shutil.copytree(straight.folder, part, symlinks=True)
        for later in range(step + 1, 9):
            shutil.rmtree(part / "checkpoints" / f"{later:06d}")
        resumed = train(poisoned(*asked, f"--output_dir={part}", "--resume=true"))
        assert saved(part) == saved(straight.folder)
        assert numbers(resumed) == numbers(straight)
        for name in ("bad_steps.jsonl", "losses.f32"):
            assert (part / name).read_bytes() == (straight.folder / name).read_bytes()
        assert [text.partition(";")[0] for text in resumed.remarks] == [
            t.partition(";")[0] for t in straight.remarks
        ]


def test_too_many_bad_steps_in_a_row_stop_the_run_and_name_the_last_good_checkpoint(
    vector_run, tmp_path
):
    """At this rate the first update is finite, and the weights that it makes are not."""
    asked = (
        "--save_freq=1",
        "--log_freq=100",
        "--max_bad_steps=3",
        "--optimizer.type=sgd",
        "--optimizer.lr=1e39",
    )
    with pytest.raises(DivergedError, match="3 steps in a row") as stopped:
        train(vector_run("--steps=30", *asked))
    assert [line["step"] for line in listed(tmp_path / "run")] == [2, 3, 4]
    assert "max_bad_steps=3" in stopped.value.rule
    assert "start again" in stopped.value.remedy
    checkpoints = tmp_path / "run" / "checkpoints"
    assert (checkpoints / "000001").is_dir()
    assert last_finite(checkpoints) is None


def test_the_count_in_a_row_goes_on_after_a_resume(vector_run, tmp_path):
    asked = (
        "--save_freq=1",
        "--max_bad_steps=4",
        "--optimizer.type=sgd",
        "--optimizer.lr=1e39",
        "--steps=30",
    )
    with pytest.raises(DivergedError, match="step 5"):
        train(vector_run(*asked))
    shutil.rmtree(tmp_path / "run" / "checkpoints" / "000004")
    with pytest.raises(DivergedError, match="step 5"):
        train(vector_run(*asked, "--resume=true"))
    assert [line["step"] for line in listed(tmp_path / "run")] == [2, 3, 4, 5]


def test_the_last_good_checkpoint_is_the_newest_with_finite_weights(vector_run, tmp_path):
    trained = train(vector_run("--save_freq=2"))
    checkpoints = trained.folder / "checkpoints"
    assert last_finite(checkpoints) == checkpoints / "000006"
    from safetensors.torch import load_file, save_file

    file = checkpoints / "000006" / "pretrained_model" / "model.safetensors"
    tensors = load_file(file)
    name = next(iter(tensors))
    tensors[name].view(-1)[0] = math.inf
    save_file(tensors, file)
    assert last_finite(checkpoints) == checkpoints / "000004"
    (checkpoints / "000004" / "pretrained_model" / "model.safetensors").write_bytes(b"cut")
    assert last_finite(checkpoints) == checkpoints / "000002"
    assert last_finite(tmp_path / "nowhere") is None


def test_a_sudden_jump_of_the_loss_is_reported_and_learnt_from(poisoned):
    """An action of 1000 gives a finite loss and gradient."""
    steps = ENOUGH + 8
    asked = (
        "action",
        6,
        1e3,
        f"--steps={steps}",
        "--policy.chunk_size=1",
        "--policy.n_action_steps=1",
    )
    trained = train(poisoned(*asked))
    found = listed(trained.folder)
    assert found
    assert all(line["update"] == "made" and line["deviations"] > 20 for line in found)
    assert all(line["step"] > ENOUGH for line in found)
    assert "far above" in trained.remarks[0]
    quiet = train(poisoned(*asked, "--loss_spike=0", f"--output_dir={trained.folder}/quiet"))
    assert not (quiet.folder / "bad_steps.jsonl").exists()


@pytest.mark.parametrize("resumed_at", [None, 50, 60, 61, 110])
def test_a_loss_that_is_another_one_is_compared_with_its_own(tmp_path, resumed_at):
    """Sixty steps around 1, then as many around 100 with one at 1000."""

    def spikes(folder, changes_after, parts):
        folder.mkdir()
        with Meter(folder / "metrics.jsonl", batch_size=1, num_frames=1, steps=200) as meter:
            for first, last in parts:
                how = {
                    "max_in_a_row": 3,
                    "spike": 20.0,
                    "first_step": first,
                    "last_good": lambda: None,
                    "changes_after": changes_after,
                }
                with BadStepMonitor(folder, meter, lambda step: [], **how) as watch:
                    for step in range(first + 1, last + 1):
                        loss = (
                            1000.0
                            if step == 115
                            else (1.0 if step <= 60 else 100.0) + step % 3 / 10
                        )
                        watch.add(step, torch.tensor(loss), torch.tensor(1.0))
        return [line["step"] for line in listed(folder)]

    parts = [(0, 120)] if resumed_at is None else [(0, resumed_at), (resumed_at, 120)]
    assert spikes(tmp_path / "told", 60, parts) == [115]
    assert spikes(tmp_path / "untold", 0, parts)[0] == 61


@pytest.mark.parametrize("option", ["--max_bad_steps=0", "--loss_spike=-1"])
def test_limits_that_are_none_are_refused(capsys, vector_dataset, option):
    asked = [f"--dataset.root={vector_dataset}", "--dataset.repo_id=x/y", *TINY_ACT, option]
    assert main(["train", *asked]) == 2
    assert option.removeprefix("--").partition("=")[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    "config",
    [AdamConfig(), AdamWConfig(), SGDConfig(), SGDConfig(momentum=0.9)],
    ids=["adam", "adamw", "sgd", "moment"],
)
@pytest.mark.parametrize("bad_at", [0, 1])
def test_a_skipped_step_is_as_if_it_had_not_been(config, bad_at):
    """Three steps, one of them bad, end where the two good ones alone end; also when the first
    of all is bad.
    """

    def trained(bad):
        weight = torch.nn.Parameter(torch.ones(3))
        average = ema_copy(torch.nn.ParameterList([weight]))
        optimizer = build_optimizer([ParamGroup("all", [weight])], config)
        for step in range(3):
            if bad is None and step == bad_at:
                continue
            weight.grad = torch.full((3,), math.nan if step == bad else 1.0 + step)
            flag = torch.tensor(step == bad)
            step_unless(optimizer, flag)
            ema_update(average, torch.nn.ParameterList([weight]), 0.9, flag)
        return [
            weight.detach(),
            *average.parameters(),
            *optimizer.state_dict()["state"].get(0, {}).values(),
        ]

    without, skipped = trained(None), trained(bad_at)
    assert all(
        torch.equal(a, b)
        for a, b in zip(without, skipped, strict=True)
        if isinstance(a, torch.Tensor)
    )
