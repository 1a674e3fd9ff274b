"""What a run says about its plan, and that it refuses what cannot fit."""

import dataclasses

import pytest
import torch

from kata.errors import ConfigError
from kata.launch.local import _refuse_early_stop
from kata.launch.options import Slurm
from kata.launch.planning import time_limit
from kata.launch.planning.time_limit import check_limit, slurm_seconds, slurm_time
from kata.launch.slurm import with_planned_time
from kata.plan.catalogue import gpu_named
from kata.plan.data_size import DataSize
from kata.plan.forecast import Machine, forecast
from kata.plan.tracing.trace import trace_step
from kata.plan.verdict import compared_text
from kata.run.batch_layout import share_out
from kata.train import train, trainer
from kata.train.plan_check import (
    gpu_of,
    plan_remark,
    plan_rows,
    plan_view,
    refuse_what_cannot_fit,
)
from tests.plan.small import small_run


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """A forecast of a small run on a GPU with plenty of room."""
    run = share_out(small_run(), 1, [], keep_micro=True)
    machine = Machine(gpu=gpu_named("l4"))
    return forecast(run, trace_step(run), DataSize(1000, 3, 30.0, None), machine)


def on_small_gpu(found):
    """The same on a GPU with too little."""
    gpu = dataclasses.replace(found.machine.gpu, memory_bytes=400 * 2**20)
    return dataclasses.replace(found, machine=dataclasses.replace(found.machine, gpu=gpu))


def test_a_run_that_cannot_fit_is_refused_unless_forced(found, monkeypatch, tmp_path):
    monkeypatch.setenv("KATA_CACHE", str(tmp_path))
    monkeypatch.setattr("kata.plan.remedies.step_trace_of", lambda run, device: found.trace)
    full = on_small_gpu(found)
    with pytest.raises(ConfigError, match="does not fit") as refused:
        refuse_what_cannot_fit(full, force=False)
    assert "--force=true" in refused.value.remedy
    refuse_what_cannot_fit(full, force=True)
    refuse_what_cannot_fit(found, force=False)
    refuse_what_cannot_fit(None, force=False)


def test_the_rows_give_verdict_and_time(found):
    rows = dict(plan_rows(found))
    assert rows["plan"].startswith("fits")
    assert "a step, bound by" in rows[""]
    assert plan_rows(None) == []


def test_a_slow_run_says_what_to_look_at(found):
    planned_s = found.time.step_s
    assert "Look at" not in compared_text(found, 1.2 * planned_s)
    slow = compared_text(found, 1.5 * planned_s)
    assert "50% slower. Look at" in slow
    assert "faster" in compared_text(found, 0.5 * planned_s)


def test_the_remark_leaves_out_the_start(found):
    lines = [{"kind": "train", "step_s": s * found.time.step_s} for s in (9.0, 1.1, 1.1)]
    [text] = plan_remark(found, [*lines, {"kind": "saved"}])
    assert "10% slower" in text
    assert plan_remark(found, lines[:1]) == []
    assert plan_remark(None, lines) == []


def test_a_job_that_would_end_too_early_is_refused(found):
    low, _, high = found.wall_clock_s(found.run.steps)
    check_limit(found, low + 1)
    with pytest.raises(ConfigError, match="the run is planned at") as refused:
        check_limit(found, low / 2)
    assert f"--timeout={int(high) + 1}s" in refused.value.remedy


def test_time_limits_of_slurm_are_read_and_written():
    written = {90: "00:02:00", 3600: "01:00:00", 90_000: "1-01:00:00"}
    assert {seconds: slurm_time(seconds) for seconds in written} == written
    read = {"5": 300, "5:30": 330, "1:00:00": 3600, "2-3": 183_600, "1-00:30": 88_200}
    assert {text: slurm_seconds(text) for text in read} == read
    assert slurm_seconds("1-01:00:00") == 90_000


def test_a_slurm_job_gets_its_time_from_the_plan(found, monkeypatch):
    monkeypatch.setattr(time_limit, "launch_forecast", lambda run, machine: found)
    high_s = found.wall_clock_s(found.run.steps)[2]
    planned = with_planned_time(Slurm(gpu="l4"), found.run)
    assert slurm_seconds(planned.time) >= high_s + planned.signal_s
    again = Slurm(gpu="l4", time="1")
    assert with_planned_time(again, found.run) == again  # it goes back into the queue
    with pytest.raises(ConfigError, match="time=") as refused:
        with_planned_time(Slurm(gpu="l4", time="1", requeue=False), found.run)
    assert f"--time={planned.time}" in refused.value.remedy
    with pytest.raises(ConfigError, match="not in the catalogue"):
        with_planned_time(Slurm(gpu="l5"), found.run)
    assert with_planned_time(Slurm(), found.run) == Slurm()


def test_a_local_run_that_would_be_stopped_too_early_is_refused(found, monkeypatch):
    monkeypatch.setattr("kata.launch.planning.subject.gpu_here", lambda: found.machine.gpu)
    monkeypatch.setattr(time_limit, "launch_forecast", lambda run, machine: found)
    _refuse_early_stop(found.run, 1, 1e9)
    with pytest.raises(ConfigError, match="stop_after=") as refused:
        _refuse_early_stop(found.run, 1, 1.0)
    assert "--checkpoint_repo" in refused.value.remedy


def test_a_launch_plans_only_what_is_here(vector_run, monkeypatch, found):
    monkeypatch.setattr(time_limit, "step_trace_of", lambda run: found.trace)
    run = vector_run("--batch_size=4")
    assert time_limit.launch_forecast(run, Machine(gpu=gpu_named("l4"))).steps_per_epoch == 4
    assert time_limit.launch_forecast(vector_run("--force=true"), found.machine) is None
    away = dataclasses.replace(run, dataset=dataclasses.replace(run.dataset, root="/nowhere"))
    assert time_limit.launch_forecast(away, found.machine) is None


def test_the_report_shows_the_plan(found):
    lines = [{"kind": "train", "step_s": s * found.time.step_s} for s in (9.0, 1.1, 1.1)]
    view = plan_view(found, lines)
    assert view.picture.startswith(b"\x89PNG")
    assert view.lines[0].startswith("fits")
    assert "10% slower" in view.lines[-1]
    assert plan_view(None, lines) is None


def test_a_cpu_has_no_plan_to_wait_for():
    assert gpu_of(torch.device("cpu")) is None


def test_a_run_prints_its_plan_and_compares_it(vector_run, monkeypatch, found, tmp_path):
    monkeypatch.setattr(trainer, "plan_of", lambda prepared: found)
    ended = train(vector_run("--steps=4", "--log_freq=1"))
    assert any("a step was planned at" in remark for remark in ended.remarks)
    assert "plan           fits" in (tmp_path / "run/log.txt").read_text()
    page = (tmp_path / "run/report.html").read_text()
    assert "Planned and measured" in page
    assert "data:image/png;base64," in page


def test_a_refused_run_leaves_nothing(vector_run, monkeypatch, found, tmp_path):
    monkeypatch.setattr(trainer, "plan_of", lambda prepared: on_small_gpu(found))
    monkeypatch.setattr("kata.plan.remedies.step_trace_of", lambda run, device: found.trace)
    with pytest.raises(ConfigError, match="does not fit"):
        train(vector_run())
    assert not (tmp_path / "run").exists()
