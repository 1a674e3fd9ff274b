"""Lets a policy learn by acting and evaluates it, in pieces that fit into ten minutes; keeps the
outcome as JSON.

python benchmarks/outcomes/learn_by_acting.py pendulum [--seed=0] [--piece_s=540] [--work=<folder>]

Exit status 0: the outcome is in results/rl_<case>.json, an entry per seed. 3: time was up; run the
same line again, and it goes on: `kata rl train` resumes bit for bit. Each piece is killed when its
time is up, which loses what was learned since the last checkpoint and no episode. CPU seconds are
those of all pieces, what was lost included; wall_s means little on a machine with other work, which
load tells.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

RESULTS, MORE = Path(__file__).parent / "results", 3
PICTURE = 56
"""Pixels of a side: the least in round numbers of which the encoder's last map has 2 x 2 pixels."""
INPUTS = {
    "observation.images.top": {"type": "VISUAL", "shape": [3, PICTURE, PICTURE]},
    "observation.state": {"type": "STATE", "shape": [2]},
}
TWO_CAMERAS = INPUTS | {"observation.images.wrist": INPUTS["observation.images.top"]}


@dataclass(frozen=True)
class Case:
    """env: flags that both verbs take. demos: demonstrations, 0 for none; recorder: what Python
    runs to record them, and recorded: its flags. must: the figure that is asked for, and its least
    value; of a control its largest.
    """

    env: str
    train: str
    episodes: int
    must: tuple[str, float]
    demos: int = 0
    recorder: str = "-m kata data demo"
    recorded: str = f"--seed=10000 --picture={PICTURE}"
    is_control: bool = False


BOARD = f"--env.type=kata --env.kwargs='{json.dumps({'picture': PICTURE})}'"
RELATIVE_BOARD = f"{BOARD} --env.kwargs.relative=true"
REACH = f"""
    --policy.device=cpu --policy.input_features='{json.dumps(INPUTS)}'
    --policy.freeze_vision_encoder=false --policy.image_encoder_hidden_dim=16 --policy.latent_dim=64
    --policy.shared_encoder=false --policy.actor_std=std --algorithm.actor_q=mean
    --algorithm.discount=0.95 --algorithm.critic_target_update_weight=0.05
    --algorithm.num_subsample_critics=1 --algorithm.target_range='[0, 1]'
    --algorithm.temperature_init=0.002 --algorithm.target_entropy=-3
    --algorithm.use_backup_entropy=false --algorithm.random_shift=1 --algorithm.dropout=0
    --algorithm.actor_lr=1e-3 --algorithm.critic_lr=5e-4 --algorithm.temperature_lr=1e-3
    --batch_size=64 --rl.update_every=4 --save_freq=1000 --log_freq=100
    --policy.online_buffer_capacity=40000 --policy.offline_buffer_capacity=20000
"""
REACH_RELATIVE = f"""
    {REACH} --policy.input_features='{json.dumps(TWO_CAMERAS)}' --policy.online_steps=12000
    --policy.policy_kwargs.std_max=0.3 --algorithm.temperature_lr=0 --algorithm.random_shift=6
"""
PICK_EXPERT = str(Path(__file__).with_name("gym_hil_demos.py"))
PICK = """
    --env.type=gym --env.id=gym_hil:gym_hil/PandaPickCube-v0 --env.success_key=succeed
"""
LEARN_PICK = """
    --policy.device=cpu --policy.num_discrete_actions=3 --policy.latent_dim=64
    --policy.shared_encoder=false --policy.actor_std=std --policy.policy_kwargs.std_max=0.3
    --policy.online_buffer_capacity=20000 --policy.offline_buffer_capacity=5000
    --batch_size=128 --save_freq=1000 --log_freq=100
    --algorithm.discount=0.95 --algorithm.temperature_init=0.002 --algorithm.temperature_lr=0
    --algorithm.critic_target_update_weight=0.02 --algorithm.use_backup_entropy=false
    --algorithm.target_range='[0, 1]' --algorithm.actor_lr=1e-3 --algorithm.critic_lr=1e-3
    --algorithm.bc_pretrain_updates=3000 --algorithm.bc_weight=4 --algorithm.bc_successes=true
    --algorithm.lr_decay_to=0.02
"""
CASES = {
    "pendulum": Case(
        "--env.type=gym --env.id=Pendulum-v1 --env.success_key=terminated",
        """--rl.reward=env --policy.device=cpu --policy.online_steps=6000 --save_freq=1000
        --policy.online_buffer_capacity=10000 --algorithm.actor_lr=1e-3
        --algorithm.critic_lr=1e-3 --algorithm.temperature_lr=1e-3""",
        episodes=20,
        must=("mean_return", -250.0),
    ),
    "reach_demos_takeovers": Case(
        BOARD,
        f"{REACH} --policy.online_steps=15000 --algorithm.bc_weight=20 --takeover.rate=0.15",
        episodes=100,
        must=("success_rate", 0.9),
        demos=20,
    ),
    "reach_demos": Case(
        RELATIVE_BOARD,
        f"{REACH_RELATIVE} --algorithm.bc_pretrain_updates=2400 --algorithm.bc_weight=4 "
        "--algorithm.bc_successes=true --policy.online_steps=10000 --rl.update_every=3 "
        "--algorithm.lr_decay_updates=5700 --algorithm.lr_decay_to=0.02",
        episodes=100,
        must=("success_rate", 0.9),
        demos=20,
        recorded=f"{Case.recorded} --relative=true",
    ),
    "gym_hil_pick": Case(
        f"{PICK} --env.kwargs='{json.dumps({'reset_delay_seconds': 0})}'",
        f"{LEARN_PICK} --policy.online_steps=4000 --algorithm.lr_decay_updates=7000",
        episodes=100,
        must=("success_rate", 0.9),
        demos=20,
        recorder=PICK_EXPERT,
        recorded="",
    ),
    "gym_hil_pick_random": Case(
        f"{PICK} --env.kwargs='"
        f"{json.dumps({'reset_delay_seconds': 0, 'random_block_position': True})}'",
        f"{LEARN_PICK} --policy.online_steps=10000 --algorithm.lr_decay_updates=13000",
        episodes=100,
        must=("success_rate", 0.9),
        demos=20,
        recorder=PICK_EXPERT,
        recorded="--random_place",
    ),
    "reach_relative_neither": Case(
        RELATIVE_BOARD,
        REACH_RELATIVE,
        episodes=100,
        must=("success_rate", 0.1),
        is_control=True,
    ),
    "reach_neither": Case(
        BOARD,
        f"{REACH} --policy.online_steps=15000",
        episodes=100,
        must=("success_rate", 0.1),
        is_control=True,
    ),
}


def words(flags: str) -> list[str]:
    import shlex

    return shlex.split(flags)


def children_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def kata(*args: str, limit_s: float | None = None) -> bool:
    """Run a verb; False when its time was up and it was killed."""
    line = [sys.executable, "-m", "kata", *args]
    try:
        subprocess.run(line, check=True, timeout=limit_s)
    except subprocess.TimeoutExpired:
        return False
    return True


def learned(case: Case, seed: int, work: Path, piece_s: float) -> bool:
    """Go on learning; true when it is done."""
    spent = work / "spent.json"
    before = json.loads(spent.read_text()) if spent.exists() else {"cpu_s": 0.0, "wall_s": 0.0}
    demos = work.parent / f"{work.name}_demos"
    if case.demos and not demos.exists():
        recorder = [sys.executable, *words(case.recorder), str(demos)]
        flags = [f"--episodes={case.demos}", *words(case.recorded)]
        subprocess.run([*recorder, *flags], check=True)
    given = [f"--dataset.root={demos}"] if case.demos else []
    began_s, began_wall_s = children_s(), time.monotonic()
    done = kata(
        "rl", "train", *words(case.env), *words(case.train), *given, f"--seed={seed}",
        f"--output_dir={work / 'run'}", "--resume=true", limit_s=piece_s,
    )  # fmt: skip
    cpu_s = before["cpu_s"] + children_s() - began_s
    wall_s = before["wall_s"] + time.monotonic() - began_wall_s
    spent.write_text(json.dumps({"cpu_s": cpu_s, "wall_s": wall_s}))
    return done


def outcome(name: str, seed: int, work: Path) -> dict[str, Any]:
    """Evaluate with the mode action, and return what is kept."""
    case, folder = CASES[name], work / "eval"
    kata(
        "eval", f"--policy.path={work / 'run'}", *words(case.env), "--policy.device=cpu",
        f"--eval.n_episodes={case.episodes}", "--eval.videos=0", f"--output_dir={folder}",
    )  # fmt: skip
    result = json.loads((folder / "eval.json").read_text())
    returns = [each["sum_reward"] for each in result["episodes"]]
    lines = [json.loads(x) for x in (work / "run/metrics.jsonl").read_text().splitlines()]
    played = [line for line in lines if line["kind"] == "episode"]
    found = {
        "mean_return": sum(returns) / len(returns),
        "success_rate": sum(each["success"] for each in result["episodes"]) / len(returns),
        "episodes": len(returns),
        "steps": played[-1]["step"],
        "human_steps": sum(line["human_steps"] for line in played),
        **json.loads((work / "spent.json").read_text()),
        "threads": os.environ.get("OMP_NUM_THREADS", "all"),
        "load": os.getloadavg()[1],
    }
    figure, asked = case.must
    reached = found[figure] <= asked if case.is_control else found[figure] >= asked
    return {**found, "seed": seed, "asked": {figure: asked}, "reached": reached}


def keep(name: str, found: dict[str, Any]) -> None:
    """Put a seed's outcome among the others."""
    path = RESULTS / f"rl_{name}.json"
    kept = json.loads(path.read_text()) if path.exists() else {"seeds": []}
    others = [each for each in kept["seeds"] if each["seed"] != found["seed"]]
    case = CASES[name]
    content = {
        "case": name,
        "env": words(case.env),
        "train": words(case.train),
        "demonstrations": case.demos,
        "versions": {x: version(x) for x in ("kata", "torch", "gymnasium", "numpy")},
        "machine": platform.machine(),
        "when": time.strftime("%Y-%m-%d"),
        "seeds": sorted([*others, found], key=lambda each: each["seed"]),
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("case", choices=CASES)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--piece_s", type=float, default=540)
    parser.add_argument("--work", type=Path, default=Path("outputs/outcomes_rl"))
    asked = parser.parse_args()
    work = asked.work / f"{asked.case}_{asked.seed}"
    work.mkdir(parents=True, exist_ok=True)
    if not learned(CASES[asked.case], asked.seed, work, asked.piece_s):
        return MORE
    found = outcome(asked.case, asked.seed, work)
    keep(asked.case, found)
    print(json.dumps(found, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
