"""Trains a tiny π0-FAST on the built-in task and evaluates it; keeps the outcome as JSON.

    PYTHONPATH=src python benchmarks/outcomes/pi0_fast_reach.py WORK [--steps=N]

PaliGemma has no options for its sizes, so they are replaced here, in one process. Nothing is
pretrained. The tokenizers are those of the comparison with LeRobot (tools/peer): letters as words,
and action tokens for coefficients from -4 to 4.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from pathlib import Path
from unittest import mock

REPOSITORY = Path(__file__).parents[2]
sys.path += [str(Path(__file__).parent), str(REPOSITORY / "tools/peer")]

import tiny_fast  # noqa: E402
import tiny_gemma  # noqa: E402
from train_and_eval import RESULTS, SEED, outcome, read, write  # noqa: E402

from kata.cli import main as kata  # noqa: E402
from kata.eval.command import run_eval  # noqa: E402
from kata.eval.options import resolve_eval  # noqa: E402
from kata.eval.record.demonstrations import record  # noqa: E402
from kata.nn.decoder import DecoderSizes  # noqa: E402
from kata.nn.siglip import SiglipSizes  # noqa: E402
from kata.policies import paligemma  # noqa: E402

RESULT = RESULTS / "pi0_fast_reach.json"
VOCABULARY, WIDTH = 440, 128
INPUTS = {
    "observation.images.top": {"type": "VISUAL", "shape": [3, 64, 64]},
    "observation.state": {"type": "STATE", "shape": [2]},
}
MODES = {"VISUAL": "IDENTITY", "STATE": "MIN_MAX", "ACTION": "MIN_MAX"}
SIZES = paligemma.PiSizes(
    SiglipSizes(width=96, mlp=192, layers=2, heads=4, image=70, patch=14),
    {
        name: DecoderSizes(WIDTH, 256, heads=8, kv_heads=1, head_dim=16, eps=1e-6)
        for name in ("gemma_2b", "gemma_300m")
    },
    4,
    VOCABULARY,
)


def flags(work: Path, steps: int) -> list[str]:
    """Return the options of the training run."""
    text, fast = tiny_gemma.write(work / "gemma", VOCABULARY), tiny_fast.write(work / "fast")
    return [
        "--policy.type=pi0_fast", "--policy.push_to_hub=false", "--policy.device=cpu",
        f"--policy.text_tokenizer_name={text}", f"--policy.action_tokenizer_name={fast}",
        "--policy.image_resolution=[70,70]", "--policy.chunk_size=8", "--policy.n_action_steps=8",
        "--policy.max_action_tokens=32", "--policy.max_decoding_steps=32",
        "--policy.fast_skip_tokens=8", "--policy.tokenizer_max_length=64",
        f"--policy.normalization_mapping={json.dumps(MODES)}",
        f"--policy.input_features={json.dumps(INPUTS)}",
        "--policy.optimizer_lr=1e-3", "--policy.scheduler_warmup_steps=50",
        f"--policy.scheduler_decay_steps={steps}", "--policy.scheduler_decay_lr=1e-5",
        "--dataset.repo_id=kata/data", f"--dataset.root={work / 'data'}", "--batch_size=16",
        "--num_workers=1", f"--steps={steps}", f"--save_freq={steps}", "--log_freq=100",
        f"--output_dir={work / 'train'}",
    ]  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, default=5000)
    parser.add_argument("--episodes", type=int, default=50)
    asked = parser.parse_args()
    asked.work.mkdir(parents=True, exist_ok=True)
    if not (asked.work / "data").exists():
        record(asked.work / "data", num_episodes=200)
    given = flags(asked.work, asked.steps)
    evaluation = [
        f"--policy.path={asked.work / 'train'}", "--env.type=kata", f"--seed={SEED}",
        f"--eval.n_episodes={asked.episodes}", "--eval.videos=0", "--policy.device=cpu",
    ]  # fmt: skip
    with mock.patch.object(paligemma, "SIZES", SIZES):
        kata(["train", *given])
        spent = resource.getrusage(resource.RUSAGE_SELF)
        target = asked.work / "eval"
        run_eval(resolve_eval(evaluation), target, shown=True)
    trained = {
        "flags": [flag for flag in given if str(asked.work) not in flag],
        "steps": asked.steps,
        "cpu_seconds": round(spent.ru_utime + spent.ru_stime, 1),
    }
    write(RESULT, outcome("pi0_fast_reach", [read(target / "eval.json", None)], trained))


if __name__ == "__main__":
    main()
