"""Steps of a run's policy on the device at hand, with made-up data: time and memory."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from kata.dist.engine import Engine
from kata.dist.process_group import ProcessGroup
from kata.plan.measuring.calibration import device_here, times_s
from kata.plan.profiles import StepLine
from kata.plan.tracing.blank_batch import blank_batch
from kata.policies.device import set_switches
from kata.run import Run
from kata.spec import Batch
from kata.update.state import build_state
from kata.update.step import update
from kata.update.step_batch import StepBatch


@dataclass(frozen=True, slots=True)
class MeasuredSteps:
    """The figures of some steps.

    Attributes:
        step_s: median time of a step on a GPU, least time on a processor.
        peak_bytes: most memory that torch reserved; 0 on a CPU.
        allocated_bytes: most memory that tensors took of it; 0 on a CPU.
    """

    step_s: float
    peak_bytes: int
    allocated_bytes: int = 0


LINE_BATCHES = (2, 4)
"""Micro-batches through whose times a line is drawn."""


def measure_line(run: Run, kind: str | None = None) -> StepLine:
    """Measure steps of two batch sizes, and return the line through their times."""
    small, large = LINE_BATCHES
    one = with_micro_batch(run, small)
    first_s = measure_steps(one, kind).step_s
    second_s = measure_steps(with_micro_batch(run, large), kind).step_s
    slope_s = max(0.0, (second_s - first_s) / (large - small))
    return StepLine(fixed_s=max(0.0, first_s - slope_s * small), per_sample_s=slope_s)


def with_micro_batch(run: Run, size: int) -> Run:
    """Return the run with micro-batches of `size` samples, one of them in a step."""
    accelerator = replace(
        run.accelerator,
        gradient_accumulation=replace(run.accelerator.gradient_accumulation, steps=1),
    )
    return replace(run, batch_size=size, global_batch_size=size, accelerator=accelerator)


SHORT_S, MOST_STEPS = 1.5, 15
"""Short steps are repeated for this time, but at most this often: their times vary most."""


def measure_steps(
    run: Run, kind: str | None = None, count: int = 3, warmup: int = 2
) -> MeasuredSteps:
    """Take steps with random data and weights, and measure them.

    A policy whose loss changes during a run is measured with the later loss.

    Args:
        run: the options, with the policy's features filled in.
        kind: 'cpu' or 'cuda'; None takes a GPU if there is one.
        count: steps that are measured at least.
        warmup: steps before them, in which kernels are chosen and memory is taken.
    """
    device = device_here(kind)
    set_switches(tf32=run.tf32, deterministic=run.cudnn_deterministic)
    engine = Engine(ProcessGroup(), device)
    state = build_state(run, engine, weights_follow=True)
    state.optimizer = engine.begin(state.policy, state.optimizer)
    state.step = max(0, run.policy.loss_changes_after() - 1)
    batch = random_batch(run, device)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what an earlier measurement left
        torch.cuda.reset_peak_memory_stats(device)

    def step() -> None:
        update(state, batch, run, engine)

    last_s = times_s(step, device, warmup)[-1]
    repeated = min(int(SHORT_S / last_s), MOST_STEPS)
    taken_s = times_s(step, device, max(count, repeated))
    if device.type != "cuda":
        # Other programs on the processor only make a step slower.
        return MeasuredSteps(min(taken_s), 0)
    step_s = statistics.median(taken_s)
    reserved = torch.cuda.max_memory_reserved(device)
    return MeasuredSteps(step_s, reserved, torch.cuda.max_memory_allocated(device))


def random_batch(run: Run, device: torch.device) -> StepBatch:
    """Return a batch of a run's shapes whose frames and vectors are random."""
    made = blank_batch(run, run.batch_size)
    micros = [_filled(micro, device) for micro in made.micros] * run.accumulation
    draws = [_filled(drawn, device) for drawn in made.draws] * run.accumulation
    weights = {name: value * run.accumulation for name, value in made.weights.items()}
    return StepBatch(micros, draws, weights, np.arange(run.batch_size), 0.0, 0.0)


def _filled(values: Batch, device: torch.device) -> Batch:
    """Return tensors with values between 0 and 1, and zeros for whole numbers and masks."""
    filled: Batch = {}
    for name, value in values.items():
        if isinstance(value, Tensor) and value.is_floating_point():
            filled[name] = torch.rand(value.shape, dtype=value.dtype, device=device)
        elif isinstance(value, Tensor):
            filled[name] = torch.zeros(value.shape, dtype=value.dtype, device=device)
        else:
            filled[name] = value
    return filled
