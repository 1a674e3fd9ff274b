"""Trains a tiny policy on a Qwen model on the built-in task from scratch, evaluates it, and keeps
the outcome.

    nice python benchmarks/outcomes/qwen_reach.py POLICY WORK [--steps=N] [--final]

POLICY is groot, eo1, wall_x, or wall_x_fast, which writes actions as words. WORK is a folder for
data and checkpoints; what is there is used again. Nothing is pretrained and nothing is fetched:
folders of WORK stand in for those of the Hub, and all parts are trained. Without --final the
episodes are those by which options are chosen.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
sys.path += [str(Path(__file__).parent), str(REPOSITORY / "tools/peer")]

import tiny_fast  # noqa: E402
import tiny_groot  # noqa: E402
import tiny_qwen  # noqa: E402
import wall_x_words  # noqa: E402
from reach import arguments, reach  # noqa: E402

INPUTS = {
    "observation.images.top": {"type": "VISUAL", "shape": [3, 64, 64]},
    "observation.state": {"type": "STATE", "shape": [2]},
}
MODES = {"VISUAL": "IDENTITY", "STATE": "MEAN_STD", "ACTION": "MIN_MAX"}
CHUNK, WIDTH = 8, 64
STEPS = {"groot": 1500, "eo1": 2000, "wall_x": 2000, "wall_x_fast": 2000}
EXECUTED = {"groot": 4, "eo1": 8, "wall_x": 8, "wall_x_fast": 8}
STACK = {"positional_embeddings": None, "num_attention_heads": 4, "attention_head_dim": 16}
BLOCKS = {"dropout": 0.0, "final_dropout": True, **STACK}
WORDS = (
    "You are a helpful physical assistant.", "You are a helpful assistant.", "system", "user",
    "assistant", "Observation:", "top view", "Instruction: ", "move the tool to the green target",
    "Predict the next action in robot action.", "Proprioception: ", "<|propri|>", "<|action|>",
)  # fmt: skip
"""Parts of prompts, which are tokens of their own, so that sequences are short."""

TEXT = {
    "vocab_size": 320, "hidden_size": 128, "intermediate_size": 256, "num_hidden_layers": 3,
    "num_attention_heads": 4, "num_key_value_heads": 2,
    "rope_parameters": {
        "rope_type": "default", "rope_theta": 1000000.0, "mrope_section": [4, 6, 6],
    },
}  # fmt: skip
EXPERTS = {
    "num_experts": 2, "mlp_moe": True, "dim_inputs": [128, 128], "dof_config": {"arm": 4},
    "experts": [{"hidden_size": 128, "intermediate_size": 256, "hidden_act": "silu"}] * 2,
}  # fmt: skip
VISION = {
    "depth": 2, "hidden_size": 64, "intermediate_size": 128, "num_heads": 4, "out_hidden_size": 128,
}  # fmt: skip
# Qwen2.5-VL has no learned places: where a patch lies is told by turns of queries and keys alone,
# which a tower that is trained from nothing does not learn to read in so few steps. So a frame is
# one token here, which holds its patches side by side. Wall-X always resizes to 252 pixels.
SIDE = 28
LARGE = {"patch_size": 63, "spatial_merge_size": 4, "window_size": 252}


def groot_backbone(work: Path) -> Path:
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


def groot_flags(work: Path, steps: int) -> list[str]:
    """Write NVIDIA's folder, without weights, and return GR00T's options."""
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
    raw = tiny_groot.write_raw(work / "raw", groot_backbone(work), changes=changes, options=options)
    return [
        f"--policy.base_model_path={raw}", f"--policy.text_tokenizer_name={work / 'qwen3'}",
        "--policy.load_base_weights=false", "--policy.tune_llm=true", "--policy.tune_visual=true",
        "--policy.use_bf16=false", f"--policy.max_steps={steps}",
    ]  # fmt: skip


def spliced_flags(policy: str, work: Path, steps: int) -> list[str]:
    """Write a Qwen2.5-VL, and return the options of EO-1 or Wall-X."""
    shared = [
        f"--policy.normalization_mapping={json.dumps(MODES)}", "--policy.scheduler_decay_lr=1e-5",
        "--policy.scheduler_warmup_steps=50", f"--policy.scheduler_decay_steps={steps}",
    ]  # fmt: skip
    if policy == "eo1":
        folder = tiny_qwen.write(work / "qwen", WORDS, text=TEXT, vision=VISION)
        return [
            *shared, f"--policy.vlm_base={folder}", "--policy.load_vlm_weights=false",
            f"--policy.image_min_pixels={SIDE**2}", f"--policy.image_max_pixels={SIDE**2}",
            "--policy.num_denoise_steps=5",
        ]  # fmt: skip
    speaks = policy == "wall_x_fast"
    folder = tiny_qwen.write(
        work / f"qwen_of_{policy}", (*WORDS, *(wall_x_words.MARKS if speaks else ())),
        text={**TEXT, **EXPERTS}, vision={**VISION, **LARGE},
        top={"agent_pos_config": {"arm": 4}},
    )  # fmt: skip
    fast = tiny_fast.write(work / "fast")
    own = ["--policy.prediction_mode=fast", f"--policy.action_tokenizer_path={fast}"]
    return [
        *shared, f"--policy.pretrained_name_or_path={folder}", "--policy.load_base_weights=false",
        "--policy.dtype=float32", *(own if speaks else []),
    ]  # fmt: skip


def flags(asked: argparse.Namespace) -> list[str]:
    """Return the options of the training run."""
    policy, work, steps = asked.policy, asked.work, asked.steps
    own = groot_flags(work, steps) if policy == "groot" else spliced_flags(policy, work, steps)
    return [
        f"--policy.type={policy.removesuffix('_fast')}", *own,
        "--policy.push_to_hub=false", "--policy.device=cpu",
        f"--policy.chunk_size={CHUNK}", f"--policy.n_action_steps={CHUNK}",
        "--policy.max_state_dim=4", "--policy.max_action_dim=4", "--policy.optimizer_lr=1e-3",
        f"--policy.input_features={json.dumps(INPUTS)}",
        "--dataset.repo_id=kata/data", f"--dataset.root={work / 'data'}", "--batch_size=32",
        "--num_workers=1", f"--steps={steps}", "--save_freq=250", "--log_freq=100",
        "--dataset.cache=disk", f"--dataset.cache_dir={work / 'cache'}",
    ]  # fmt: skip


def main() -> None:
    """Record, train, evaluate, and write the result."""
    asked = arguments(tuple(STEPS), 0)
    asked.steps = asked.steps or STEPS[asked.policy]
    reach(asked, flags(asked), EXECUTED[asked.policy])


if __name__ == "__main__":
    main()
