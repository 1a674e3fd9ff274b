"""`kata rl`: learn by acting, and say what came out."""

from __future__ import annotations

import json
import shlex
from collections.abc import Sequence
from pathlib import Path

from kata import log
from kata.config import encode
from kata.rl.options import ExportRunOptions, ReplayRunOptions, resolve_rl
from kata.run.evaluation import EnvConfig
from kata.train.stopping import STOPPED
from kata.units import count_text


def main(args: Sequence[str]) -> int:
    """Train as these arguments say, print the summary, and return the exit status: 0 done, 85 asked
    to stop and saved.
    """
    run = resolve_rl(args)
    from kata.rl.trainer import RlTrained, train_rl

    log.outlive_the_terminal()
    trained: RlTrained = train_rl(run)
    made = trained.progress
    shares = {"success": made.success, "without help": made.own_success}
    told = "".join(f", {name} {x:.0%}" for name, x in shares.items() if x is not None)
    counts = trained.counts
    print(
        f"{trained.folder}: {count_text(counts.step)} steps, {count_text(counts.episodes)} "
        f"episodes, {count_text(counts.updates)} updates"
    )
    print(f"last {run.takeover.recent} episodes: return {trained.total_reward:.4g}{told}")
    if trained.stopped is not None:
        print(f"stopped ({trained.stopped}) and saved; continue it: {trained.command}")
        return STOPPED
    print(f"evaluate it: {evaluation_line(run.env, str(trained.folder))}")
    return 0


def learn_again_command(options: ReplayRunOptions) -> int:
    """Learn a run again from its journal; return 0 where its weights came out equal, else 1."""
    from kata.rl.replay import learn_again

    folder = Path(options.run).expanduser()
    different = learn_again(folder)
    if different:
        print(f"{folder}: {len(different)} tensors differ from the newest checkpoint")
        print("  " + "\n  ".join(different[:10]))
        return 1
    print(f"{folder}: the journal gives the weights of the newest checkpoint, bit for bit")
    return 0


def export_command(options: ExportRunOptions) -> int:
    """Export a run's journal as a dataset; return the exit status 0."""
    from kata.rl.export import export_journal

    found = export_journal(options)
    rest = f"; {count_text(found.left_out)} episodes left out" if found.left_out else ""
    print(
        f"{found.folder}: {count_text(found.episodes)} episodes, {count_text(found.steps)} "
        f"frames{rest}"
    )
    return 0


def evaluation_line(env: EnvConfig, folder: str) -> str:
    """Return the command that evaluates a run in the environment that it has learned in."""
    words = ["kata", "eval", f"--policy.path={folder}", f"--env.type={env.type}"]
    usual = encode(EnvConfig(type=env.type))
    for name, value in encode(env).items():
        if value != usual[name]:
            text = value if isinstance(value, str) else json.dumps(value)
            words.append(f"--env.{name}={text}")
    return shlex.join(words)
