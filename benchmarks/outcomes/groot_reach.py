"""Trains a tiny GR00T on the built-in task from scratch, evaluates it, and keeps the outcome.

    nice python benchmarks/outcomes/groot_reach.py WORK [--steps=N] [--episodes=N]

WORK is a folder for data and checkpoints; data that are there are used again. Nothing is pretrained
and nothing is fetched: WORK/raw stands in for NVIDIA's folder, and all parts are trained.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
sys.path += [str(Path(__file__).parent), str(REPOSITORY / "tools/peer")]

import tiny_groot  # noqa: E402
from train_and_eval import RESULTS, SEED, outcome, read, write  # noqa: E402

from kata.cli import main as kata  # noqa: E402
from kata.eval.command import run_eval  # noqa: E402
from kata.eval.options import resolve_eval  # noqa: E402
from kata.eval.record.demonstrations import record  # noqa: E402

INPUTS = {
    "observation.images.top": {"type": "VISUAL", "shape": [3, 64, 64]},
    "observation.state": {"type": "STATE", "shape": [2]},
}
NAME, CHUNK, EXECUTED, WIDTH = "groot_reach", 8, 4, 64
STACK = {"positional_embeddings": None, "num_attention_heads": 4, "attention_head_dim": 16}
BLOCKS = {"dropout": 0.0, "final_dropout": True, **STACK}


def backbone(work: Path) -> Path:
    """Write a Qwen3-VL of two layers of each kind, which sees 64 tokens of an image."""
    folder = tiny_groot.write_qwen(work / "qwen3")
    config = tiny_groot.qwen_config()
    config["text_config"] |= {
        "hidden_size": WIDTH, "intermediate_size": 128, "num_hidden_layers": 2, "head_dim": 16,
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [4, 2, 2]},
    }  # fmt: skip
    config["vision_config"] |= {
        "depth": 2, "hidden_size": WIDTH, "intermediate_size": 128, "num_heads": 4,
        "out_hidden_size": WIDTH, "patch_size": 8, "spatial_merge_size": 1,
        "num_position_embeddings": 64, "deepstack_visual_indexes": [0],
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    # An encoder that is trained from nothing wants frames whose pixels differ.
    stats = json.loads((work / "data/meta/stats.json").read_text())["observation.images.top"]
    rules = json.loads((folder / "preprocessor_config.json").read_text())
    for name, stat in (("image_mean", "mean"), ("image_std", "std")):
        rules[name] = [channel[0][0] for channel in stats[stat]]
    rules |= {"patch_size": 8, "merge_size": 1}
    (folder / "preprocessor_config.json").write_text(json.dumps(rules))
    return folder


def raw(work: Path) -> Path:
    """Write NVIDIA's folder, without weights."""
    changes: dict[str, Any] = {
        "select_layer": 2, "backbone_embedding_dim": WIDTH, "hidden_size": WIDTH,
        "input_embedding_dim": WIDTH, "max_state_dim": 4, "max_action_dim": 4,
        "action_horizon": CHUNK, "max_seq_len": CHUNK, "max_num_embodiments": 11,
        "diffusion_model_cfg": {
            "num_layers": 8, "norm_type": "ada_norm", "output_dim": WIDTH,
            "interleave_self_attention": True, **BLOCKS,
        },
        "vl_self_attention_cfg": {"num_layers": 1, **BLOCKS},
    }  # fmt: skip
    options = {"image_target_size": [64, 64], "image_crop_size": None}
    return tiny_groot.write_raw(work / "raw", backbone(work), changes=changes, options=options)


def flags(work: Path, steps: int) -> list[str]:
    """Return the options of the training run."""
    return [
        "--policy.type=groot", "--policy.push_to_hub=false", "--policy.device=cpu",
        f"--policy.base_model_path={raw(work)}", f"--policy.text_tokenizer_name={work / 'qwen3'}",
        "--policy.load_base_weights=false", "--policy.tune_llm=true", "--policy.tune_visual=true",
        "--policy.use_bf16=false", f"--policy.chunk_size={CHUNK}",
        f"--policy.n_action_steps={CHUNK}", "--policy.max_state_dim=4",
        "--policy.max_action_dim=4", f"--policy.input_features={json.dumps(INPUTS)}",
        "--policy.optimizer_lr=1e-3", f"--policy.max_steps={steps}",
        "--dataset.repo_id=kata/data", f"--dataset.root={work / 'data'}", "--batch_size=32",
        "--num_workers=1", f"--steps={steps}", f"--save_freq={steps}", "--log_freq=100",
        "--dataset.cache=disk", f"--dataset.cache_dir={work / 'cache'}",
    ]  # fmt: skip


def main() -> None:
    """Record, train, evaluate, and write the result."""
    parser = argparse.ArgumentParser()
    parser.add_argument("work", type=Path)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--episodes", type=int, default=50)
    parser.add_argument("--train", action="append", default=[], help="a further flag")
    asked = parser.parse_args()
    work: Path = asked.work
    work.mkdir(parents=True, exist_ok=True)
    if not (work / "data").exists():
        record(work / "data", num_episodes=200)
    run = work / NAME
    given = [*flags(work, asked.steps), *asked.train]
    evaluation = [
        f"--policy.path={run}", "--env.type=kata", f"--seed={SEED}",
        f"--eval.n_episodes={asked.episodes}", "--eval.videos=0", "--policy.device=cpu",
        f"--policy.n_action_steps={EXECUTED}",
    ]  # fmt: skip
    if kata(["train", *given, f"--output_dir={run}"]):
        sys.exit(1)
    spent = resource.getrusage(resource.RUSAGE_SELF)
    target = run / "eval"
    run_eval(resolve_eval(evaluation), target, shown=True)
    trained = {
        "flags": [flag for flag in given if str(work) not in flag],
        "steps": asked.steps,
        "executed_of_a_chunk": EXECUTED,
        "cpu_seconds": round(spent.ru_utime + spent.ru_stime, 1),
    }
    found = outcome(NAME, [read(target / "eval.json", None)], trained)
    write(RESULTS / f"{NAME}.json", found)
    print(f"{NAME}: {found['success_rate']:.0%}, {trained['cpu_seconds']} CPU seconds")


if __name__ == "__main__":
    main()
