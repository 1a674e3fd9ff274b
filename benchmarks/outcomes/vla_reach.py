"""Trains a tiny vision-language-action policy on the built-in task from scratch and evaluates it;
keeps the outcome as JSON.

    nice python benchmarks/outcomes/vla_reach.py POLICY WORK [--steps=N] [--episodes=N]

POLICY is smolvla, pi0, pi05 or pi0_fast. WORK is a folder for data and checkpoints; data that are
there are used again. Nothing is pretrained and nothing is fetched. PaliGemma has no options for its
sizes, so they are replaced here, in one process. The tokenizers are those of the comparison with
LeRobot (tools/peer): letters as words, and action tokens for coefficients from -4 to 4.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from pathlib import Path
from typing import Any
from unittest import mock

REPOSITORY = Path(__file__).parents[2]
sys.path += [str(Path(__file__).parent), str(REPOSITORY / "tools/peer")]

import tiny_fast  # noqa: E402
import tiny_gemma  # noqa: E402
import tiny_smolvlm  # noqa: E402
from train_and_eval import RESULTS, SEED, outcome, read, write  # noqa: E402

from kata.cli import main as kata  # noqa: E402
from kata.eval.command import run_eval  # noqa: E402
from kata.eval.options import resolve_eval  # noqa: E402
from kata.eval.record.demonstrations import record  # noqa: E402
from kata.nn.decoder import DecoderSizes  # noqa: E402
from kata.nn.siglip import SiglipSizes  # noqa: E402
from kata.policies import paligemma  # noqa: E402

VOCABULARY, WIDTH, CHUNK, EXECUTED = 440, 64, 16, 8
INPUTS = {
    "observation.images.top": {"type": "VISUAL", "shape": [3, 64, 64]},
    "observation.state": {"type": "STATE", "shape": [2]},
}
# A tower that is trained from nothing wants frames whose pixels differ: the dataset's own mean and
# spread.
MODES = {"VISUAL": "MEAN_STD", "STATE": "MEAN_STD", "ACTION": "MEAN_STD"}
BOUNDED = {"VISUAL": "MEAN_STD", "STATE": "MIN_MAX", "ACTION": "MIN_MAX"}
SIZES = paligemma.PiSizes(
    SiglipSizes(width=64, mlp=128, layers=2, heads=4, image=56, patch=8),
    {
        name: DecoderSizes(WIDTH, 128, heads=4, kv_heads=1, head_dim=16, eps=1e-6)
        for name in ("gemma_2b", "gemma_300m")
    },
    3,
    VOCABULARY,
)


def model(folder: Path, words: tuple[str, ...]) -> Path:
    """Write a SmolVLM of 64 numbers per token that sees patches of 8 pixels."""
    tiny_smolvlm.write(folder, words)
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


def own_flags(policy: str, work: Path, words: tuple[str, ...]) -> list[str]:
    """Return the options that only this policy has."""
    if policy == "smolvla":
        return [
            f"--policy.vlm_model_name={model(work / 'smolvlm', words)}",
            "--policy.load_vlm_weights=false", "--policy.train_expert_only=false",
            "--policy.freeze_vision_encoder=false", "--policy.resize_imgs_with_padding=[64,64]",
            "--policy.num_vlm_layers=3",
            "--policy.max_state_dim=4", "--policy.max_action_dim=4", "--policy.num_steps=5",
            f"--policy.normalization_mapping={json.dumps(MODES)}",
        ]  # fmt: skip
    text = tiny_gemma.write(work / "gemma", VOCABULARY, words)
    common = [
        f"--policy.text_tokenizer_name={text}", "--policy.image_resolution=[56,56]",
        f"--policy.tokenizer_max_length={24 if words else 80}",
    ]  # fmt: skip
    if policy != "pi0_fast":
        modes = MODES if policy == "pi0" else BOUNDED
        return [
            *common, "--policy.max_state_dim=4", "--policy.max_action_dim=4",
            "--policy.num_inference_steps=5", f"--policy.normalization_mapping={json.dumps(modes)}",
        ]  # fmt: skip
    return [
        *common, f"--policy.action_tokenizer_name={tiny_fast.write(work / 'fast')}",
        "--policy.max_action_tokens=32", "--policy.max_decoding_steps=32",
        "--policy.fast_skip_tokens=8", f"--policy.normalization_mapping={json.dumps(BOUNDED)}",
    ]  # fmt: skip


def flags(policy: str, work: Path, steps: int, words: tuple[str, ...] = ()) -> list[str]:
    """Return the options of the training run; `words` are a token each."""
    chunk = 8 if policy == "pi0_fast" else CHUNK
    return [
        f"--policy.type={policy}", "--policy.push_to_hub=false", "--policy.device=cpu",
        *own_flags(policy, work, words), f"--policy.chunk_size={chunk}",
        f"--policy.n_action_steps={EXECUTED}", f"--policy.input_features={json.dumps(INPUTS)}",
        "--policy.optimizer_lr=1e-3", "--policy.scheduler_warmup_steps=100",
        f"--policy.scheduler_decay_steps={steps}", "--policy.scheduler_decay_lr=1e-5",
        "--dataset.repo_id=kata/data", f"--dataset.root={work / 'data'}", "--batch_size=32",
        "--num_workers=1", f"--steps={steps}", f"--save_freq={steps}", "--log_freq=100",
        "--dataset.cache=disk", f"--dataset.cache_dir={work / 'cache'}",
    ]  # fmt: skip


def main() -> None:
    """Record, train, evaluate, and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("policy", choices=("smolvla", "pi0", "pi05", "pi0_fast"))
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--train", action="append", default=[], help="a further flag")
    parser.add_argument("--name", default="")
    asked = parser.parse_args()
    work: Path = asked.work
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "data").exists():
        record(work / "data", num_episodes=200)
    name = asked.name or f"{asked.policy}_reach"
    run = work / name
    given = [*flags(asked.policy, work, asked.steps), *asked.train]
    evaluation = [
        f"--policy.path={run}", "--env.type=kata", f"--seed={SEED}",
        f"--eval.n_episodes={asked.episodes}", "--eval.videos=0", "--policy.device=cpu",
    ]  # fmt: skip
    with mock.patch.object(paligemma, "SIZES", SIZES):
        if kata(["train", *given, f"--output_dir={run}"]):
            sys.exit(1)
        spent = resource.getrusage(resource.RUSAGE_SELF)
        target = run / "eval"
        run_eval(resolve_eval(evaluation), target, shown=True)
    trained = {
        "flags": [flag for flag in given if str(work) not in flag],
        "steps": asked.steps,
        "cpu_seconds": round(spent.ru_utime + spent.ru_stime, 1),
    }
    found = outcome(name, [read(target / "eval.json", None)], trained)
    write(RESULTS / f"{name}.json", found)
    print(f"{name}: {found['success_rate']:.0%}, {trained['cpu_seconds']} CPU seconds")


if __name__ == "__main__":
    main()
