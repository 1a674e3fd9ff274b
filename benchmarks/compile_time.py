"""CPU seconds of an update with and without `--compile`, what compiling takes, and how far the
results lie apart.

    python benchmarks/compile_time.py [--policies=act,diffusion,multi_task_dit,vqbet] [--rounds=7]
    [--steps=3]
                                      [--out=benchmarks/results/compile.json]

On the CPU, one thread. Two copies of a policy, equal and with one batch, take updates in turn, so
that other programs of the machine meet both. Each policy is measured twice in a process of its own:
first with torch's cache of compiled code empty, then with what the first has left there. Sizes are
such that an update takes less than two seconds.

gradients_apart: the norm of the difference between both copies' gradients, by their norm. Rounding
alone moves some: a ReLU whose input lies within rounding of zero takes the other side. What that
makes is told beside it, as
gradients_moved: the same between the policy as written and itself with every number of the batch
moved to the next float.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from kata.dist.engine import Engine
from kata.dist.process_group import ProcessGroup
from kata.run import Run
from kata.train.model.compile import compile_blocks, uncompiled
from kata.update.state import TrainState, build_state
from kata.update.step import update, weighted
from step_time import RandomBatch, make_batch, make_run

CASES: dict[str, dict[str, Any]] = {
    "act": {"batch": 2, "height": 240, "width": 320, "options": {}},
    "diffusion": {"batch": 8, "height": 96, "width": 96, "options": {"down_dims": (128, 256, 512)}},
    "multi_task_dit": {"batch": 1, "height": 240, "width": 320, "options": {"n_obs_steps": 1}},
    "vqbet": {"batch": 4, "height": 96, "width": 96, "options": {"n_vqvae_training_steps": 1}},
}
"""One camera each; what is not said here is as by default."""
WAYS = ("written", "compiled")


def measure(policy: str, rounds: int, steps: int) -> dict[str, Any]:
    """One policy in this process."""
    case = argparse.Namespace(policy=policy, cameras=1, precision="no", **CASES[policy])
    run, engines = (
        make_run(case),
        {way: Engine(ProcessGroup(), torch.device("cpu")) for way in WAYS},
    )
    states = {way: build_state(run, engine) for way, engine in engines.items()}
    torch.manual_seed(0)
    batch = make_batch(run, torch.device("cpu"))
    for way, engine in engines.items():
        engine.begin(states[way].policy, states[way].optimizer)
        _update(
            states[way], batch, run, engine
        )  # as written: VQ-BeT's blocks are at work from the second update on
    blocks = compile_blocks(states["compiled"].policy)
    losses, gradients, first_s = {}, {}, {}
    for way in WAYS:
        began_s, began_cpu_s = time.perf_counter(), _cpu_s()
        losses[way], gradients[way] = _gradients(states[way], batch, run)
        first_s[way] = time.perf_counter() - began_s, _cpu_s() - began_cpu_s
    _, moved = _gradients(states["written"], _moved(batch), run)
    seconds: dict[str, list[float]] = {way: [] for way in WAYS}
    for number in range(rounds + 1):
        for way in WAYS if number % 2 else WAYS[::-1]:
            seconds[way].append(_updates(states[way], batch, run, engines[way], steps))
    # The first round made the moments' memory.
    update_s = {way: statistics.median(values[1:]) for way, values in seconds.items()}
    return {
        **{f"{way}_update_cpu_s": update_s[way] for way in WAYS},
        "ratio": update_s["compiled"] / update_s["written"],
        "ratios": [
            c / w for c, w in zip(seconds["compiled"][1:], seconds["written"][1:], strict=True)
        ],
        "compiling_s": first_s["compiled"][0] - first_s["written"][0],
        "compiling_cpu_s": first_s["compiled"][1] - first_s["written"][1],
        "blocks": len(blocks),
        "uncompiled": uncompiled(blocks),
        "loss_apart": abs(losses["compiled"] / losses["written"] - 1),
        "gradients_apart": _apart(gradients["compiled"], gradients["written"]),
        "gradients_moved": _apart(moved, gradients["written"]),
    }


def _update(state: TrainState, batch: RandomBatch, run: Run, engine: Engine) -> None:
    update(state, batch, run, engine)  # pyright: ignore[reportArgumentType]


def _updates(state: TrainState, batch: RandomBatch, run: Run, engine: Engine, steps: int) -> float:
    """Median CPU seconds of an update."""
    found: list[float] = []
    for _ in range(steps):
        began_s = time.process_time()
        _update(state, batch, run, engine)
        found.append(time.process_time() - began_s)
    return statistics.median(found)


def _gradients(state: TrainState, batch: RandomBatch, run: Run) -> tuple[float, dict[str, Tensor]]:
    """Loss and gradients of the batch, with dropout drawn from one seed; the gradients are taken
    away.
    """
    torch.manual_seed(run.seed)
    total, _ = weighted(state.policy(batch.micros[0], **batch.draws[0]), batch.weights)
    total.backward()
    found = {key: p.grad for key, p in state.policy.named_parameters() if p.grad is not None}
    state.optimizer.zero_grad(set_to_none=True)
    return total.item(), found


def _moved(batch: RandomBatch) -> RandomBatch:
    """Every number of the observations and actions moved to the next float."""
    micro = {
        key: value.nextafter(torch.tensor(torch.inf)) if value.is_floating_point() else value
        for key, value in batch.micros[0].items()
    }
    return RandomBatch([micro], batch.draws, batch.weights)


def _apart(ours: dict[str, Tensor], theirs: dict[str, Tensor]) -> float:
    """The norm of the difference by the norm."""
    assert ours.keys() == theirs.keys()
    between = sum((ours[key] - theirs[key]).double().square().sum() for key in theirs)
    return math.sqrt(between / sum(value.double().square().sum() for value in theirs.values()))


def _cpu_s() -> float:
    """CPU seconds of this process and of the compilers that it started."""
    times = os.times()
    return times.user + times.system + times.children_user + times.children_system


def _measured(policy: str, asked: argparse.Namespace) -> dict[str, Any]:
    """A policy's figures from two processes; what compiling took is told of both."""
    both: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="kata_compile_") as cache:
        env = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": cache, "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        command = [
            sys.executable,
            __file__,
            f"--one={policy}",
            f"--rounds={asked.rounds}",
            f"--steps={asked.steps}",
        ]
        for _ in range(2):
            done = subprocess.run(
                command,
                env={**env, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"},
                stdout=subprocess.PIPE,
                check=True,
            )
            both.append(json.loads(done.stdout.splitlines()[-1]))
    cold, warm = both
    again = {f"{name}_from_cache": warm[name] for name in ("compiling_s", "compiling_cpu_s")}
    return {"case": {**CASES[policy], "cameras": 1}, **cold, **again, "second_process": warm}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--policies", type=lambda text: text.split(","), default=[*CASES])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--one", choices=CASES, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args()
    if asked.one:
        print(json.dumps(measure(asked.one, asked.rounds, asked.steps)))
        return
    result: dict[str, Any] = {
        "command": shlex.join(["python", "benchmarks/compile_time.py", *sys.argv[1:]]),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, 1 thread used",
        "torch": torch.__version__,
        "policies": {},
    }
    for policy in asked.policies:
        result["policies"][policy] = found = _measured(policy, asked)
        print(
            f"{policy:16} {found['written_update_cpu_s']:.3f} s, compiled "
            f"{found['compiled_update_cpu_s']:.3f} s "
            f"({found['ratio']:.2f}); compiling {found['compiling_cpu_s']:.0f} CPU s, "
            f"from the cache {found['compiling_cpu_s_from_cache']:.0f}",
            flush=True,
        )
        if asked.out:
            asked.out.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
