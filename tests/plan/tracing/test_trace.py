"""The trace of a real step: counts that follow from the policy alone."""

import json

import pytest
import torch

from kata.errors import PolicyError
from kata.plan.memory import plan_memory
from kata.plan.step_trace import KINDS, PARTS, PHASES, StepTrace
from kata.plan.tracing.trace import trace_step
from kata.policies import build_policy
from kata.run import AcceleratorConfig
from kata.run.peft import PeftConfig
from tests.plan.small import small_run


def test_weights_gradients_and_optimizer_state_are_exact(small_trace):
    policy = build_policy(small_run().policy)
    weights = sum(p.numel() * p.element_size() for p in policy.parameters())
    assert small_trace.trainable * 4 == weights
    assert small_trace.frozen == 0
    assert sum(small_trace.unit_bytes) == weights
    assert small_trace.part_bytes("weights", 1) == weights
    assert small_trace.part_bytes("gradients", 1) == weights
    steps = 4 * len(list(policy.parameters()))
    assert small_trace.part_bytes("optimizer_state", 1) == 2 * weights + steps


def test_every_operation_and_storage_has_its_place(small_trace):
    assert {op.phase for op in small_trace.operations} == set(PHASES)
    assert {op.kind for op in small_trace.operations} <= set(KINDS)
    assert {storage.part for storage in small_trace.storages} <= set(PARTS)
    assert sum(op.runs for op in small_trace.operations) == small_trace.num_operations
    assert any(op.kind == "attention" for op in small_trace.operations)


def test_a_trace_survives_json(small_trace):
    assert StepTrace.from_json(json.loads(json.dumps(small_trace.to_json()))) == small_trace


def test_bf16_halves_activations_and_torch_stays_as_it_was(small_trace):
    state = torch.get_rng_state()
    half = trace_step(small_run(accelerator=AcceleratorConfig(mixed_precision="bf16")))
    assert 0 < half.part_bytes("activations", 8) < small_trace.part_bytes("activations", 8)
    assert half.part_bytes("cast_weights", 8) > 0
    assert half.flops(8) == small_trace.flops(8)
    assert plan_memory(half, 64).tensor_bytes < plan_memory(small_trace, 64).tensor_bytes
    assert torch.equal(torch.get_rng_state(), state)
    kept = torch.nn.functional.dropout(torch.ones(8, requires_grad=True), 0.5)
    assert kept.grad_fn is not None
    assert "NativeDropout" not in type(kept.grad_fn).__name__


def test_a_step_that_looks_at_values_names_the_operation(monkeypatch):
    from kata.policies.act.model import Policy

    forward = Policy.forward

    def looking(self, batch, **draws):
        batch["action"].nonzero()
        return forward(self, batch, **draws)

    monkeypatch.setattr(Policy, "forward", looking)
    with pytest.raises(PolicyError, match="nonzero") as raised:
        trace_step(small_run())
    assert "masks" in raised.value.remedy


def test_a_step_that_is_not_linear_names_the_operation(monkeypatch):
    from kata.policies.act.model import Policy

    forward = Policy.forward

    def squaring(self, batch, **draws):
        state = batch["observation.state"]
        (state @ state.T).sum()
        return forward(self, batch, **draws)

    monkeypatch.setattr(Policy, "forward", squaring)
    with pytest.raises(PolicyError, match="of mm"):
        trace_step(small_run())


def test_adapters_are_traced(small_trace):
    pytest.importorskip("peft")
    adapted = trace_step(small_run(peft=PeftConfig(r=2)))
    # A frozen weight is expanded to the samples, and read once all the same.
    assert "bmm" in {op.name for op in adapted.operations}
    assert 0 < adapted.trainable < adapted.frozen == small_trace.trainable
    gradients = adapted.part_bytes("gradients", 1)
    assert gradients == 4 * adapted.trainable


def test_an_unknown_device_is_refused():
    with pytest.raises(PolicyError, match="device=mps"):
        trace_step(small_run(), device="mps")
