"""The part that scripts share which train a tiny policy on the built-in task and evaluate it."""

from __future__ import annotations

import argparse
import resource
import sys
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
sys.path += [str(Path(__file__).parent), str(REPOSITORY / "tools/peer")]

from train_and_eval import RESULTS, SEED, outcome, read, write  # noqa: E402

from kata.cli import main as kata  # noqa: E402
from kata.eval.command import run_eval  # noqa: E402
from kata.eval.options import resolve_eval  # noqa: E402
from kata.eval.record.demonstrations import record  # noqa: E402

HELD_OUT = 500_000
"""First seed of the episodes of a final figure. Options are chosen by episodes from SEED on."""


def arguments(policies: tuple[str, ...], steps: int) -> argparse.Namespace:
    """Return what the command line asks for, after recording demonstrations in its folder."""
    parser = argparse.ArgumentParser()
    parser.add_argument("policy", choices=policies)
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, default=steps)
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--train", action="append", default=[], help="a further flag")
    parser.add_argument("--name", default="")
    parser.add_argument(
        "--final", action="store_true", help="evaluate by held-out seeds, and keep the result"
    )
    asked = parser.parse_args()
    asked.name = asked.name or f"{asked.policy}_reach"
    asked.work.mkdir(parents=True, exist_ok=True)
    if not (asked.work / "data").exists():
        record(asked.work / "data", num_episodes=200)
    return asked


def reach(asked: argparse.Namespace, given: list[str], executed: int) -> None:
    """Train unless that is done, evaluate, and say or keep the result.

    Args:
        asked: see `arguments`.
        given: options of the training run.
        executed: actions of a chunk that are executed.
    """
    work: Path = asked.work
    run, done = work / asked.name, work / asked.name / "trained.json"
    given = [*given, *asked.train]
    if not done.exists():
        again = ["--resume=true"] if run.exists() else []
        if kata(["train", *given, *again, f"--output_dir={run}"]):
            sys.exit(1)
        spent = resource.getrusage(resource.RUSAGE_SELF)
        trained = {
            "flags": [flag for flag in given if str(work) not in flag],
            "steps": asked.steps,
            "cpu_seconds": round(spent.ru_utime + spent.ru_stime, 1),
        }
        write(done, trained)
    first = HELD_OUT if asked.final else SEED
    target = run / f"eval_{first}_{executed}"
    if not (target / "eval.json").exists():
        evaluation = [
            f"--policy.path={run}", "--env.type=kata", f"--seed={first}", "--eval.batch_size=25",
            f"--eval.n_episodes={asked.episodes}", "--eval.videos=0", "--policy.device=cpu",
            f"--policy.n_action_steps={executed}",
        ]  # fmt: skip
        run_eval(resolve_eval(evaluation), target, shown=True)
    trained = {**read(done, None), "executed_of_a_chunk": executed, "first_seed": first}
    found = outcome(asked.name, [read(target / "eval.json", None)], trained)
    if asked.final:
        write(RESULTS / f"{asked.name}.json", found)
    print(f"{asked.name}: {found['success_rate']:.0%}, {trained['cpu_seconds']} CPU seconds")
