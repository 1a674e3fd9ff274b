"""`kata train` on one rank or many: the ranks meet, train, and rank 0 says what came out."""

from __future__ import annotations

import os

from kata import log
from kata.dist.process_group import join
from kata.dist.world import read_world
from kata.run import Run
from kata.run.data_checks import check_local_data
from kata.run.outputs import check_outputs
from kata.train.model.device import rank_device
from kata.train.stopping import STOPPED
from kata.train.summary import report_line, run_summary, upload_line
from kata.train.trainer import LOG, Accept, Trained, accept_any, train
from kata.units import duration_s


def train_and_tell(run: Run, notes: list[str], command: str, accept: Accept = accept_any) -> int:
    """Train, and return the exit status: 0 done, 85 asked to stop and saved.

    accept: see `train`.
    """
    log.outlive_the_terminal()
    world = read_world(os.environ)
    with join(world, rank_device(run.policy.device, world), duration_s(run.dist_timeout)) as group:
        if world.size > 1:  # a single rank has looked before it imported torch
            check_local_data(run)
            group.on_rank0(lambda: check_outputs(run))  # other machines need not see the folder

        def tell(trained: Trained) -> None:
            _say(run_summary(run, trained))

        trained = train(run, notes=notes, command=command, group=group, tell=tell, accept=accept)
        group.on_rank0(lambda: _close(run, trained))
    return 0 if trained.stopped is None else STOPPED


def _close(run: Run, trained: Trained) -> None:
    with log.kept_in(trained.folder / LOG):
        _say(report_line(trained))
        _say(upload_line(run, trained))


def _say(text: str) -> None:
    """Print lines, and keep them in the run's log file."""
    if text:
        print(text, end="", flush=True)
        log.SHOWN.info(text.rstrip("\n"))
