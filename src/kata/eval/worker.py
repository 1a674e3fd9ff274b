"""Evaluates a checkpoint in a process of its own, so that a training run goes on beside it.

python -m kata.eval.worker <checkpoint folder> <options.json> <result.json>

options.json holds the options of `kata eval` without the policy's path; the result's folder serves as output_dir.
The result appears whole or not at all: what eval.json holds, with `strips`, the name of a file of frames per
video (numpy's npz); or {"error": message}, with exit status 2.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from kata import log
from kata.config import assign, decode, encode, read_config
from kata.errors import ConfigError, KataError
from kata.eval.command import run_eval
from kata.eval.film import read_strip
from kata.eval.options import EvalRun
from kata.eval.result import Result, write_json

STRIPS = "strips.npz"


def main(args: Sequence[str]) -> int:
    """Evaluate, write the result or the error, and return the exit status."""
    log.configure()
    if len(args) != 3:
        print("usage: python -m kata.eval.worker CHECKPOINT OPTIONS.json RESULT.json", file=sys.stderr)
        return 2
    checkpoint, options, target = args[0], Path(args[1]), Path(args[2])
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        write_json(target, _evaluated(checkpoint, options, target.parent))
    except KataError as error:
        print(f"kata: {error}", file=sys.stderr)
        write_json(target, {"error": str(error)})
        return 2
    return 0


def _evaluated(checkpoint: str, options: Path, folder: Path) -> dict[str, Any]:
    given = read_config(options)
    if "env" not in given:
        raise ConfigError(f"{options}: has no env", rule="the options of `kata eval`", remedy="add env with its type")
    assign(given, "policy.path", checkpoint)
    result = run_eval(decode(EvalRun, given), folder)
    return {**encode(result), "strips": _write_strips(result, folder)}


def _write_strips(result: Result, folder: Path) -> str | None:
    """One array uint8 (T, H, W, 3) per video, named 'episode_<number>'."""
    strips: dict[str, Any] = {
        f"episode_{e.episode}": np.stack(read_strip(folder / e.video)) for e in result.episodes if e.video
    }
    if not strips:
        return None
    np.savez(folder / STRIPS, **strips)
    return STRIPS


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
