"""Ready-made runs. `quickstart` records, trains and evaluates with this package alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from kata.config import Options, option
from kata.errors import DataError

_log = logging.getLogger(__name__)

QUICKSTART = (
    "--policy.type=act",
    "--policy.pretrained_backbone_weights=null",
    "--policy.chunk_size=15",
    "--policy.n_action_steps=7",
    "--policy.dim_model=128",
    "--policy.n_heads=4",
    "--policy.dim_feedforward=256",
    "--policy.n_encoder_layers=2",
    # The expert reaches every target in about one way, so a latent has nothing to encode.
    "--policy.use_vae=false",
    "--policy.push_to_hub=false",
    "--dataset.repo_id=kata/reach",
    "--dataset.eval_split=0.04",
    "--eval_steps=50",
    "--env.type=kata",
    "--env_eval_freq=0",
    "--env_eval_at_start=true",
    "--eval.n_episodes=50",
    "--max_eval_samples=256",
    "--log_freq=10",
    "--batch_size=16",
    "--num_workers=2",
    "--optimizer.lr=3e-4",
    "--policy.optimizer_lr_backbone=3e-4",
    # Without the decay to zero the policy still swings at the end, and succeeds half as often.
    "--scheduler.type=cosine_annealing_with_warmup",
    "--scheduler.num_warmup_steps=100",
)
"""A small ACT for the built-in task."""


def demonstrations(
    root: Path, episodes: int, progress: Callable[[int, int], None] | None = None
) -> Path:
    """Return the folder `root` with demonstrations of the built-in task, recorded if it is absent.

    The folder appears once all episodes are recorded. A killed recording leaves only a hidden
    folder, which the next one removes.
    """
    from kata.data.edit.staged import new_folder
    from kata.eval.record.demonstrations import record

    if root.exists():
        _require_recorded(root, episodes)
        return root
    with new_folder(root, inputs=(), need_bytes=0, say=_log.warning) as folder:
        record(folder, num_episodes=episodes, progress=progress)
    return root


def _require_recorded(root: Path, episodes: int) -> None:
    from kata.data import open_dataset

    remedy = f"delete {root} to have {episodes} recorded, or name another folder with --root"
    try:
        found = len(open_dataset("kata/reach", root=root).episodes.index)
    except DataError as error:
        raise DataError(
            f"{root} is there, but holds no dataset that can be read: {error.what}",
            rule=error.rule,
            remedy=remedy,
        ) from error
    if found != episodes:
        raise DataError(
            f"{root} holds {found} episodes",
            rule=f"{episodes} are wanted",
            remedy=f"{remedy}, or use these with --episodes={found}",
        )


@dataclass(frozen=True, kw_only=True)
class QuickstartOptions(Options):
    """Options of `kata quickstart`."""

    root: str = option(
        "data/reach",
        "Folder of the demonstrations; those that are there are used.",
        aliases=("dataset.root",),
    )
    output_dir: str = option("outputs/quickstart", "Folder of the run.")
    episodes: int = option(50, "Demonstrations to record.", least=2)
    steps: int = option(250, "Optimizer updates.", least=1)


def quickstart(options: QuickstartOptions) -> int:
    """Record demonstrations once, train, report, and return the exit status. A second start
    resumes.
    """
    from kata.log import counting
    from kata.run import resolve_run

    with counting("episodes recorded") as progress:
        folder = demonstrations(Path(options.root), options.episodes, progress)
    own = [f"--output_dir={options.output_dir}", f"--steps={options.steps}", "--resume=true"]
    run, notes = resolve_run([*QUICKSTART, f"--dataset.root={folder}", *own])
    from kata.train.command import train_and_tell

    return train_and_tell(run, notes, "kata quickstart")
