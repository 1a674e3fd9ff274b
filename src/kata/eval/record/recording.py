"""`kata data demo` and `kata data replay`: datasets that come out of a simulation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from kata.data.commands.options import option, resolve
from kata.errors import ConfigError
from kata.log import counting


@dataclass(frozen=True)
class DemoOptions:
    """Options of `kata data demo`."""

    root: str | None = option(
        None, "the folder to record into, absent or empty; may also stand first, without a name"
    )
    episodes: int = option(50, "how many demonstrations are kept")
    seed: int = option(0, "same seed, same dataset")
    codec: str = option("av1", "av1 or h264")


@dataclass(frozen=True)
class ReplayOptions:
    """Options of `kata data replay`."""

    root: str | None = option(
        None, "the folder to record into, absent or empty; may also stand first, without a name"
    )
    trajectories: str | None = option(None, "an .npz file of joint trajectories")
    task: str = option("transfer_cube", "transfer_cube or insertion")
    codec: str = option("av1", "av1 or h264")


def demo(args: Sequence[str]) -> int:
    """Record demonstrations of the built-in task."""
    options = resolve(DemoOptions, args, "kata data demo --root=<folder> [options]")
    if options is None:
        return 0
    if not options.root:
        raise ConfigError(
            "root: not given", rule="the demonstrations need a folder", remedy="add --root=<folder>"
        )
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


def replay(args: Sequence[str]) -> int:
    """Replay joint trajectories in the ALOHA simulation."""
    options = resolve(
        ReplayOptions, args, "kata data replay --root=<folder> --trajectories=<file>.npz [options]"
    )
    if options is None:
        return 0
    if not options.root or not options.trajectories:
        name, example = ("trajectories", "<file>.npz") if options.root else ("root", "<folder>")
        raise ConfigError(
            f"{name}: not given", rule="a replay needs both", remedy=f"add --{name}={example}"
        )
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
