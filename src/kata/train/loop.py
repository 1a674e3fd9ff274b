"""The loop: no feature branches, and the host waits for the device only where it logs."""

from __future__ import annotations

import time
from collections.abc import Callable

from kata.run import Run
from kata.train.input.feed import Feed
from kata.train.metrics.bad_steps import BadStepMonitor
from kata.train.metrics.meter import Meter, NullMeter, StepTimes
from kata.train.model.oom import MicroBatchHalver
from kata.train.stopping import StopSignal
from kata.update.state import TrainState
from kata.update.step import update

Callback = Callable[[TrainState], None]
"""Periodic work between two steps, such as validating or saving."""


def due(every: int, step: int, steps: int) -> bool:
    """Return True if periodic work is due after `step` updates.

    It is due every `every` steps (0: never) and after the last step.
    """
    return step == steps or (every > 0 and step % every == 0)


def loop(
    run: Run,
    state: TrainState,
    feed: Feed,
    meter: Meter | NullMeter,
    monitor: BadStepMonitor | NullMeter,
    callbacks: list[tuple[int, Callback]],
    stop_signal: StopSignal,
    halver: MicroBatchHalver,
) -> None:
    """Train until `run.steps`, or until the stop signal ends the run between two steps.

    Args:
        run: gives the number of steps and the interval of the log.
        state: updated in place.
        feed: gives the batch of a step.
        meter: takes losses, times and the gradient norm.
        monitor: takes losses and gradient norms to find bad steps.
        callbacks: pairs (interval in steps, work), called in order, also after the last step.
        stop_signal: ends the run between two steps.
        halver: takes a step, and again with smaller micro-batches when memory is full.
    """
    while state.step < run.steps and not stop_signal.should_stop():
        began_s = time.perf_counter()
        batch = feed.at(state.step)
        ready_s = time.perf_counter()
        losses, grad_norm, lr = halver(update, state, batch, run)
        ended_s = time.perf_counter()
        times = StepTimes(
            batch.dataloading_s, batch.preprocessing_s, ended_s - ready_s, ended_s - began_s
        )
        meter.add(state.step, losses=losses, grad_norm=grad_norm, lr=lr, times=times)
        monitor.add(state.step, losses["loss"], grad_norm)
        ready = [callback for every, callback in callbacks if due(every, state.step, run.steps)]
        # Figures are written out before a checkpoint too: what is resumed from it has the same
        # lines then.
        if ready or due(run.log_freq, state.step, run.steps):
            monitor.settle()
            meter.flush(state.step)
        for callback in ready:
            callback(state)
