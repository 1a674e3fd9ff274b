"""Steps of a run's policy on the device at hand, with made-up data: time and memory."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping, Sequence
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
from kata.update.state import TrainState, build_state
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

LINE_S = 12.0
LEAST_ROUNDS, MOST_ROUNDS = 3, 25
"""Rounds of steps are repeated for this time, within these numbers. Extrapolating a line to four
times its larger batch multiplies an error of its times by up to six.
"""


def measure_line(run: Run, kind: str | None = None) -> StepLine:
    """Measure steps of two batch sizes, and return the line through their times."""
    return line_through(measure_times_s(run, LINE_BATCHES, kind))


def line_through(times_s: Mapping[int, float]) -> StepLine:
    """Return the line through the times of LINE_BATCHES."""
    small, large = LINE_BATCHES
    slope_s = max(0.0, (times_s[large] - times_s[small]) / (large - small))
    return StepLine(fixed_s=max(0.0, times_s[small] - slope_s * small), per_sample_s=slope_s)


def measure_times_s(
    run: Run, sizes: Sequence[int], kind: str | None = None, warmup: int = 2
) -> dict[int, float]:
    """Measure steps of several micro-batches in turns, so that a machine which slows down does
    so for all.

    Args:
        run: the options, with the policy's features filled in.
        sizes: micro-batches.
        kind: 'cpu' or 'cuda'; None takes a GPU if there is one.
        warmup: steps of each size before those that count.

    Returns:
        The time of a step by its micro-batch: the median on a GPU, the least on a processor.
    """
    device = device_here(kind)
    runs = {size: with_micro_batch(run, size) for size in sizes}
    engine, state = _built(runs[sizes[0]], device)
    batches = {size: random_batch(runs[size], device) for size in sizes}
    taken: dict[int, list[float]] = {size: [] for size in sizes}

    def round_s(count: int) -> float:
        """Take `count` steps of each size, and return the time of the last ones."""
        for size in sizes:
            step = functools.partial(update, state, batches[size], runs[size], engine)
            taken[size] += times_s(step, device, count)
        return sum(times[-1] for times in taken.values())

    rounds = min(max(int(LINE_S / round_s(warmup)), LEAST_ROUNDS), MOST_ROUNDS)
    for _ in range(rounds):
        round_s(1)
    return {size: _typical_s(times[warmup:], device) for size, times in taken.items()}


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
    engine, state = _built(run, device)
    batch = random_batch(run, device)
    if device.type == "cuda":
        torch.cuda.empty_cache()  # what an earlier measurement left
        torch.cuda.reset_peak_memory_stats(device)

    def step() -> None:
        update(state, batch, run, engine)

    last_s = times_s(step, device, warmup)[-1]
    repeated = min(int(SHORT_S / last_s), MOST_STEPS)
    taken_s = times_s(step, device, max(count, repeated))
    step_s = _typical_s(taken_s, device)
    if device.type != "cuda":
        return MeasuredSteps(step_s, 0)
    reserved = torch.cuda.max_memory_reserved(device)
    return MeasuredSteps(step_s, reserved, torch.cuda.max_memory_allocated(device))


def _built(run: Run, device: torch.device) -> tuple[Engine, TrainState]:
    """Return an engine and a state whose next steps have the later loss of the run."""
    set_switches(tf32=run.tf32, deterministic=run.cudnn_deterministic)
    engine = Engine(ProcessGroup(), device)
    state = build_state(run, engine, weights_follow=True)
    state.optimizer = engine.begin(state.policy, state.optimizer)
    state.step = max(0, run.policy.loss_changes_after() - 1)
    return engine, state


def _typical_s(taken_s: Sequence[float], device: torch.device) -> float:
    """Return the median on a GPU; other programs on a processor only make a step slower."""
    return statistics.median(taken_s) if device.type == "cuda" else min(taken_s)


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
