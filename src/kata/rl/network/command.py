"""`kata rl learn` and `kata rl act`."""

from __future__ import annotations

from collections.abc import Sequence

from kata import log
from kata.rl.network.options import resolve_act, resolve_learn
from kata.rl.network.wire import library
from kata.train.stopping import STOPPED
from kata.units import count_text


def learn(args: Sequence[str]) -> int:
    """Learn from actors elsewhere; return the exit status: 0 done, 85 asked to stop and saved."""
    options, run = resolve_learn(args)
    for name in ("uvicorn", "starlette"):
        library(name)
    from kata.rl.network.learn import NetworkLearner
    from kata.rl.trainer import train_rl

    log.outlive_the_terminal()
    trained = train_rl(run, lambda session: NetworkLearner(session, options).go())
    counts = trained.counts
    print(
        f"{trained.folder}: {count_text(counts.step)} steps, {count_text(counts.episodes)} "
        f"episodes, {count_text(counts.updates)} updates"
    )
    if trained.stopped is not None:
        print(f"stopped ({trained.stopped}) and saved; continue it: {trained.command}")
        return STOPPED
    print(f"check it: kata rl replay {trained.folder}")
    return 0


def act(args: Sequence[str]) -> int:
    """Act for a learner elsewhere, and return the exit status: 0 done, 85 asked to stop."""
    options = resolve_act(args)
    library("httpx")
    from kata.rl.network.act import act_for_learner

    log.outlive_the_terminal()
    acted = act_for_learner(options)
    print(
        f"actor {options.rl.name}: {count_text(acted.episodes)} episodes, "
        f"{count_text(acted.steps)} steps"
    )
    if acted.waiting:
        print(
            f"{acted.waiting} episodes wait in {options.output_dir}/spool; the same command sends "
            "them"
        )
    return 0 if acted.stopped is None else STOPPED
