"""`kata eval`: a checkpoint and an environment in, eval.json and videos out."""

from __future__ import annotations

import dataclasses
import datetime
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kata.errors import CheckpointError, ConfigError
from kata.eval.options import EvalRun, resolve_eval

if TYPE_CHECKING:
    from kata.eval.result import Result
    from kata.eval.shares import Tally

RESULT = "eval.json"


def main(args: Sequence[str]) -> int:
    """Evaluate as these arguments say, print the summary and return the exit status.

    Raises: KataError for what the user can correct; ConfigError also when every single episode
        crashed.
    """
    run = resolve_eval(args)
    from kata.eval.result import result_summary

    folder = result_folder(run)
    result = run_eval(run, folder, shown=True)
    print(result_summary(result, folder), end="")
    if result.num_crashed == result.num_episodes:
        crash = result.episodes[0].crash
        assert crash is not None
        raise ConfigError(
            f"{result.env['id']}: every episode crashed ({crash.error})",
            rule="at least one episode goes to its end",
            remedy="check --env.kwargs, and run the environment alone",
        )
    return 0


def result_folder(run: EvalRun) -> Path:
    """Return the folder for the result.

    Raises:
        CheckpointError: it holds an evaluation already.
    """
    now = datetime.datetime.now()
    folder = Path(
        run.output_dir or f"outputs/eval/{now:%Y-%m-%d}/{now:%H-%M-%S}_{run.env.type}"
    ).expanduser()
    taken = [name for name in (RESULT, "videos") if (folder / name).exists()]
    if taken or (folder.exists() and not folder.is_dir()):
        raise CheckpointError(
            f"output_dir={folder}: holds {' and '.join(taken) or 'no folder'} already",
            rule="each evaluation gets its own folder",
            remedy="choose another --output_dir, or delete that one",
        )
    return folder


def run_eval(run: EvalRun, folder: Path, *, shown: bool = False) -> Result:
    """Load the policy, evaluate it, write `eval.json` and `videos/` to `folder`; `shown` tells
    how it goes.
    """
    from kata.eval.shares import sum_up

    result = sum_up([run_share(run, folder, shown=shown)], folder)
    folder.mkdir(parents=True, exist_ok=True)
    result.write(folder / RESULT)
    return result


def run_share(
    run: EvalRun, folder: Path, share: range | None = None, *, shown: bool = False
) -> Tally:
    """Load the policy and play the episodes of `share`, None for all; films go to `folder`.

    The environment is looked up before the policy is loaded.
    """
    from kata.eval.env_check import refuse_unknown_renames
    from kata.eval.envs.registry import inspect, register_env, resolve_env

    spec = resolve_env(run.env)
    register_env(spec)
    if run.rename_map:
        refuse_unknown_renames(run.rename_map, inspect(spec))
    import torch

    from kata.eval.rollout_policy import load_for_acting
    from kata.eval.runner import play

    # Full precision, so that a batch of many gives what a batch of one gives.
    torch.backends.cudnn.allow_tf32 = False
    policy = run.policy
    acting = load_for_acting(
        policy.path, policy.device, policy.pretrained_revision, policy.changes()
    )
    if run.rename_map:
        acting = dataclasses.replace(
            acting, renamed={new: old for old, new in run.rename_map.items()}
        )
    done = _tell if shown else None
    return play(acting, spec, run.eval, seed=run.seed, folder=folder, done=done, share=share)


def _tell(done: int, episodes: int, successes: int) -> None:
    print(f"kata: {done} of {episodes} episodes, {successes} succeeded", file=sys.stderr)
