"""`kata rl replay`: learn a run again from its journal, and compare weights."""

from __future__ import annotations

import logging
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from kata.errors import CheckpointError
from kata.eval.envs.registry import register_env, resolve_env
from kata.processors.tensors import read_tensors
from kata.rl.assembly import Parts, assemble_parts
from kata.rl.checkpoint import ALGORITHM, read_counts
from kata.rl.episodes.journal import FOLDER, Journal
from kata.rl.learner import Learner
from kata.rl.trainer import read_run
from kata.train.checkpoint.folder import home_of, newest_whole
from kata.train.checkpoint.manifest import MODEL, PRETRAINED
from kata.train.checkpoint.run_lock import FolderLock

_log = logging.getLogger(__name__)


def learn_again(folder: Path) -> list[str]:
    """Learn a run's newest checkpoint again, from new weights and the run's journal alone.

    Returns:
        Names of the tensors that differ from the checkpoint's; empty where all are equal bit for
        bit.

    Raises:
        CheckpointError: the folder holds no run or no checkpoint, or the journal lacks episodes
            of it.
    """
    run = read_run(folder)
    source, _ = newest_whole(home_of(folder))
    if source is None:
        raise CheckpointError(
            f"{folder}: no checkpoint",
            rule="a replay is compared with the newest checkpoint",
            remedy="wait for the first checkpoint (--save_freq)",
        )
    spec = resolve_env(run.env)
    register_env(spec)
    with ExitStack() as stack:
        stack.enter_context(FolderLock(folder))  # nobody writes what is read
        parts = assemble_parts(run, spec, stack)
        journal = Journal(folder / FOLDER, parts.schema)
        counts = read_counts(source)
        journal.refuse_shorter(counts.episodes, source.name)
        parts.take_demos()
        _log.info("%d episodes, %d updates", counts.episodes, counts.updates)
        learner = parts.learner
        for entry in journal.entries[: counts.episodes]:
            _update_to(learner, entry.updates)
            learner.admit(journal.read(entry.episode))
        _update_to(learner, counts.updates)
    return _differences(parts, source)


def _update_to(learner: Learner, updates: int) -> None:
    while learner.sac.updates < updates:
        learner.update()


def _differences(parts: Parts, source: Path) -> list[str]:
    own = {**parts.acting.policy.state_dict(), **parts.learner.sac.state_dict()}
    key_map = parts.acting.policy.key_map()
    names = {name: key_map.aliases.get(name, name) for name in own}
    kept: dict[str, Tensor] = {
        **read_tensors(source / PRETRAINED / MODEL),
        **read_tensors(source / ALGORITHM / MODEL),
    }
    return [name for name, value in own.items() if not torch.equal(value.cpu(), kept[names[name]])]
