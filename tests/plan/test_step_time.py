"""The time of a step against arithmetic by hand."""

import dataclasses

import pytest

from kata.errors import ConfigError
from kata.plan.catalogue import LINKS, gpu_named
from kata.plan.device_rates import DeviceRates, rates_of
from kata.plan.memory import RankLayout
from kata.plan.step_time import HALF_BANDWIDTH_BYTES, all_reduce_s, operation_s, step_time
from kata.plan.step_trace import Linear, TracedOperation
from tests.plan.small import small_run

RATES = DeviceRates("test", 1e12, 5e11, 1e12, 1e9, 1e-6, 2e-6, 3, 0.3)


def operation(kind, flops, moved):
    nothing = Linear(0, 0)
    return TracedOperation(
        kind, kind, "forward", "float32", 1, 1, Linear(0, flops), Linear(0, moved), nothing
    )


def test_an_operation_takes_its_arithmetic_its_traffic_and_its_launch():
    assert operation_s(operation("elementwise", 0, 1e6), 2, RATES) == pytest.approx(2e-3 + 1e-6)
    assert operation_s(operation("gemm", 1e9, 1e6), 1, RATES) == pytest.approx(2e-3 + 1e-6)
    found = operation_s(operation("convolution", 1e9, 1e6), 1, RATES)
    assert found == pytest.approx(2e-3 + 3e-3 + 1e-6)


def test_accumulation_repeats_all_but_the_optimizer(small_trace):
    one = step_time(small_trace, 4, RATES)
    four = step_time(small_trace, 4, RATES, accumulation=4)
    optimizer = step_time(
        dataclasses.replace(
            small_trace,
            operations=tuple(op for op in small_trace.operations if op.phase == "optimizer"),
        ),
        4,
        RATES,
    )
    rest_s = one.compute_s - optimizer.compute_s
    assert four.compute_s == pytest.approx(4 * rest_s + optimizer.compute_s)
    assert four.launch_s < 4 * one.launch_s


def test_the_slowest_part_binds(small_trace):
    assert step_time(small_trace, 1, RATES, data_s=9.0).binds == "data"
    host_bound = dataclasses.replace(RATES, launch_s=1.0)
    assert step_time(small_trace, 1, host_bound).binds == "launch"
    assert step_time(small_trace, 512, RATES).binds == "compute"
    slow = step_time(small_trace, 512, RATES, data_s=9.0)
    assert slow.step_s == 9.0
    assert slow.update_s < 9.0


def test_an_all_reduce_follows_its_formula():
    size = HALF_BANDWIDTH_BYTES  # reaches half of the bandwidth
    link = LINKS["nvlink4"]
    expected = link.latency_s + 2 * 3 / 4 * size / (link.bus_bytes_s / 2)
    assert all_reduce_s(size, 4, link, size) == pytest.approx(expected)
    assert all_reduce_s(size, 1, link, size) == 0.0
    buckets = all_reduce_s(4 * size, 4, link, size)
    assert buckets == pytest.approx(4 * expected)


def test_more_ranks_take_longer_and_shards_longer_still(small_trace):
    fast = DeviceRates("fast", 1e18, 1e18, 1e18, 1e18, 1e-12, 1e-12, 1, 0.3)  # hides nothing

    def together_s(**layout):
        return step_time(
            small_trace, 8, fast, layout=RankLayout(**layout), link=LINKS["pcie4"]
        ).step_s

    alone, two, eight = together_s(), together_s(copies=2), together_s(copies=8)
    assert alone < two < eight < together_s(shards=8)


def test_rates_follow_precision_and_tf32():
    a100 = gpu_named("a100-80gb")
    plain, tf32 = rates_of(a100, "no", tf32=False), rates_of(a100, "no", tf32=True)
    half = rates_of(a100, "bf16", tf32=True)
    assert tf32.gemm_flop_s == 8 * plain.gemm_flop_s
    assert half.gemm_flop_s == 2 * tf32.gemm_flop_s
    # Weights in bf16 without autocast, and what autocast leaves in float32.
    assert tf32.flop_s("gemm", "bfloat16") == half.flop_s("gemm", "bfloat16") == half.gemm_flop_s
    assert half.flop_s("attention", "float32") == tf32.attention_flop_s
    assert RATES.flop_s("gemm", "bfloat16") == RATES.gemm_flop_s  # measured in one precision
    with pytest.raises(ConfigError, match="bf16 on t4"):
        rates_of(gpu_named("t4"), "bf16", tf32=True)


def test_a_wider_policy_takes_longer_by_its_arithmetic(small_trace):
    from kata.plan.tracing.trace import trace_step

    wide = trace_step(small_run(options={"dim_model": 128, "dim_feedforward": 128}))
    products = dataclasses.replace(RATES, bytes_s=1e18, kernel_s=0.0)
    before = step_time(small_trace, 64, products).kinds["gemm"]
    after = step_time(wide, 64, products).kinds["gemm"]
    assert 2.5 < after / before < 4.0  # products of twice the width have up to four times the work
