"""A policy of a few numbers, with parameters that are frozen, never used, and used from some
step on.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from types import SimpleNamespace

import numpy as np
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from kata.dist.accelerate import AcceleratedDdp, AcceleratedShards
from kata.dist.engine import Ddp, Engine
from kata.dist.process_group import ProcessGroup, join
from kata.dist.shard import Sharded
from kata.dist.world import read_world
from kata.optim.build import build_optimizer
from kata.policies.base import ActState, KeyMap, Loss, ParamGroup, Policy, Term
from kata.run import FsdpConfig, resolve_run
from kata.update.state import TrainState
from kata.update.step import update
from kata.update.step_batch import StepBatch

STEPS, CHANGE = 8, 4
RATES = ("--optimizer.lr=0.05", "--optimizer.weight_decay=0.1")


def no_counts(batch: dict[str, Tensor]) -> dict[str, Tensor]:
    """The denominators of the toy follow from numbers of samples."""
    return {}


class Toy(Policy):
    def __init__(self, *, changes: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.config = SimpleNamespace(loss_counts=no_counts)
        self.changes, self.steps = changes, 0
        self.near, self.still, self.idle, self.late = (nn.Linear(3, 3) for _ in range(4))
        self.still.requires_grad_(False)
        self.norm = nn.BatchNorm1d(3)
        self.counted: list[Tensor] = []

    def forward(self, batch: dict[str, Tensor], **draws: Tensor) -> Loss:
        hidden = self.norm(self.still(self.near(batch["x"])))
        if self.changes and self.steps >= CHANGE:
            hidden = self.late(hidden.detach())
        error = hidden.square() * batch["real"][:, None]
        self.counted = [old + batch["x"].sum(0) for old in self.counted] or [batch["x"].sum(0)]
        return Loss({"error": Term(error.sum())}, {"error": error.detach().sum(1)})

    def step_sums(self) -> list[Tensor]:
        return self.counted

    def after_step(self, step: int, bad: Tensor) -> dict[str, Tensor]:
        self.steps, (total,), self.counted = step, self.counted, []
        return {"total": total.sum()}

    def predict_chunk(self, batch: dict[str, Tensor], **draws: Tensor) -> Tensor:
        raise NotImplementedError

    def act(self, batch: dict[str, Tensor], state: ActState) -> tuple[Tensor, ActState]:
        raise NotImplementedError

    def param_groups(self) -> list[ParamGroup]:
        return [ParamGroup("main", [p for p in self.parameters() if p.requires_grad])]

    def shard_units(self) -> list[nn.Module]:
        return [self.near]

    def key_map(self) -> KeyMap:
        return KeyMap()


def batches(rank: int, ranks: int, accumulation: int) -> list[StepBatch]:
    """Eight samples a step, of which some do not count: how many differs from rank to rank."""
    found: list[StepBatch] = []
    for step in range(STEPS):
        draw = torch.Generator().manual_seed(step)
        x, real = torch.randn(8, 3, generator=draw), (torch.arange(8) % 8 < 3 + step % 4).float()
        mine = slice(rank * 8 // ranks, (rank + 1) * 8 // ranks)
        size = 8 // ranks // accumulation
        micros = [
            {"x": a, "real": b}
            for a, b in zip(x[mine].split(size), real[mine].split(size), strict=True)
        ]
        weights, nothing = {"error": float(real.sum())}, [{} for _ in micros]
        found.append(
            StepBatch(micros, nothing, weights, np.arange(8), 0.0, 0.0, rank * accumulation)
        )
    return found


def trained(state: TrainState, engine: Engine, steps: list[StepBatch]) -> list[list[float]]:
    args = ["--dataset.repo_id=x", "--policy.type=act", "--optimizer.type=sgd", f"--steps={STEPS}"]
    run, _ = resolve_run(args)
    said: list[list[float]] = []
    state.optimizer = engine.begin(state.policy, state.optimizer)
    for batch in steps:
        losses, norm, _ = update(state, batch, run, engine)
        said.append([losses["loss"].item(), losses["total"].item(), norm.item()])
    return said


@dataclass(frozen=True)
class Case:
    """shards: ranks per copy of the weights, 1 for DDP. still_norm: batch norm counts nothing,
    as in eval mode.
    """

    shards: int = 1
    accumulation: int = 1
    changes: bool = False
    bf16: bool = False
    still_norm: bool = True
    adam: bool = False
    accelerated: bool = False


def made(engine: Engine, case: Case) -> TrainState:
    options = (
        ["--optimizer.type=adamw"]
        if case.adam
        else ["--optimizer.type=sgd", "--optimizer.momentum=0.9"]
    )
    run, _ = resolve_run(["--dataset.repo_id=x", "--policy.type=act", *options, *RATES])
    policy = Toy(changes=case.changes)
    if case.still_norm:
        vars(policy.norm)["training"] = False
    engine.place(policy, policy.shard_units())
    assert run.optimizer is not None
    norm = policy.norm
    statistics = (norm.running_mean, norm.running_var)
    optimizer = build_optimizer(policy.param_groups(), run.optimizer)
    return TrainState(
        0, policy, optimizer, statistics=tuple(s for s in statistics if s is not None)
    )


def compare(*cases: Case) -> int:
    """Several ranks against one; status 0 where they agree in every case."""
    with join(read_world(os.environ), torch.device("cpu"), 60.0) as group:
        for case in cases:
            print(case)
            _compare(group, case)
    return 0


def _engine(group: ProcessGroup, case: Case) -> Engine:
    device = torch.device("cpu")
    if case.shards > 1:
        mesh = {"copies": group.world.size // case.shards, "shards": case.shards}
        if case.accelerated:
            return AcceleratedShards(group, device, **mesh, cut=FsdpConfig())
        return Sharded(group, device, **mesh)
    ddp = AcceleratedDdp if case.accelerated else Ddp
    return ddp(group, device, bucket_mb=1, bf16=case.bf16, changes=case.changes)


def _compare(group: ProcessGroup, case: Case) -> None:
    world, engine, alone = (
        group.world,
        _engine(group, case),
        Engine(ProcessGroup(), torch.device("cpu")),
    )
    mine, whole = made(engine, case), made(alone, case)
    said = trained(mine, engine, batches(world.rank, world.size, case.accumulation))
    expected = trained(whole, alone, batches(0, 1, 1))
    theirs = whole.policy.state_dict()
    ours = {name: engine.full(tensor) for name, tensor in mine.policy.state_dict().items()}
    atol = 2e-2 if case.bf16 else 1e-6
    for name in ours if case.still_norm else ():
        torch.testing.assert_close(
            ours[name], theirs[name], rtol=0, atol=atol, msg=lambda m, n=name: f"{n}: {m}"
        )
    if case.still_norm:
        torch.testing.assert_close(
            torch.tensor(said), torch.tensor(expected), rtol=1e-5, atol=10 * atol
        )
    fresh = Toy(changes=case.changes).state_dict()
    untouched = ["still.weight", "idle.weight", *([] if case.changes else ["late.weight"])]
    assert all(torch.equal(ours[name], fresh[name]) for name in untouched), (
        "no gradient, no step, no decay"
    )
    for rank in group.gather({name: tensor.tolist() for name, tensor in ours.items()}):
        assert rank == {name: tensor.tolist() for name, tensor in ours.items()}, (
            "all ranks hold the same"
        )
    if case.shards > 1:
        held = sum(p.to_local().numel() for p in mine.policy.parameters() if isinstance(p, DTensor))
        assert held < sum(p.numel() for p in whole.policy.parameters()), "a rank holds a part"
