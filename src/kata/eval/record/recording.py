"""`kata data demo` and `kata data replay`: datasets that come out of a simulation."""

from __future__ import annotations

from pathlib import Path

from kata.eval.options import DemoOptions, ReplayOptions
from kata.log import counting


def demo(options: DemoOptions) -> int:
    """Record demonstrations of the built-in task."""
    from kata.eval.record.demonstrations import record

    with counting("episodes recorded") as progress:
        folder = record(
            options.root,
            num_episodes=options.episodes,
            seed=options.seed,
            codec=options.codec,
            progress=progress,
        )
    print(f"{options.episodes} episodes in {folder}")
    return 0


def replay(options: ReplayOptions) -> int:
    """Replay joint trajectories in the ALOHA simulation."""
    from kata.eval.envs.registry import ENVIRONMENTS, register

    register(ENVIRONMENTS["aloha"])
    from kata.eval.record.replay import replay_aloha

    with counting("episodes replayed") as progress:
        folder = replay_aloha(
            Path(options.trajectories),
            Path(options.root),
            task=options.task,
            codec=options.codec,
            progress=progress,
        )
    print(f"replayed into {folder}")
    return 0
