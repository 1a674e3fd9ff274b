"""Memory computed from a trace, against sums that can be done by hand."""

import json

import pytest

from kata.errors import ConfigError
from kata.plan.memory import RankLayout, plan_memory
from kata.plan.overheads import Overheads, overheads_of
from kata.plan.step_trace import Linear, StepTrace, TracedStorage

MIB = 2**20


def trace_of(*storages):
    """Return a trace of four operations, one per phase."""
    return StepTrace(
        policy="toy",
        device="cuda",
        precision="no",
        recomputes=False,
        torch="2.11.0",
        trainable=1,
        frozen=0,
        unit_bytes=(3 * MIB, 5 * MIB, MIB),
        begins={"input": 0, "forward": 1, "backward": 2, "optimizer": 3},
        operations=(),
        storages=tuple(storages),
        num_operations=4,
    )


def storage(part, begin, end, fixed=0, per_sample=0):
    return TracedStorage(part, Linear(fixed, per_sample), begin, end)


TOY = trace_of(
    storage("weights", -1, 4, 8 * MIB),
    storage("optimizer_state", -1, 4, 16 * MIB),
    storage("raw_inputs", 0, 0, per_sample=MIB),
    storage("inputs", 0, 4, per_sample=4 * MIB),
    storage("activations", 1, 2, per_sample=10 * MIB),
    storage("gradients", 2, 3, 8 * MIB),
    storage("temporaries", 3, 3, 2 * MIB),
)


def test_the_peak_is_where_most_is_alive():
    plan = plan_memory(TOY, 2)
    assert plan.peak_phase == "backward"
    assert plan.tensor_bytes == (8 + 16 + 2 * 4 + 2 * 10 + 8) * MIB
    assert plan.parts["activations"] == 20 * MIB
    assert plan.parts["raw_inputs"] == 0
    assert plan.reserved_bytes >= plan.tensor_bytes + plan.workspace_bytes
    assert plan.total_bytes == plan.reserved_bytes + plan.context_bytes  # one rank has no NCCL


def test_gradients_and_inputs_of_every_micro_batch_wait():
    alone, summed = plan_memory(TOY, 2), plan_memory(TOY, 2, accumulation=3)
    assert summed.parts["inputs"] == 3 * alone.parts["inputs"]
    assert summed.parts["gradients"] == 8 * MIB
    assert summed.parts["temporaries"] == 8 * MIB


def test_sharding_divides_the_state_and_gathers_units():
    plan = plan_memory(TOY, 2, layout=RankLayout(shards=4))
    assert plan.parts["weights"] == 2 * MIB
    assert plan.parts["optimizer_state"] == 4 * MIB
    assert plan.parts["activations"] == 20 * MIB
    assert plan.parts["communication"] == (3 * 5 + 2) * MIB
    assert plan.nccl_bytes > 0


@pytest.mark.parametrize(
    ("stage", "parts"),
    [(1, (8, 16 / 4, 8)), (2, (8, 16 / 4, 8 / 4)), (3, (8 / 4, 16 / 4, 8 / 4))],
)
def test_each_zero_stage_divides_more(stage, parts):
    plan = plan_memory(TOY, 2, layout=RankLayout(copies=4, zero_stage=stage))
    found = [plan.parts[name] / MIB for name in ("weights", "optimizer_state", "gradients")]
    assert tuple(found) == parts


def test_a_cpu_has_no_allocator_of_cuda():
    plain = TOY.to_json() | {"device": "cpu"}
    plan = plan_memory(StepTrace.from_json(plain), 2)
    assert plan.total_bytes == plan.tensor_bytes


def test_plans_and_traces_are_json():
    assert StepTrace.from_json(json.loads(json.dumps(TOY.to_json()))) == TOY
    plain = json.loads(json.dumps(plan_memory(TOY, 2).to_json()))
    assert plain["total_bytes"] == plan_memory(TOY, 2).total_bytes


def test_overheads_belong_to_the_gpu():
    assert overheads_of(9.0).workspace_bytes > overheads_of(8.6).workspace_bytes
    plan = plan_memory(TOY, 1, overheads=Overheads(1, 2, 3))
    assert (plan.context_bytes, plan.workspace_bytes, plan.nccl_bytes) == (1, 2, 0)


@pytest.mark.parametrize("size", [{"batch": 0}, {"batch": 1, "accumulation": 0}])
def test_no_samples_are_refused(size):
    with pytest.raises(ConfigError, match="at least one sample"):
        plan_memory(TOY, **size)


@pytest.mark.parametrize(
    "layout", [{"shards": 0}, {"zero_stage": 4}, {"shards": 2, "zero_stage": 1}]
)
def test_impossible_layouts_are_refused(layout):
    with pytest.raises(ConfigError, match="RankLayout"):
        RankLayout(**layout)
