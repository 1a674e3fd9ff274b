"""Trains a tiny vision-language-action policy on the built-in task with two targets, and swaps the
sentences.

    nice python benchmarks/outcomes/two_targets.py POLICY WORK [--steps=N] [--episodes=N]

POLICY is smolvla, pi0, pi05 or pi0_fast. WORK is a folder for data and checkpoints; what is there
is used again. Nothing is fetched: all weights are random at first, and trained. Few tokens make a
sentence, and what π0.5 and π0-FAST write around it. The result says how often the policy succeeds
when the sentence names the target, when it names the other one, and when predictions take time,
with and without real-time chunking, which π0-FAST has not. It goes to
benchmarks/outcomes/results/<policy>_two_targets.json. Episodes start from seeds that no choice was
made on, if --first_seed is left alone.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any
from unittest import mock

sys.path.append(str(Path(__file__).parent))

from train_and_eval import RESULTS, read, write
from vla_reach import SIZES, flags

from kata.cli import main as kata
from kata.eval.command import run_eval
from kata.eval.options import resolve_eval
from kata.eval.record.demonstrations import Board, record
from kata.policies import paligemma

SENTENCES = {color: f"move the tool to the {color} target" for color in ("green", "blue")}
OTHER = {"green": "blue", "blue": "green"}
WORDS = ("move the tool to the", " green", " blue", " target")
FRAME = ("Task: ", ", State: ", ";\n", "Action: ")
"""What stands around a sentence where the state is told in words."""

DELAY, EVERY, HELD_OUT = 4, 4, 5000
"""Steps of a prediction, actions executed of a chunk, and the first seed of episodes."""

CHUNKING = "--policy.rtc_config.enabled=true"
DELAYED = f"--eval.inference_delay={DELAY}"
KINDS: dict[str, tuple[str, ...]] = {
    "right_sentences": (),
    "swapped_sentences": (),
    f"delay_{DELAY}": (DELAYED,),
    f"delay_{DELAY}_real_time_chunking": (DELAYED, CHUNKING),
}


def evaluated(run: Path, kind: str, episodes: int, first_seed: int) -> dict[str, Any]:
    """Evaluate towards both targets, half of the episodes each."""
    found: dict[str, Any] = {"episodes": 0, "successes": 0}
    for target in SENTENCES:
        told = OTHER[target] if kind == "swapped_sentences" else target
        folder = run / "evaluations" / f"{kind}_{target}"
        given = [
            f"--policy.path={run}", "--policy.device=cpu", "--env.type=kata",
            "--env.task=ReachOneOfTwo-v0", f"--env.kwargs={json.dumps({'target': target})}",
            f"--env.instruction={SENTENCES[told]}", f"--eval.n_episodes={episodes // 2}",
            f"--seed={first_seed}", "--eval.batch_size=25", "--eval.videos=0", *KINDS[kind],
        ]  # fmt: skip
        run_eval(resolve_eval(given), folder, shown=False)
        ended = read(folder / "eval.json", None)["episodes"]
        found[target] = sum(episode["success"] for episode in ended)
        found["successes"] += found[target]
        found["episodes"] += len(ended)
    return found


def cpu_s() -> float:
    """Return the CPU seconds of this process."""
    spent = resource.getrusage(resource.RUSAGE_SELF)
    return round(spent.ru_utime + spent.ru_stime, 1)


def main() -> None:
    """Record, train, evaluate, and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("policy", choices=("smolvla", "pi0", "pi05", "pi0_fast"))
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, default=8000)
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--demos", type=int, default=1200)
    parser.add_argument("--first_seed", type=int, default=HELD_OUT)
    parser.add_argument("--kinds", nargs="*", choices=[*KINDS], default=[*KINDS])
    parser.add_argument("--train", action="append", default=[], help="a further flag")
    parser.add_argument("--name", default="")
    parser.add_argument("--start", type=Path, help="a run whose weights training starts from")
    asked = parser.parse_args()
    work: Path = asked.work
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "data").exists():
        record(work / "data", num_episodes=asked.demos, board=Board(targets=2), codec="h264")
    name = asked.name or f"{asked.policy}_two_targets"
    words = WORDS if asked.policy == "smolvla" else WORDS + FRAME
    usual = flags(asked.policy, work, asked.steps, words)
    given = [
        *(flag for flag in usual if not flag.startswith("--policy.n_action_steps")),
        f"--policy.n_action_steps={EVERY}", *asked.train,
    ]  # fmt: skip
    if asked.start:
        given = [flag for flag in given if not flag.startswith("--policy.type")]
        given.append(f"--policy.path={asked.start}")
    run = work / name
    with mock.patch.object(paligemma, "SIZES", SIZES):
        if not (run / "checkpoints/last").exists():
            if kata(["train", *given, f"--output_dir={run}"]):
                sys.exit(1)
            write(run / "cpu_seconds.json", cpu_s())
        outcome = {
            kind: evaluated(run, kind, asked.episodes, asked.first_seed)
            for kind in asked.kinds
            if asked.policy != "pi0_fast" or CHUNKING not in KINDS[kind]
        }
    found = {
        "policy": f"{asked.policy}, random weights, all trained",
        "outcome": outcome,
        "first_seed": asked.first_seed,
        "demonstrations": asked.demos,
        "steps": asked.steps,
        "starts_from": None if asked.start is None else asked.start.name,
        "flags": [flag for flag in given if str(work) not in flag],
        "cpu_seconds_of_training": read(run / "cpu_seconds.json", None),
        "versions": {package: version(package) for package in ("torch", "numpy")},
    }
    write(RESULTS / f"{name}.json", found)
    print(json.dumps(outcome, indent=1))


if __name__ == "__main__":
    main()
