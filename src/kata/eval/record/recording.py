"""`kata data demo` and `kata data replay`: datasets that come out of a simulation."""

from __future__ import annotations

import logging
from contextlib import AbstractContextManager
from pathlib import Path

from kata.data.edit.staged import new_folder
from kata.eval.options import DemoOptions, ReplayOptions
from kata.log import counting

_log = logging.getLogger(__name__)


def demo(options: DemoOptions) -> int:
    """Record demonstrations of the built-in task."""
    from kata.eval.record.demonstrations import Board, record

    with _whole(options.root) as folder, counting("episodes recorded") as progress:
        record(
            folder,
            num_episodes=options.episodes,
            seed=options.seed,
            codec=options.codec,
            board=Board(options.targets, options.picture, options.relative),
            progress=progress,
        )
    print(f"{options.episodes} episodes in {options.root}")
    return 0


def replay_command(options: ReplayOptions) -> int:
    """Replay joint trajectories in the ALOHA simulation."""
    from kata.eval.envs.registry import ENVIRONMENTS, register_env

    register_env(ENVIRONMENTS["aloha"])
    from kata.eval.record.replay import replay_aloha

    with _whole(options.root) as folder, counting("episodes replayed") as progress:
        replay_aloha(
            Path(options.trajectories),
            folder,
            task=options.task,
            codec=options.codec,
            progress=progress,
        )
    print(f"replayed into {options.root}")
    return 0


def _whole(root: str) -> AbstractContextManager[Path]:
    """Return a folder to fill that becomes `root` when all is recorded: a killed command can be
    repeated as it is.
    """
    return new_folder(Path(root), inputs=(), need_bytes=0, say=_log.warning)
