"""LeRobot 0.6.1's training script with its own DataLoader, and with `kata.loader.Loader`.

    python -m benchmarks.streaming.lerobot_script <dataset> --out=<file>

Both run in LeRobot's environment, one after the other, in rounds: `lerobot-train` as it is, and
examples/lerobot_train.py. The policy is a small Diffusion Policy on crops of 84x84 pixels, so that
a CPU trains it quickly. CPU time is that of the whole run with its workers. Runs of two lengths are
measured: the difference is free of the start, and of batches that are read ahead at the end.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import statistics
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.lab.lerobot_env import ffmpeg_for, peer_python
from kata.bench.process_stats import machine

_ROOT = Path(__file__).parents[2]
_EXAMPLE = str(_ROOT / "examples/lerobot_train.py")
SIDES = {"lerobot": ["-m", "lerobot.scripts.lerobot_train"], "kata": [_EXAMPLE]}
POLICY = (
    "--policy.type=diffusion",
    "--policy.device=cpu",
    "--policy.push_to_hub=false",
    "--policy.crop_shape=[84,84]",
    "--policy.pretrained_backbone_weights=null",
    "--policy.down_dims=[32,64]",
    "--policy.n_groups=8",
    "--policy.use_separate_rgb_encoder_per_camera=false",
)


def run(args: argparse.Namespace, python: Path, side: str, steps: int) -> dict[str, float]:
    """Train for some steps, and return CPU and wall-clock seconds of the whole run."""
    with tempfile.TemporaryDirectory() as folder:
        links = Path(folder, "libraries")
        links.mkdir()
        environment = {
            **os.environ,
            **ffmpeg_for(python, links),
            "PYTHONPATH": str(_ROOT / "src"),
            "HF_HUB_OFFLINE": "1",
            "OMP_NUM_THREADS": "1",
        }
        command = [
            *(str(python), *SIDES[side], *POLICY),
            f"--dataset.repo_id=bench/{args.dataset.name}",
            f"--dataset.root={args.dataset.resolve()}",
            f"--batch_size={args.batch_size}",
            f"--num_workers={args.num_workers}",
            f"--steps={steps}",
            f"--output_dir={folder}/run",
            "--save_checkpoint=false",
            f"--log_freq={steps}",
            "--wandb.enable=false",
        ]
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        began_s = time.perf_counter()
        done = subprocess.run(
            command, env=environment, cwd=folder, capture_output=True, text=True, check=False
        )
        wall_s = time.perf_counter() - began_s
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode:
        raise SystemExit(f"{side}: ended with {done.returncode}\n{done.stderr[-3000:]}")
    cpu_s = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return {"cpu_s": cpu_s, "wall_s": wall_s}


def measure(args: argparse.Namespace, python: Path) -> list[dict[str, Any]]:
    """Return the figures of each round: of both sides and lengths, and their differences."""
    rounds: list[dict[str, Any]] = []
    samples = (args.steps - args.short) * args.batch_size
    for _ in range(args.rounds):
        one: dict[str, Any] = {}
        for side in SIDES:
            short = run(args, python, side, args.short)
            whole = run(args, python, side, args.steps)
            one[side] = {
                "short": short,
                "whole": whole,
                "cpu_ms_per_sample": 1e3 * (whole["cpu_s"] - short["cpu_s"]) / samples,
                "wall_ms_per_sample": 1e3 * (whole["wall_s"] - short["wall_s"]) / samples,
            }
            print(side, one[side], flush=True)
        rounds.append(one)
    return rounds


def main() -> None:
    """Measure, print what the Loader gains, and keep everything."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--num_workers", type=int, default=2)
    parser.add_argument("--short", type=int, default=15, help="steps of the short run")
    parser.add_argument("--steps", type=int, default=75, help="steps of the whole run")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--peer_python")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    rounds = measure(args, peer_python(args.peer_python))
    ratios = [
        one["lerobot"]["cpu_ms_per_sample"] / one["kata"]["cpu_ms_per_sample"] for one in rounds
    ]
    gain = statistics.median(ratios)
    print(f"samples per CPU second with the Loader: {gain:.2f} times those of the script alone")
    if args.out is not None:
        settings = {name: str(value) for name, value in vars(args).items() if name != "out"}
        settings |= {"dataset": args.dataset.name, "peer_python": ""}
        kept = {
            "machine": machine(),
            "load_average": os.getloadavg(),
            "settings": settings | {"policy": POLICY},
            "times_more_samples_per_cpu_s": gain,
            "rounds": rounds,
        }
        args.out.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
