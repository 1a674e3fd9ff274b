"""Work of ranks in the tests, by name, so that another process can call it."""

from __future__ import annotations

import copy
import importlib
import json
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import torch

import kata.train.trainer
from kata.bench.scale.scale_worker import Asked, measure_rank
from kata.cli import main
from kata.dist.process_group import join
from kata.dist.shard import Sharded
from kata.dist.world import read_world
from kata.run import resolve_run
from kata.train import train
from kata.train.loop import update


def train_with_long_work(seconds: float, args: list[str]) -> int:
    """Rank 0 takes this long before the first step, and again for the first checkpoint."""
    plain = kata.train.trainer.run_folder

    def late(run: Any) -> Path:
        time.sleep(seconds)
        return plain(run)

    kata.train.trainer.run_folder = late
    return main(["train", *args])


def train_runs(*runs: list[str]) -> int:
    """Several runs one after the other: ranks are started once."""
    world = read_world(os.environ)
    with join(world, torch.device("cpu"), 120.0) as group:
        for args in runs:
            run, notes = resolve_run(args, world.size)
            train(run, notes=notes, group=group)
    return 0


def train_until(step: int, what: str, rank: int, args: list[str]) -> int:
    """At this step something happens to this rank."""
    import kata.train.loop

    def watched(state: Any, *parts: Any) -> Any:
        if state.step == step and os.environ["RANK"] == str(rank):
            if what == "raise":
                raise ValueError("the third wheel is loose")
            os.kill(os.getpid(), getattr(signal, what))
        return update(state, *parts)

    kata.train.loop.update = watched
    return main(["train", *args])


def train_with_full_memory(step: int, rank: int, args: list[str]) -> int:
    """This rank is out of memory once, in the last micro-batch of a step."""
    from kata.update import step as step_module

    real, seen = step_module.weighted, []

    def crowded(*parts: Any) -> Any:
        seen.append(None)
        if len(seen) == step and os.environ["RANK"] == str(rank):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")
        return real(*parts)

    step_module.weighted = crowded
    return main(["train", *args])


def evaluating_with(python: str, args: list[str]) -> int:
    """`kata train` where this stands for the interpreter of processes beside it, and temporary
    files lie there too.
    """
    sys.executable, tempfile.tempdir = python, os.path.dirname(python)
    return main(["train", *args])


def with_environment(changed: dict[str, str], args: list[str]) -> int:
    """`kata train` as if launched with other variables."""
    os.environ.update(changed)
    return main(["train", *args])


def train_from_hub(environment: dict[str, str], args: list[str]) -> int:
    """`kata train` where the Hub is another one, which its library has read from the environment
    already.
    """
    os.environ.update(environment)
    importlib.reload(huggingface_hub.constants)
    return main(["train", *args])


def measure_scaling(asked: dict[str, Any]) -> int:
    """Measure as a rank of `kata bench scale`, and write down what rank 0 tells."""
    told = measure_rank(Asked(**asked))
    if os.environ["RANK"] == "0":
        print(json.dumps(told))
    return 0


def train_compiled(args: list[str]) -> int:
    """`kata train --compile=true` with the graphs of the compiler and no generated code; 3 where
    there are none.
    """
    from torch._dynamo.utils import counters

    from kata.train.model import compile

    compile.HOW = {"backend": "aot_eager"}
    status = main(["train", *args, "--compile=true"])
    return status or (0 if counters["stats"]["unique_graphs"] >= 2 else 3)


def train_runs_with_deepspeed(*runs: list[str]) -> int:
    """The same where DeepSpeed would otherwise compile its exchange between processes of a
    machine.
    """
    without_compiled_exchange()
    return train_runs(*runs)


def train_with_deepspeed_and_full_memory(step: int, rank: int, args: list[str]) -> int:
    """`train_with_full_memory` in an environment of `train_runs_with_deepspeed`."""
    without_compiled_exchange()
    return train_with_full_memory(step, rank, args)


def without_compiled_exchange() -> None:
    """Keep DeepSpeed from compiling an exchange through shared memory."""
    import deepspeed.ops

    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def shard_pi(*cases: tuple[str, dict[str, Any]]) -> int:
    """Compare gradients and chunks of tiny policies in shards with those of whole ones."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tools/peer"))
    pi_cases = importlib.import_module("pi_cases")
    world = read_world(os.environ)
    with join(world, torch.device("cpu"), 120.0) as group:
        for name, options in cases:
            if name == "pi0_fast":
                fast = importlib.import_module("policy_pi0_fast")
                case = fast.FastCase(options=options, ends=True)
                batch = {**pi_cases.batch(case), **fast.tokens(case)}
                compare_shards(group, batch, {}, fast.build_own(case), case)
                continue
            case = pi_cases.Case(options=options)
            times = torch.tensor(pi_cases.SHARES)[:, None]
            draws = {"noise": pi_cases.noise(case), "time": times}
            policy = pi_cases.Sides(name, "").build_own(case)
            compare_shards(group, pi_cases.batch(case), draws, policy, case)
    return 0


def shard_smolvla(*names: str) -> int:
    """Compare shards as `shard_pi` does, for SmolVLA's cases of these names."""
    sys.path.insert(0, str(Path(__file__).parents[2] / "tools/peer"))
    smolvla = importlib.import_module("policy_smolvla")
    world = read_world(os.environ)
    with join(world, torch.device("cpu"), 120.0) as group:
        for name in names:
            case = smolvla.LIVE[name]
            draws = {"noise": smolvla.noise(case), "time": torch.tensor(smolvla.SHARES)[:, None]}
            compare_shards(group, smolvla.batch(case), draws, smolvla.build_own(case), case)
    return 0


def shard_spliced(*names: str) -> int:
    """Compare shards as `shard_pi` does, for policies whose comparison gives a training sample.

    A name may end with that of a case, `wall_x/words`.
    """
    sys.path.insert(0, str(Path(__file__).parents[2] / "tools/peer"))
    world = read_world(os.environ)
    with join(world, torch.device("cpu"), 120.0) as group:
        for name in names:
            policy_name, _, variant = name.partition("/")
            module = importlib.import_module(f"policy_{policy_name}")
            case = module.GOLDEN[variant] if variant else module.CHECKPOINT
            policy, batch, draws = module.training_sample(case)
            compare_shards(group, batch, draws, policy, case)
    return 0


def compare_shards(group: Any, batch: Any, draws: Any, policy: Any, case: Any) -> None:
    """Rank 0 computes the first sample, rank 1 the others."""
    # 1. The whole policy on all samples.
    whole = copy.deepcopy(policy).train()
    (term,) = whole(batch, **draws).terms
    whole(batch, **draws).terms[term].total.backward()
    chunk = whole.predict_chunk(batch, **draws)
    # 2. The sharded policy on this rank's samples.
    engine = Sharded(group, torch.device("cpu"), copies=1, shards=group.world.size)
    engine.place(policy.train(), policy.shard_units())
    policy.runs_together = True
    engine.begin(policy, torch.optim.SGD(policy.parameters()))
    part = slice(0, 1) if group.world.is_first else slice(1, None)
    with engine.micro(last=True):
        own = {key: value[part] for key, value in batch.items()}
        loss = policy(own, **{key: value[part] for key, value in draws.items()})
        engine.backward(loss.terms[term].total)
    # 3. Both agree: bfloat16 has three digits.
    rtol = 5e-2 if case.options.get("dtype") == "bfloat16" else 1e-5
    for one, other in zip(policy.parameters(), whole.parameters(), strict=True):
        assert (one.grad is None) == (other.grad is None)
        if one.grad is not None:
            given, wanted = engine.full(one.grad).float(), other.grad.float()
            torch.testing.assert_close(
                given, wanted, rtol=0, atol=rtol * max(0.1, float(wanted.abs().max()))
            )
    # Ranks that predict other samples of theirs do not wait for each other for ever.
    policy.predict_chunk(own, **{key: value[part] for key, value in draws.items()})
    torch.testing.assert_close(policy.predict_chunk(batch, **draws), chunk, rtol=0, atol=rtol)
