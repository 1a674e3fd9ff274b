"""Evaluation of a checkpoint in a separate process, so that training continues meanwhile.

All episodes:
    python -m kata.eval.env_worker <checkpoint folder> <options.json> <result.json>
The share of one rank:
    python -m kata.eval.env_worker <checkpoint folder> <options.json> <tally.json> <rank> <ranks>
The sum of all shares:
    python -m kata.eval.env_worker --sum <result.json> <tally.json> ...

options.json holds the options of `kata eval` without the policy's path. The written file's folder
serves as output_dir, and holds the videos of all shares when they are summed. A file appears whole
or not at all. A result is the content of eval.json, with `strips`, the name of a file of frames per
video (npz). A result or tally is {"error": message} if the user can correct the cause; the exit
status is 2 then.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from kata import log
from kata.config import assign, decode, encode, read_config
from kata.errors import ConfigError, KataError
from kata.eval.command import run_share
from kata.eval.options import EvalRun
from kata.eval.result import Result
from kata.eval.shares import read_tally, sum_up
from kata.eval.video import read_strip
from kata.files import write_json

STRIPS = "strips.npz"


def main(args: Sequence[str]) -> int:
    """Evaluate, write the result or the error, and return the exit status."""
    log.configure()
    match list(args):
        case ["--sum", target, *tallies] if tallies:
            work = partial(_summed, tallies)
        case [checkpoint, options, target]:
            work = partial(_evaluated, checkpoint, Path(options))
        case [checkpoint, options, target, rank, ranks]:
            work = partial(_played, checkpoint, Path(options), int(rank), int(ranks))
        case _:
            print(
                "usage: python -m kata.eval.env_worker CHECKPOINT OPTIONS.json RESULT.json",
                file=sys.stderr,
            )
            return 2
    path = Path(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_json(path, work(path.parent), allow_nan=False)
    except KataError as error:
        print(f"kata: {error}", file=sys.stderr)
        write_json(path, {"error": str(error)})
        return 2
    return 0


def _evaluated(checkpoint: str, options: Path, folder: Path) -> dict[str, Any]:
    return _told(sum_up([run_share(_asked(checkpoint, options), folder)], folder), folder)


def _played(checkpoint: str, options: Path, rank: int, ranks: int, folder: Path) -> dict[str, Any]:
    run = _asked(checkpoint, options)
    return encode(run_share(run, folder, run.eval.share(rank, ranks)))


def _summed(tallies: Sequence[str], folder: Path) -> dict[str, Any]:
    return _told(sum_up([read_tally(Path(path)) for path in tallies], folder), folder)


def _asked(checkpoint: str, options: Path) -> EvalRun:
    given = read_config(options)
    if "env" not in given:
        raise ConfigError(
            f"{options}: has no env",
            rule="the options of `kata eval`",
            remedy="add env with its type",
        )
    assign(given, "policy.path", checkpoint)
    return decode(EvalRun, given)


def _told(result: Result, folder: Path) -> dict[str, Any]:
    return {**encode(result), "strips": _write_strips(result, folder)}


def _write_strips(result: Result, folder: Path) -> str | None:
    """One array uint8 (T, H, W, 3) per video, named 'episode_<number>'."""
    strips: dict[str, Any] = {
        f"episode_{e.episode}": np.stack(read_strip(folder / e.video))
        for e in result.episodes
        if e.video
    }
    if not strips:
        return None
    np.savez(folder / STRIPS, **strips)
    return STRIPS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
