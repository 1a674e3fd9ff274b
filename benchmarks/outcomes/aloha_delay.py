"""Trains a tiny SmolVLA on ALOHA's transfer-cube task from replayed trajectories, and measures what
predictions that take time cost it, with and without real-time chunking.

    nice python benchmarks/outcomes/aloha_delay.py TRAJECTORIES WORK [--steps=N] [--episodes=N]

TRAJECTORIES is an .npz file for `kata data replay`. WORK is a folder for the dataset and the run;
what is there is used again. Needs the extra `aloha`. A few trajectories are learned by heart, and
episodes start where they do: the result compares ways of acting, not policies. It goes to
benchmarks/outcomes/results/aloha_delay.json.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.append(str(Path(__file__).parent))

from train_and_eval import RESULTS, read, write
from two_targets import cpu_s
from vla_reach import MODES, model

from kata.cli import main as kata
from kata.eval.command import run_eval
from kata.eval.options import resolve_eval

CHUNK, EVERY, SIDE = 60, 25, 128
"""Actions of a chunk, and of them executed; pixels of a side of what the policy sees."""

SENTENCE = "Pick up the cube with the right arm and transfer it to the left arm."
INPUTS = {
    "observation.images.top": {"type": "VISUAL", "shape": [3, 480, 640]},
    "observation.state": {"type": "STATE", "shape": [14]},
}
CHUNKING = ("--policy.rtc_config.enabled=true", "--policy.rtc_config.execution_horizon=30")
KINDS: dict[str, tuple[str, ...]] = {
    "no_delay": (),
    "delay_10": ("--eval.inference_delay=10",),
    "delay_10_real_time_chunking": ("--eval.inference_delay=10", *CHUNKING),
    "delay_25": ("--eval.inference_delay=25",),
    "delay_25_real_time_chunking": ("--eval.inference_delay=25", *CHUNKING),
}


def flags(work: Path, steps: int, demos: int) -> list[str]:
    """Return the options of the training run."""
    written = model(work / "smolvlm", (SENTENCE,))
    config = json.loads((written / "config.json").read_text())
    config["vision_config"]["image_size"] = SIDE
    config["scale_factor"] = 4
    (written / "config.json").write_text(json.dumps(config))
    return [
        "--policy.type=smolvla", "--policy.push_to_hub=false", "--policy.device=cpu",
        f"--policy.vlm_model_name={written}", "--policy.load_vlm_weights=false",
        "--policy.train_expert_only=false", "--policy.freeze_vision_encoder=false",
        f"--policy.resize_imgs_with_padding=[{SIDE},{SIDE}]", "--policy.num_vlm_layers=3",
        "--policy.max_state_dim=14", "--policy.max_action_dim=14", "--policy.num_steps=5",
        f"--policy.normalization_mapping={json.dumps(MODES)}",
        f"--policy.chunk_size={CHUNK}", f"--policy.n_action_steps={EVERY}",
        f"--policy.input_features={json.dumps(INPUTS)}",
        "--policy.optimizer_lr=1e-3", "--policy.scheduler_warmup_steps=100",
        f"--policy.scheduler_decay_steps={steps}", "--policy.scheduler_decay_lr=1e-5",
        f"--dataset.root={work / 'data'}", f"--dataset.episodes={[*range(demos)]}",
        "--dataset.resize=reader", "--batch_size=32",
        "--num_workers=1", f"--steps={steps}", f"--save_freq={steps}", "--log_freq=100",
        "--dataset.cache=disk", f"--dataset.cache_dir={work / 'cache'}",
    ]  # fmt: skip


def evaluated(run: Path, kind: str, starts: list[dict[str, Any]], episodes: int) -> dict[str, Any]:
    """Act from each start in turn."""
    folder = run / "evaluations" / kind
    given = [
        f"--policy.path={run}", "--policy.device=cpu", "--env.type=aloha",
        f"--env.options={json.dumps(starts)}", f"--eval.n_episodes={episodes}",
        "--eval.batch_size=4", "--eval.videos=0", *KINDS[kind],
    ]  # fmt: skip
    run_eval(resolve_eval(given), folder, shown=False)
    ended = read(folder / "eval.json", None)["episodes"]
    rewards = [episode["max_reward"] for episode in ended]
    return {
        "episodes": len(ended),
        "successes": sum(episode["success"] for episode in ended),
        "mean_max_reward": float(np.mean(rewards)),
        "lengths": [episode["length"] for episode in ended],
        "max_rewards": rewards,
    }


def main() -> None:
    """Replay, train, evaluate, and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("trajectories", type=Path)
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, default=4000)
    parser.add_argument("--episodes", type=int, default=8)
    parser.add_argument("--demos", type=int, default=4)
    parser.add_argument("--kinds", nargs="*", choices=[*KINDS], default=[*KINDS])
    asked = parser.parse_args()
    work: Path = asked.work
    data, run = work / "data", work / "aloha_delay"
    replay = ["data", "replay", f"--root={data}", f"--trajectories={asked.trajectories}"]
    if not data.exists() and kata([*replay, "--codec=h264"]):
        sys.exit(1)
    given = flags(work, asked.steps, asked.demos)
    if not (run / "checkpoints/last").exists():
        if kata(["train", *given, f"--output_dir={run}"]):
            sys.exit(1)
        write(run / "cpu_seconds.json", cpu_s())
    with np.load(asked.trajectories) as stored:
        poses = stored["sim_transfer_cube_scripted_env"]
    starts = [{"state": pose.tolist()} for pose in poses[: asked.demos]]
    found: dict[str, Any] = {
        "policy": "smolvla, random weights, all trained",
        "steps": asked.steps,
        "demonstrations": asked.demos,
        "flags": [flag for flag in given if str(work) not in flag],
        "cpu_seconds_of_training": read(run / "cpu_seconds.json", None),
        "outcome": {},
    }
    for kind in asked.kinds:
        found["outcome"][kind] = evaluated(run, kind, starts, asked.episodes)
        print(kind, json.dumps(found["outcome"][kind]), flush=True)
        write(RESULTS / "aloha_delay.json", found)


if __name__ == "__main__":
    main()
