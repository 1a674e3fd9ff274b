"""The forecast of a run: memory, time, steps, price and disk, from its trace. Torch-free."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from typing import Any

from kata.optim.schedule import lr_factor
from kata.plan.catalogue import LINKS, Gpu, Link
from kata.plan.data_size import DataSize, cache_bytes, frames_per_sample, reading_s
from kata.plan.device_rates import DeviceRates, rates_of
from kata.plan.memory import MemoryPlan, RankLayout, plan_memory
from kata.plan.profiles import Profile, StepLine
from kata.plan.step_time import StepTime, step_time
from kata.plan.step_trace import StepTrace
from kata.run import Run

TIGHT_SHARE = 0.08
"""Part of the memory that should stay free: predictions and fragments vary by a few percent."""

EPOCHS = (5, 10)
"""Epochs in which imitation learning typically converges (LeRobot's hardware guide)."""

GPUS_PER_NODE = 8


@dataclass(frozen=True, kw_only=True)
class Machine:
    """The machine that a run would go to.

    Attributes:
        gpu: the model of its GPUs.
        ranks: GPUs of all nodes.
        nodes: number of nodes.
        cores: CPU cores of each rank; None if unknown.
        usd_per_hour: price of all nodes; None if unknown.
        rates: measured rates; None takes those of the catalogue.
        s_per_pixel: measured time of a core to decode a pixel, or None.
        step_line: measured times of this very step, or None.
        measured_link: measured connection of the GPUs of a node, or None.
    """

    gpu: Gpu
    ranks: int = 1
    nodes: int = 1
    cores: int | None = None
    usd_per_hour: float | None = None
    rates: DeviceRates | None = None
    s_per_pixel: float | None = None
    step_line: StepLine | None = None
    measured_link: Link | None = None

    @property
    def link(self) -> Link:
        """Return the slowest connection among the ranks."""
        if self.nodes > 1:
            return LINKS["nodes"]
        return self.measured_link or LINKS[self.gpu.link]

    def with_profile(self, profile: Profile) -> Machine:
        """Return the machine with what a profile has measured of it."""
        gpu = self.gpu
        if gpu.is_cuda:
            gpu = dataclasses.replace(gpu, context_bytes=profile.context_bytes)
        rates, _ = profile.rates()
        return dataclasses.replace(
            self,
            gpu=gpu,
            rates=rates,
            s_per_pixel=profile.s_per_pixel,
            measured_link=profile.link,
        )


@dataclass(frozen=True, kw_only=True)
class Forecast:
    """The needs of a run on a machine.

    Attributes:
        run: the options that it holds for.
        machine: the machine.
        data: the data.
        trace: of one step.
        memory: of one rank.
        largest_batch: samples of the largest micro-batch that fits; 0 if none does.
        time: of a step.
        rates: of the device.
        checkpoint_bytes: size of a checkpoint.
        cache_bytes: size of the run's cache of frames or features when it is full.
    """

    run: Run
    machine: Machine
    data: DataSize
    trace: StepTrace
    memory: MemoryPlan
    largest_batch: int
    time: StepTime
    rates: DeviceRates
    checkpoint_bytes: int = field(default=0)
    cache_bytes: int = 0

    @property
    def margin_bytes(self) -> int:
        """Return the memory that stays free; negative if the step does not fit."""
        return self.machine.gpu.memory_bytes - self.memory.total_bytes

    @property
    def fits(self) -> bool:
        """Return True if the step fits."""
        return self.margin_bytes >= 0

    @property
    def is_tight(self) -> bool:
        """Return True if the step fits with less room than predictions vary by."""
        return 0 <= self.margin_bytes < TIGHT_SHARE * self.machine.gpu.memory_bytes

    @property
    def steps_per_epoch(self) -> int:
        """Return the steps in which each sample is seen once."""
        return max(1, math.ceil(self.data.samples / self.run.effective_batch))

    def wall_clock_s(self, steps: int) -> tuple[float, float, float]:
        """Return the lowest, the expected and the highest time of a number of steps."""
        expected_s = steps * self.time.step_s
        spread = self.rates.spread
        return expected_s * (1 - spread), expected_s, expected_s * (1 + spread)

    def price_usd(self, steps: int) -> float | None:
        """Return the expected price of a number of steps; None without a price."""
        if self.machine.usd_per_hour is None:
            return None
        return self.wall_clock_s(steps)[1] / 3600 * self.machine.usd_per_hour

    @property
    def frames_per_s(self) -> float:
        """Return the frames per second that the readers of all ranks must deliver together."""
        frames = frames_per_sample(self.run.policy) * self.run.effective_batch
        return frames / self.time.update_s

    @property
    def readable_frames_per_s(self) -> float | None:
        """Return the frames per second that they can deliver; None without cameras."""
        if self.time.data_s == 0:
            return None
        frames = frames_per_sample(self.run.policy) * self.run.effective_batch
        return frames / self.time.data_s


def forecast(run: Run, trace: StepTrace, data: DataSize, machine: Machine) -> Forecast:
    """Compute the needs of a run.

    Args:
        run: the options, with the policy's features and the batch of each rank filled in.
        trace: of a step with the run's precision and activation checkpointing.
        data: the amount of data.
        machine: the place of the run.
    """
    layout = layout_of(run)
    rates = machine.rates or rates_of(machine.gpu, run.precision, tf32=run.tf32)
    if machine.step_line is not None:
        # One step in proportion to what was measured; its parts keep their shares.
        plain_s = step_time(trace, run.batch_size, rates).compute_s
        rates = rates.faster(plain_s / machine.step_line.at(run.batch_size))
    time = step_time(
        trace,
        run.batch_size,
        rates,
        accumulation=run.accumulation,
        layout=layout,
        link=machine.link,
        data_s=reading_s(run, machine.cores, machine.s_per_pixel),
        bucket_bytes=run.ddp.bucket_mb * 2**20,
    )
    return Forecast(
        run=run,
        machine=machine,
        data=data,
        trace=trace,
        memory=memory_of(run, trace, machine.gpu, run.batch_size),
        largest_batch=largest_batch(run, trace, machine.gpu),
        time=time,
        rates=rates,
        checkpoint_bytes=_checkpoint_bytes(run, trace),
        cache_bytes=cache_bytes(run, data, trace.feature_bytes),
    )


def layout_of(run: Run) -> RankLayout:
    """Return the division of a run's policy among its ranks."""
    copies, shards = run.mesh
    return RankLayout(copies=copies, shards=shards, zero_stage=run.deepspeed.zero_stage)


def memory_of(run: Run, trace: StepTrace, gpu: Gpu, batch: int) -> MemoryPlan:
    """Return the memory of a rank of the run with micro-batches of `batch` samples."""
    return plan_memory(
        trace,
        batch,
        layout=layout_of(run),
        accumulation=run.accumulation,
        overheads=gpu.overheads,
    )


def largest_batch(run: Run, trace: StepTrace, gpu: Gpu, most: int = 4096) -> int:
    """Return the largest micro-batch that leaves TIGHT_SHARE of the memory free, 0 for none.

    Memory grows nearly linearly with the batch. So a line through two sizes tells the next one to
    try, and each try narrows the range.
    """
    room = (1 - TIGHT_SHARE) * gpu.memory_bytes

    def needed(batch: int) -> int:
        return memory_of(run, trace, gpu, batch).total_bytes

    low, low_bytes = 1, needed(1)
    if low_bytes > room:
        return 0
    high, high_bytes = most, needed(most)
    if high_bytes <= room:
        return most
    while high - low > 1:
        share = (room - low_bytes) / max(1, high_bytes - low_bytes)
        middle = min(max(low + int(share * (high - low)), low + 1), high - 1)
        middle_bytes = needed(middle)
        if middle_bytes > room:
            high, high_bytes = middle, middle_bytes
        else:
            low, low_bytes = middle, middle_bytes
            beyond = needed(low + 1)  # the line often meets the limit exactly
            if beyond > room:
                return low
            low, low_bytes = low + 1, beyond
    return low


def _checkpoint_bytes(run: Run, trace: StepTrace) -> int:
    """Return the size of a checkpoint: weights, optimizer state and EMA."""
    weights = trace.part_bytes("weights", 1) + trace.part_bytes("frozen_weights", 1)
    weights *= 1 + (run.stored_as == "both")
    return weights + trace.part_bytes("optimizer_state", 1) + trace.part_bytes("ema", 1)


def schedule_facts(run: Run) -> dict[str, Any]:
    """Return the end of the learning rate's schedule beside the steps of the run."""
    assert run.optimizer is not None
    if run.scheduler is None:
        return {"type": "constant", "last_lr": run.optimizer.lr, "ends_low": True}
    last = lr_factor(run.scheduler, run.steps - 1, run.steps)
    decay = dataclasses.asdict(run.scheduler).get("num_decay_steps", run.steps)
    return {
        "type": run.scheduler.type,
        "decay_steps": decay,
        "last_lr": run.optimizer.lr * run.lr_scale * last,
        "ends_low": last < 0.5 or "constant" in run.scheduler.type,
    }
