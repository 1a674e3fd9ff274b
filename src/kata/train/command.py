"""`kata train` on one rank or many: the ranks meet, train, and rank 0 says what came out."""

from __future__ import annotations

import os

from kata.dist.process_group import join
from kata.dist.world import read_world
from kata.run import Run
from kata.train.model.device import rank_device
from kata.train.stopping import STOPPED
from kata.train.summary import summary
from kata.train.trainer import train
from kata.units import duration_s


def train_and_tell(run: Run, notes: list[str], command: str) -> int:
    """The exit status: 0 done, 85 asked to stop and saved."""
    world = read_world(os.environ)
    with join(world, rank_device(run.policy.device, world), duration_s(run.dist_timeout)) as team:
        trained = train(run, notes=notes, command=command, team=team)
        team.alone(lambda: print(summary(run, trained), end=""))
    return 0 if trained.stopped is None else STOPPED
