"""One rank of `kata bench scale`, which times real steps and the same steps sent otherwise.

The other ways send nothing, or everything at the end of the step.

    python -m kata.bench.scale.scale_worker '{"args": ["--policy.type=act", ...], "steps": 10,
    "warmup": 3}'

The last line that rank 0 writes is its figures as JSON.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from kata.bench.scale.buckets import gradient_buckets
from kata.dist.engine import Engine
from kata.dist.process_group import ProcessGroup, join
from kata.dist.world import read_world
from kata.policies.device import set_switches
from kata.run import Run, resolve_run
from kata.train.components import open_feed
from kata.train.input.feed import Feed
from kata.train.input.prepare import prepare
from kata.train.input.readers import open_caches, open_reader
from kata.train.model.device import rank_device
from kata.train.model.engine import open_engine
from kata.update.state import TrainState, build_state
from kata.update.step import update
from kata.update.step_batch import StepBatch

LIMIT_S = 600.0


@dataclass(frozen=True)
class Asked:
    """args: of `kata train`. steps: timed, after `warmup` others."""

    args: list[str]
    steps: int
    warmup: int


class Apart(Engine):
    """A rank's engine without the others: the same step, and nothing is sent."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine.group, engine.device)
        self._engine, self.model = engine, engine.model

    def micro(self, *, last: bool) -> AbstractContextManager[object]:
        """Enclose forward and backward of a micro-batch, none of which is the last one."""
        del last
        return self._engine.micro(last=False)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of this rank alone."""
        self._engine.backward(loss)

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Add nothing."""


class After(Apart):
    """The same step, which sends as many bytes as the gradients only after the backward pass.

    Nothing hides that communication.
    """

    def __init__(self, engine: Engine, send: Callable[[], None]) -> None:
        super().__init__(engine)
        self._send, self._last = send, True

    def micro(self, *, last: bool) -> AbstractContextManager[object]:
        """Enclose forward and backward of a micro-batch."""
        self._last = last
        return super().micro(last=last)

    def backward(self, loss: Tensor) -> None:
        """Compute the gradients of this rank alone, and send their bytes after the last."""
        super().backward(loss)
        if self._last:
            self._send()


def measure_rank(asked: Asked) -> dict[str, Any]:
    """Return the figures of every step, by name and rank."""
    world = read_world(os.environ)
    run, _ = resolve_run(asked.args, world.size, os.environ)
    with join(world, rank_device(run.policy.device, world), LIMIT_S) as group, ExitStack() as live:
        prepared = prepare(run, group)
        run = prepared.run
        set_switches(tf32=run.tf32, deterministic=run.cudnn_deterministic)
        engine = open_engine(run, prepared.device, group)
        state = group.local_rank0_first(lambda: build_state(run, engine))
        state.optimizer = engine.begin(state.policy, state.optimizer)
        data, reading = prepared.data.train, prepared.reading
        caches = open_caches(live, run.dataset, data, reading)
        reader = live.enter_context(
            open_reader(reading, data, caches, frame_memory=reading.frame_memory)
        )
        feed = open_feed(live, prepared, reader, group.world)
        for _ in range(asked.warmup):
            update(state, feed.at(state.step), run, engine)
        figures = _real(state, feed, run, engine, asked.steps)
        if not engine.sharded:
            figures |= _compared(state, feed.at(state.step), run, engine, asked.steps)
        gathered: dict[str, list[list[float]]] = {name: [] for name in figures}
        for rank in group.gather(figures):
            for name, seconds in rank.items():
                gathered[name].append(seconds)
        trained = sum(
            p.numel() * p.element_size() for p in state.policy.parameters() if p.requires_grad
        )
        return {
            "ranks": world.size,
            "batch_size": run.batch_size * run.accumulation,
            "gradient_bytes": trained,
            "threads": torch.get_num_threads(),
            "device": str(prepared.device),
            "steps": gathered,
        }


def _real(
    state: TrainState, feed: Feed, run: Run, engine: Engine, steps: int
) -> dict[str, list[float]]:
    """Time steps of the loop: seconds, the part that waited for data, and CPU seconds."""
    found: dict[str, list[float]] = {"step_s": [], "wait_s": [], "cpu_s": []}
    _meet(engine.group)
    for _ in range(steps):
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        batch = feed.at(state.step)
        update(state, batch, run, engine)
        _settle(engine.device)
        found["step_s"].append(time.perf_counter() - began_s)
        found["wait_s"].append(batch.dataloading_s)
        found["cpu_s"].append(time.process_time() - began_cpu_s)
    return found


def _compared(
    state: TrainState, batch: StepBatch, run: Run, engine: Engine, steps: int
) -> dict[str, list[float]]:
    """Time the ways of an update in turn, with one batch, and the communication alone.

    All ranks begin each of them together.
    """
    ways: dict[str, Callable[[], object]] = {
        "apart": lambda: update(state, batch, run, Apart(engine))
    }
    if engine.group.world.size == 1:
        ways = {"apart": lambda: update(state, batch, run, engine)}
    else:
        send = _sending(state, run.ddp.bucket_mb, engine.device)
        ways |= {
            "together": lambda: update(state, batch, run, engine),
            "after": lambda: update(state, batch, run, After(engine, send)),
            "send": send,
        }
        send()
    found: dict[str, list[float]] = {}
    for way in ways:
        found |= {f"{way}_s": [], f"{way}_cpu_s": []}
    for _ in range(steps):
        for name, work in ways.items():
            _timed(found, name, work, engine.group, engine.device)
    return found


def _sending(state: TrainState, bucket_mb: int, device: torch.device) -> Callable[[], None]:
    """Return a function that only sends the gradients' bytes, in the buckets of DDP."""
    trained = [p for p in state.policy.parameters() if p.requires_grad][::-1]
    buckets: list[Tensor] = []
    for bucket in gradient_buckets(trained, bucket_mb):
        numel = sum(trained[i].numel() for i in bucket)
        buckets.append(torch.zeros(numel, device=device))

    def send() -> None:
        for bucket in buckets:
            dist.all_reduce(bucket)

    return send


def _timed(
    found: dict[str, list[float]],
    name: str,
    work: Callable[[], object],
    group: ProcessGroup,
    device: torch.device,
) -> None:
    _meet(group)
    began_s, began_cpu_s = time.perf_counter(), time.process_time()
    work()
    _settle(device)
    found[f"{name}_s"].append(time.perf_counter() - began_s)
    found[f"{name}_cpu_s"].append(time.process_time() - began_cpu_s)


def _meet(group: ProcessGroup) -> None:
    if group.world.size > 1:
        dist.barrier()


def _settle(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    figures = measure_rank(Asked(**json.loads(sys.argv[1])))
    if read_world(os.environ).is_first:
        print(json.dumps(figures))
