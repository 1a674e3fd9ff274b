"""Profiles of devices: kept, found again, and used with care for another version of torch."""

import dataclasses

import pytest

from kata.plan.catalogue import LINKS, gpu_named
from kata.plan.data_size import DataSize
from kata.plan.forecast import Machine, forecast
from kata.plan.measuring import calibration
from kata.plan.measuring.all_reduce import link_of, measured_link
from kata.plan.measuring.decoding import decode_s_per_pixel
from kata.plan.measuring.steps import LINE_BATCHES, measure_line, measure_steps
from kata.plan.profiles import (
    CALIBRATED_SPREAD,
    OTHER_TORCH_SPREAD,
    StepLine,
    keep_line,
    keep_profile,
    kept_line,
    kept_profile,
    profile_path,
)
from kata.plan.step_time import all_reduce_s
from kata.run.batch_layout import share_out
from tests.plan.small import small_run


@pytest.fixture
def profile(monkeypatch, tmp_path):
    """A profile of this CPU, measured on small tensors."""
    monkeypatch.setenv("KATA_CACHE", str(tmp_path))
    monkeypatch.setattr(calibration, "GEMM_SIZE", 64)
    monkeypatch.setattr(calibration, "BYTES", 2**16)
    monkeypatch.setattr(calibration, "TIMES", 1)
    monkeypatch.setattr(calibration, "decode_s_per_pixel", lambda: 1e-8)
    return calibration.calibrate("cpu", "no", "Some CPU")


def test_a_profile_is_found_again(profile):
    assert min(profile.gemm_flop_s, profile.convolution_flop_s, profile.bytes_s) > 0
    assert kept_profile("Some CPU", "no") is None
    keep_profile(profile)
    assert kept_profile("Some CPU", "no") == profile
    assert kept_profile("Some CPU", "bf16") is None
    rates, warning = profile.rates()
    assert not warning
    assert rates.spread == CALIBRATED_SPREAD
    assert rates.is_measured
    assert rates.launch_s == 0  # host and device are one
    profile_path("Some CPU", "no").write_text("{", encoding="utf-8")
    assert kept_profile("Some CPU", "no") is None


def test_a_damaged_profile_is_named_and_not_used(profile, caplog):
    path = keep_profile(profile)
    path.write_text('{"device": 1}', encoding="utf-8")
    assert kept_profile("Some CPU", "no") is None
    assert str(path) in caplog.text
    assert "kata plan --calibrate" in caplog.text


def test_what_was_measured_replaces_typical_figures(profile):
    link = {"bus_bytes_s": 5e9, "all_reduce_s": 1e-3}
    measured = dataclasses.replace(profile, context_bytes=7, s_per_pixel=2e-9, **link)
    machine = Machine(gpu=gpu_named("l4"), ranks=2).with_profile(measured)
    assert machine.gpu.overheads.context_bytes == 7
    assert machine.s_per_pixel == 2e-9
    assert machine.link.bus_bytes_s == 5e9
    assert machine.rates == profile.rates()[0]
    several = dataclasses.replace(machine, nodes=2)
    assert several.link == LINKS["nodes"]
    cpu = dataclasses.replace(gpu_named("m1-max"), memory_bytes=5)
    assert Machine(gpu=cpu).with_profile(measured).gpu == cpu


def test_a_sweep_gives_the_link_that_it_was_made_with():
    link = LINKS["nvlink3"]
    taken = {size: all_reduce_s(size, 4, link, size) for size in (64, 2**28)}
    found = link_of(taken, 4)
    assert found.bus_bytes_s == pytest.approx(link.bus_bytes_s, rel=0.02)
    assert found.latency_s == pytest.approx(link.latency_s, rel=0.02)


def test_two_processes_sum_and_frames_are_decoded():
    link = measured_link(2, "cpu", (4096, 2**20))
    assert link.bus_bytes_s > 0
    assert link.latency_s >= 0
    assert 1e-10 < decode_s_per_pixel(16, 64, 64) < 1e-5


def test_a_profile_of_another_torch_warns_and_is_less_sure(profile):
    old = dataclasses.replace(profile, torch="1.0")
    rates, warning = old.rates()
    assert "torch 1.0" in warning
    assert "--calibrate" in warning
    assert rates.spread == OTHER_TORCH_SPREAD
    assert rates.gemm_flop_s == profile.gemm_flop_s


def test_a_measured_line_replaces_the_computed_step(small_trace, monkeypatch, tmp_path):
    monkeypatch.setenv("KATA_CACHE", str(tmp_path))
    line = StepLine(fixed_s=2.0, per_sample_s=0.5)
    keep_line(line, "Some CPU", "abc")
    assert kept_line("Some CPU", "abc") == line
    assert kept_line("Some CPU", "other") is None
    run = share_out(small_run(batch_size=6), 1, [], keep_micro=True)
    machine = Machine(gpu=gpu_named("l4"), step_line=line)
    found = forecast(run, small_trace, DataSize(1000, 3, 30.0, None), machine)
    assert found.time.compute_s == pytest.approx(5.0)


def test_steps_are_measured_with_made_up_data():
    run = share_out(small_run(batch_size=2), 1, [], keep_micro=True)
    measured = measure_steps(run, "cpu", count=1, warmup=1)
    assert measured.step_s > 0
    assert measured.peak_bytes == 0
    line = measure_line(run, "cpu")
    assert line.at(LINE_BATCHES[0]) > 0
