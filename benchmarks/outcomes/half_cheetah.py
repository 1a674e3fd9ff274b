"""Learns HalfCheetah with `kata rl train` and with Stable-Baselines3 side by side, and keeps both
outcomes as JSON.

uv pip install 'gymnasium[mujoco]' stable-baselines3
python benchmarks/outcomes/half_cheetah.py [--steps=100000] [--seeds 0 1 2] [--out=<file>]

Both learn with SAC at Stable-Baselines3's default options, one thread each, at the same time, and
are then evaluated by this script on the same ten start states with the mode action. Networks are
each library's own: kata has LeRobot's, whose state encoder makes an update 1.73 times as many
multiplications as Stable-Baselines3's. Exit status 0: kata's mean return is not below the interval
of Stable-Baselines3's, which is its mean less twice the standard error over seeds (over episodes
with one seed).

A script that is run again takes runs that were finished from their files in --work. A run of kata's
that was cut off goes on where it was; one of Stable-Baselines3's begins anew. `--only=<library>`
learns with one of them alone.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

ENV_ID, EPISODES = "HalfCheetah-v5", 10
FIRST_SEED = 50_000
FLAGS = [
    "--env.type=gym", f"--env.id={ENV_ID}", "--env.success_key=terminated", "--rl.reward=env",
    "--policy.device=cpu", "--report=false", "--save_freq=10000", "--log_freq=1000",
    # Stable-Baselines3's defaults, where LeRobot's differ.
    "--policy.actor_std=std", "--policy.online_buffer_capacity=1000000",
    "--algorithm.target_entropy=-6",
    '--policy.normalization_mapping={"STATE": "IDENTITY", "ACTION": "MIN_MAX"}',
]  # fmt: skip
RESULTS = Path(__file__).parent / "results"


def learn_with_kata(steps: int, seed: int, work: Path) -> None:
    from kata.cli import main

    folder = work / f"kata_{seed}"
    line = ["rl", "train", *FLAGS, f"--policy.online_steps={steps}", f"--seed={seed}"]
    status = main([*line, f"--output_dir={folder}", "--resume=true"])
    if status:
        raise SystemExit(status)


def returns_of_kata(seed: int, work: Path) -> list[float]:
    from kata.eval.rollout_policy import load_for_acting

    acting = load_for_acting(str(work / f"kata_{seed}"), device="cpu")
    state = acting.policy.init_state(1)

    def act(seen: Any) -> Any:
        given = {"observation.state": seen[None].astype("float32")}
        return acting.act(given, "", state)[0][0]

    return returns(act)


def learn_with_sb3(steps: int, seed: int, work: Path) -> None:
    sac = importlib.import_module("stable_baselines3").SAC
    model = sac("MlpPolicy", ENV_ID, seed=seed, device="cpu")
    model.learn(steps, log_interval=None)
    model.save(work / f"sb3_{seed}")


def returns_of_sb3(seed: int, work: Path) -> list[float]:
    sac = importlib.import_module("stable_baselines3").SAC
    model = sac.load(work / f"sb3_{seed}", device="cpu")
    return returns(lambda seen: model.predict(seen, deterministic=True)[0])


def returns(act: Any) -> list[float]:
    """Return the sum of rewards of each episode."""
    import gymnasium

    env, found = gymnasium.make(ENV_ID), []
    for episode in range(EPISODES):
        seen, _ = env.reset(seed=FIRST_SEED + episode)
        total, is_over = 0.0, False
        while not is_over:
            seen, reward, terminated, truncated, _ = env.step(act(seen))
            total, is_over = total + float(reward), terminated or truncated
        found.append(total)
    return found


LIBRARIES = {
    "kata": (learn_with_kata, returns_of_kata),
    "sb3": (learn_with_sb3, returns_of_sb3),
}


def learn_alone(library: str, steps: int, seed: int, work: Path) -> None:
    """Learn in this process, and write what came of it."""
    import torch

    torch.set_num_threads(1)
    learn, played = LIBRARIES[library]
    began_s = time.perf_counter()
    learn(steps, seed, work)
    used = resource.getrusage(resource.RUSAGE_SELF)
    found = {
        "seed": seed,
        "cpu_s": used.ru_utime + used.ru_stime,
        "wall_s": time.perf_counter() - began_s,
        "returns": played(seed, work),
    }
    (work / f"{library}_{seed}.json").write_text(json.dumps(found))


def learn_beside(steps: int, seed: int, work: Path) -> dict[str, dict[str, Any]]:
    """Learn with both at the same time, each in a process, where there is no outcome yet."""
    line = [sys.executable, __file__, f"--steps={steps}", f"--work={work}", f"--seeds={seed}"]
    threads = {**os.environ, "OMP_NUM_THREADS": "1"}
    running: dict[str, subprocess.Popen[bytes]] = {}
    for name in LIBRARIES:
        if not (work / f"{name}_{seed}.json").exists():
            running[name] = subprocess.Popen([*line, f"--only={name}"], env=threads)
    failed = [name for name, each in running.items() if each.wait()]
    if failed:
        raise SystemExit(f"seed {seed}: {', '.join(failed)} ended with an error")
    return {name: json.loads((work / f"{name}_{seed}.json").read_text()) for name in LIBRARIES}


def summary(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the mean over runs, and twice its standard error."""
    means = [statistics.fmean(each["returns"]) for each in runs]
    spread = means if len(means) > 1 else runs[0]["returns"]
    error = statistics.stdev(spread) / len(spread) ** 0.5
    return {"mean": statistics.fmean(means), "interval": 2 * error, "runs": runs}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=100_000)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--work", type=Path, default=Path("outputs/half_cheetah"))
    parser.add_argument("--out", type=Path, default=RESULTS / "rl_half_cheetah.json")
    parser.add_argument("--only", choices=LIBRARIES, help="learn with one, the first seed")
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    if asked.only:
        learn_alone(asked.only, asked.steps, asked.seeds[0], asked.work)
        return 0
    runs = [learn_beside(asked.steps, seed, asked.work) for seed in asked.seeds]
    found = {name: summary([each[name] for each in runs]) for name in LIBRARIES}
    is_reached = found["kata"]["mean"] >= found["sb3"]["mean"] - found["sb3"]["interval"]
    packages = ("kata", "stable-baselines3", "torch", "gymnasium", "mujoco")
    content = {
        "env": ENV_ID,
        "steps": asked.steps,
        "episodes": EPISODES,
        "flags": FLAGS,
        **found,
        "reached": is_reached,
        "versions": {name: version(name) for name in packages},
        "machine": platform.machine(),
        "when": time.strftime("%Y-%m-%d"),
    }
    asked.out.write_text(json.dumps(content, indent=1) + "\n")
    for name in LIBRARIES:
        print(f"{name}: {found[name]['mean']:.0f} ± {found[name]['interval']:.0f}")
    return int(not is_reached)


if __name__ == "__main__":
    sys.exit(main())
