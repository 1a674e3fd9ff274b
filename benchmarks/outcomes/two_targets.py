"""Trains a tiny SmolVLA on the built-in task with two targets, and swaps the sentences.

nice python benchmarks/outcomes/two_targets.py WORK [--steps=N] [--episodes=N] [--demos=N]

WORK is a folder for data and checkpoints; what is there is used again. Nothing is fetched: the
vision-language model has random weights, all of which are trained. The result says how often the
policy succeeds when the sentence names the target, when it names the other one, and when
predictions take time, with and without real-time chunking. It goes to
benchmarks/outcomes/results/smolvla_two_targets.json.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
sys.path.append(str(REPOSITORY / "tools/peer"))

import tiny_smolvlm  # noqa: E402

RESULT = Path(__file__).parent / "results/smolvla_two_targets.json"
SENTENCES = {color: f"move the tool to the {color} target" for color in ("green", "blue")}
OTHER = {"green": "blue", "blue": "green"}
CHUNK, EVERY, DELAY = 16, 6, 4
CAMERA = {
    "observation.images.top": {"type": "VISUAL", "shape": [3, 64, 64]},
    "observation.state": {"type": "STATE", "shape": [2]},
}
# A tower that is trained from nothing wants frames whose pixels differ: the dataset's own mean and
# spread.
MODES = {"VISUAL": "MEAN_STD", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}
POLICY = (
    "--policy.type=smolvla", "--policy.load_vlm_weights=false", "--policy.train_expert_only=false",
    "--policy.freeze_vision_encoder=false", "--policy.resize_imgs_with_padding=[64,64]",
    f"--policy.chunk_size={CHUNK}", f"--policy.n_action_steps={EVERY}", "--policy.num_vlm_layers=3",
    "--policy.max_state_dim=4", "--policy.max_action_dim=4", "--policy.num_steps=5",
    "--policy.device=cpu", "--policy.push_to_hub=false", "--policy.optimizer_lr=1e-3",
    "--policy.scheduler_warmup_steps=100", "--policy.scheduler_decay_lr=1e-5",
    f"--policy.normalization_mapping={json.dumps(MODES)}",
    f"--policy.input_features={json.dumps(CAMERA)}",
)  # fmt: skip
CHUNKING = "--policy.rtc_config.enabled=true"


def model(folder: Path) -> Path:
    """A SmolVLM of 64 numbers per token that sees patches of 8 pixels."""
    tiny_smolvlm.write(folder)
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    config["text_config"] |= {
        "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4,
        "num_key_value_heads": 2, "head_dim": 16, "num_hidden_layers": 3,
    }  # fmt: skip
    config["vision_config"] |= {
        "hidden_size": 64, "intermediate_size": 128, "num_attention_heads": 4, "patch_size": 8,
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def kata(*arguments: str) -> None:
    """Run the command; its failure ends this script."""
    subprocess.run([sys.executable, "-m", "kata", *arguments], check=True)


def evaluated(work: Path, name: str, options: tuple[str, ...], episodes: int) -> dict[str, Any]:
    """Evaluate towards both targets, half of the episodes each."""
    found: dict[str, Any] = {"episodes": 0, "successes": 0}
    for target in SENTENCES:
        told = OTHER[target] if name == "swapped_sentences" else target
        folder = work / "evaluations" / f"{name}_{target}"
        if not (folder / "eval.json").exists():
            kata(
                "eval", f"--policy.path={work / 'run'}", "--policy.device=cpu", "--env.type=kata",
                "--env.task=ReachOneOfTwo-v0", f'--env.kwargs={{"target": "{target}"}}',
                f"--env.instruction={SENTENCES[told]}", f"--eval.n_episodes={episodes // 2}",
                "--eval.batch_size=25", "--eval.videos=2", f"--output_dir={folder}", *options,
            )  # fmt: skip
        result: dict[str, Any] = json.loads((folder / "eval.json").read_text())
        successes = sum(episode["success"] for episode in result["episodes"])
        found[target] = successes
        found["successes"] += successes
        found["episodes"] += len(result["episodes"])
    return found


def main() -> int:
    """Record, train, evaluate, and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--demos", type=int, default=200)
    asked = parser.parse_args()
    work: Path = asked.work
    work.mkdir(parents=True, exist_ok=True)
    data, began_s = work / "data", time.perf_counter()
    if not data.exists():
        kata(
            "data", "demo", f"--root={data}", f"--episodes={asked.demos}", "--targets=2",
            "--codec=h264",
        )  # fmt: skip
    train = (
        *POLICY, f"--steps={asked.steps}", "--batch_size=32", "--num_workers=1",
        f"--policy.scheduler_decay_steps={asked.steps}",
        "--save_freq=500", "--log_freq=100", "--dataset.repo_id=kata/two",
    )  # fmt: skip
    if not (work / "run/checkpoints/last").exists():
        kata(
            "train", *train, f"--policy.vlm_model_name={model(work / 'smolvlm')}",
            f"--dataset.root={data}", f"--output_dir={work / 'run'}",
        )  # fmt: skip
    trained_s = time.perf_counter() - began_s
    delayed = f"--eval.inference_delay={DELAY}"
    kinds: dict[str, tuple[str, ...]] = {
        "right_sentences": (),
        "swapped_sentences": (),
        f"delay_{DELAY}": (delayed,),
        f"delay_{DELAY}_real_time_chunking": (delayed, CHUNKING),
    }
    outcome = {kind: evaluated(work, kind, kinds[kind], asked.episodes) for kind in kinds}
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    RESULT.write_text(
        json.dumps(
            {
                "policy": "smolvla, random vision-language model, all trained",
                "outcome": outcome,
                "demonstrations": asked.demos,
                "steps": asked.steps,
                "flags": list(train),
                "seconds": {
                    "record_and_train": round(trained_s, 1),
                    "all": round(time.perf_counter() - began_s, 1),
                    "cpu_of_all": round(children.ru_utime + children.ru_stime, 1),
                },
                "machine": {"cpus": os.cpu_count(), "load": os.getloadavg()},
                "versions": {name: version(name) for name in ("torch", "numpy")},
            },
            indent=2,
        )
        + "\n"
    )
    print(RESULT.read_text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
