"""What one rank of `kata bench scale` does: real steps, then the same without sending, and with
sending at their end.

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
from kata.run import Run, resolve_run
from kata.train.components import open_feed
from kata.train.input.feed import Feed, StepBatch
from kata.train.input.prepare import prepare
from kata.train.input.readers import open_caches, open_reader
from kata.train.model.device import rank_device, set_switches
from kata.train.model.engine import open_engine
from kata.train.model.state import TrainState, build_state
from kata.train.step import update

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
        """Around forward and backward of a micro-batch, none of which is the last one."""
        del last
        return self._engine.micro(last=False)

    def backward(self, loss: Tensor) -> None:
        """Gradients of this rank alone."""
        self._engine.backward(loss)

    def sum(self, tensors: Sequence[Tensor]) -> None:
        """Nothing is added."""


class After(Apart):
    """The same step, and what the gradients would send goes out when the backward pass is over:
    nothing hides it.
    """

    def __init__(self, engine: Engine, send: Callable[[], None]) -> None:
        super().__init__(engine)
        self._send, self._last = send, True

    def micro(self, *, last: bool) -> AbstractContextManager[object]:
        """Around forward and backward of a micro-batch."""
        self._last = last
        return super().micro(last=last)

    def backward(self, loss: Tensor) -> None:
        """Gradients of this rank alone; as many bytes as they are travel after the last of them."""
        super().backward(loss)
        if self._last:
            self._send()


def measure(asked: Asked) -> dict[str, Any]:
    """Per-step figures of every rank, by name and rank."""
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
        every = group.gather(figures)
        trained = sum(
            p.numel() * p.element_size() for p in state.policy.parameters() if p.requires_grad
        )
        return {
            "ranks": world.size,
            "batch_size": run.batch_size * run.accumulation,
            "gradient_bytes": trained,
            "threads": torch.get_num_threads(),
            "device": str(prepared.device),
            "steps": {name: [rank[name] for rank in every] for name in figures},
        }


def _real(
    state: TrainState, feed: Feed, run: Run, engine: Engine, steps: int
) -> dict[str, list[float]]:
    """Steps of the loop: seconds each, of them waiting for data; CPU seconds of the process."""
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
    """Updates with one batch in turn: as they are, with what they send at the end, and without; and
    the sending alone.

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
    found: dict[str, list[float]] = {f"{way}_{what}": [] for way in ways for what in ("s", "cpu_s")}
    for _ in range(steps):
        for name, work in ways.items():
            _timed(found, name, work, engine.group, engine.device)
    return found


def _sending(state: TrainState, bucket_mb: int, device: torch.device) -> Callable[[], None]:
    """Nothing but the gradients' way to the others, bucket by bucket as DDP sends them."""
    trained = [p for p in state.policy.parameters() if p.requires_grad][::-1]
    parts = gradient_buckets(trained, bucket_mb)
    buckets = [torch.zeros(sum(trained[i].numel() for i in part), device=device) for part in parts]

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
    figures = measure(Asked(**json.loads(sys.argv[1])))
    if read_world(os.environ).is_first:
        print(json.dumps(figures))
