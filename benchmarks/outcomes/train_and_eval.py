"""Trains a policy and evaluates it in simulation, in pieces that fit into ten minutes; keeps the
outcome as JSON.

python benchmarks/outcomes/train_and_eval.py act_reach [--piece_s=540] [--root=<dataset>]
[--policy=<checkpoint>]
    [--steps=N] [--episodes=N] [--train='<flags of kata train>'] [--eval='<flags of kata eval>']

Exit status 0: the outcome is in results/<case>.json. 3: time was up; run the same line again, and
it goes on. A piece of training is `kata train` with all its steps, so that schedules know them,
killed when the time is up; the next piece resumes from the last checkpoint and loses at most
`save_freq` steps. Evaluation goes on in rounds of episodes; episode k starts from seed 1000 + k in
whichever piece it falls. Nothing is fetched: the backbone starts untrained unless --train says
otherwise.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import resource
import shlex
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[2]
sys.path += [str(Path(__file__).parent), str(REPOSITORY / "tools/peer")]

import practice  # noqa: E402
import tiny_clip  # noqa: E402

SHARED = Path(os.environ.get("KATA_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))
RESULTS, MORE, SEED = Path(__file__).parent / "results", 3, 1000


def prepare(data: str, root: Path) -> None:
    """Make the dataset: demonstrations, practice of mixed quality, people's recordings, or a
    replayed expert.
    """
    if data == "practice":
        practice.record(root, num_episodes=400)
    elif data == "kata":
        from kata.eval.record.demonstrations import record

        record(root, num_episodes=200)
    elif data == "pusht":
        root.symlink_to(SHARED / "pusht-v30", target_is_directory=True)
    else:
        from kata.eval.record.replay import replay_aloha

        replay_aloha(SHARED / "aloha-scripted-traj.npz", root)


@dataclass(frozen=True)
class Case:
    """save_freq: a checkpoint per minute or so. round: episodes evaluated at a time. data: the
    environment's, else of this name. `{work}` in the flags is the folder of all cases.
    """

    env: str
    train: str
    data: str | None = None
    steps: int = 20_000
    save_freq: int = 500
    eval: str = ""
    episodes: int = 50
    round: int = 10


ACT = """
    --policy.type=act --policy.pretrained_backbone_weights=null --policy.push_to_hub=false --dataset.repo_id=kata/data
"""  # noqa: E501
LARGE = f"{ACT} --accelerator.mixed_precision=bf16 --num_workers=12"
ONE_CAMERA = {
    "observation.images.top": {"type": "VISUAL", "shape": [3, 64, 64]},
    "observation.state": {"type": "STATE", "shape": [2]},
}
STANDARDISED = {"VISUAL": "MEAN_STD", "STATE": "MEAN_STD", "ENV": "IDENTITY", "ACTION": "MIN_MAX"}
VQBET = """
    --policy.type=vqbet --policy.pretrained_backbone_weights=null --policy.push_to_hub=false --dataset.repo_id=kata/data
"""  # noqa: E501
DIFFUSION = """
    --policy.type=diffusion --policy.pretrained_backbone_weights=null --policy.push_to_hub=false
    --dataset.repo_id=kata/data
"""
TDMPC = "--policy.type=tdmpc --policy.push_to_hub=false --dataset.repo_id=kata/data"
DIT = """
    --policy.type=multi_task_dit --policy.vision_encoder_name={work}/clip --policy.text_encoder_name={work}/clip
    --policy.pretrained_encoders=false --policy.push_to_hub=false --dataset.repo_id=kata/data
"""  # noqa: E501
FLORENCE = {
    "vision_config": {
        "embed_dim": [32, 64, 96], "depths": [1, 1, 1], "num_heads": [2, 4, 4],
        "num_groups": [2, 4, 4], "patch_size": [7, 3, 3], "patch_stride": [4, 2, 2],
        "patch_padding": [3, 1, 1], "patch_prenorm": [False, True, True], "window_size": 4,
        "projection_dim": 96, "drop_path_rate": 0.0,
    },
    "text_config": {
        "d_model": 96, "encoder_layers": 2, "decoder_layers": 1, "encoder_attention_heads": 4,
        "decoder_attention_heads": 4, "encoder_ffn_dim": 192, "decoder_ffn_dim": 192,
        "vocab_size": 1024, "max_position_embeddings": 64, "dropout": 0.0,
    },
}  # fmt: skip
XVLA = """
    --policy.type=xvla --policy.tokenizer_name={work}/clip --policy.push_to_hub=false --dataset.repo_id=kata/data
"""  # noqa: E501
CASES = {
    "act_reach": Case(
        "kata",
        f"""{ACT} --policy.chunk_size=15 --policy.n_action_steps=7 --policy.dim_model=128 --policy.n_heads=4
        --policy.dim_feedforward=256 --policy.n_encoder_layers=2 --policy.n_vae_encoder_layers=2 --batch_size=16
        --optimizer.lr=3e-4 --policy.optimizer_lr_backbone=3e-4 --num_workers=2
        --scheduler.type=cosine_annealing_with_warmup --scheduler.num_warmup_steps=100""",  # noqa: E501
        steps=2000,
        save_freq=100,
    ),
    "vqbet_reach": Case(
        "kata",
        f"""{VQBET} --policy.n_obs_steps=2 --policy.crop_shape=null --policy.gpt_n_layer=4 --policy.gpt_n_head=4
        --policy.gpt_input_dim=128 --policy.gpt_output_dim=128 --policy.gpt_hidden_dim=128
        --policy.n_vqvae_training_steps=400 --policy.keep_unused_codes=true --policy.offset_loss_weight=100
        --batch_size=16 --optimizer.lr=5e-4 --policy.scheduler_warmup_steps=50 --policy.scheduler_decay_to_zero=true
        --num_workers=1 --policy.input_features='{json.dumps(ONE_CAMERA)}'""",  # noqa: E501
        steps=1200,
        save_freq=100,
    ),
    "diffusion_reach": Case(
        "kata",
        f"""{DIFFUSION} --policy.n_obs_steps=1 --policy.horizon=16 --policy.n_action_steps=8
        --policy.use_group_norm=true --policy.down_dims='[64,128,256]' --policy.diffusion_step_embed_dim=64
        --policy.noise_scheduler_type=DDIM --policy.num_inference_steps=10 --batch_size=32 --optimizer.lr=5e-4
        --policy.scheduler_warmup_steps=100 --num_workers=1 --policy.input_features='{json.dumps(ONE_CAMERA)}'""",  # noqa: E501
        steps=2000,
        save_freq=100,
    ),
    "tdmpc_reach": Case(
        "kata",
        f"""{TDMPC} --policy.horizon=3 --policy.max_random_shift_ratio=0 --policy.image_encoder_hidden_dim=16
        --policy.mlp_dim=256 --policy.target_model_momentum=0.98 --policy.consistency_coeff=5
        --policy.reward_coeff=4 --policy.value_coeff=0.2 --policy.temporal_decay_coeff=0.8
        --policy.cem_iterations=3 --policy.n_gaussian_samples=96 --policy.n_pi_samples=32 --policy.n_elites=16
        --policy.normalization_mapping='{json.dumps(STANDARDISED)}' --dataset.use_imagenet_stats=false
        --dataset.cache=frames --accelerator.mixed_precision=bf16 --batch_size=32 --num_workers=1 --optimizer.lr=1e-3
        --scheduler.type=cosine_annealing_with_warmup --scheduler.num_warmup_steps=100
        --policy.input_features='{json.dumps(ONE_CAMERA)}'""",  # noqa: E501
        data="practice",
        steps=2400,
        save_freq=200,
    ),
    "multi_task_dit_reach": Case(
        "kata",
        f"""{DIT} --policy.n_obs_steps=1 --policy.horizon=16 --policy.n_action_steps=8
        --policy.prediction_type=sample --policy.noise_scheduler_type=DDIM --policy.num_inference_steps=10
        --policy.hidden_dim=128 --policy.num_layers=3 --policy.num_heads=4 --policy.timestep_embed_dim=64
        --policy.tokenizer_max_length=16 --policy.image_crop_shape=null --policy.vision_encoder_lr_multiplier=1
        --policy.dropout=0 --batch_size=64 --policy.optimizer_lr=1e-3 --policy.scheduler_warmup_steps=50
        --dataset.use_imagenet_stats=false --num_workers=1
        --policy.input_features='{json.dumps(ONE_CAMERA)}'""",  # noqa: E501
        steps=1000,
        save_freq=100,
    ),
    "xvla_reach": Case(
        "kata",
        f"""{XVLA} --policy.florence_config='{json.dumps(FLORENCE)}' --policy.action_mode=auto --policy.max_action_dim=4
        --policy.max_state_dim=4 --policy.hidden_size=128 --policy.depth=3 --policy.num_heads=4
        --policy.num_domains=2 --policy.len_soft_prompts=4 --policy.max_len_seq=64 --policy.tokenizer_max_length=8
        --policy.cut_long_prompts=true
        --policy.chunk_size=16 --policy.n_action_steps=8 --policy.num_denoising_steps=5
        --policy.normalization_mapping='{json.dumps({**STANDARDISED, "VISUAL": "IDENTITY"})}'
        --policy.optimizer_lr=3e-3 --policy.scheduler_warmup_steps=50 --policy.scheduler_decay_lr=3e-5
        --batch_size=32 --num_workers=1 --policy.input_features='{json.dumps(ONE_CAMERA)}'""",  # noqa: E501
        steps=2000,
        save_freq=100,
    ),
    "act_pusht": Case(
        "pusht",
        f"""{LARGE} --policy.chunk_size=20 --policy.n_action_steps=10 --batch_size=64
        --optimizer.lr=1e-4 --policy.optimizer_lr_backbone=1e-4""",
    ),
    "diffusion_pusht": Case(
        "pusht",
        f"""{DIFFUSION} --policy.horizon=16 --policy.n_action_steps=8 --policy.resize_shape='[96,96]'
        --policy.crop_ratio=0.875 --policy.use_group_norm=true --policy.noise_scheduler_type=DDIM
        --policy.num_inference_steps=10 --ema.enable=true --batch_size=64 --num_workers=12 --dataset.cache=frames
        --accelerator.mixed_precision=bf16 --env.type=pusht --env_eval_freq=5000 --eval.n_episodes=50""",  # noqa: E501
        steps=100_000,
        save_freq=1000,
        episodes=500,
        round=50,
    ),
    "act_aloha": Case(
        "aloha",
        f"{LARGE} --batch_size=32 --optimizer.lr=5e-5 --policy.optimizer_lr_backbone=5e-5",
        eval="--eval.use_async_envs=true",  # rendering takes longer than acting
    ),
}


def train(case: Case, flags: str, root: Path, folder: Path, until_s: float) -> bool:
    """Go on training; true when it is done."""
    if read(folder / "trained.json", {"steps": 0})["steps"] == case.steps:
        return True
    given = shlex.split(f"{case.train} {flags}")
    placed = [flag.replace("{work}", str(folder.parent)) for flag in given]
    line = [sys.executable, "-m", "kata", "train", *placed, f"--steps={case.steps}"]
    line += [
        f"--save_freq={case.save_freq}",
        f"--dataset.root={root}",
        f"--output_dir={folder / 'train'}",
        "--resume",
    ]
    pieces, began_s, cpu_s = read(folder / "pieces.json", []), time.monotonic(), children_s()
    try:
        subprocess.run(line, check=True, timeout=max(1.0, until_s - began_s))
        done = True
    except subprocess.TimeoutExpired:  # the process has been killed
        done = False
    checkpoints = sorted(
        path for path in (folder / "train" / "checkpoints").glob("*") if path.name.isdigit()
    )
    step = int(checkpoints[-1].name) if checkpoints else 0
    for path in checkpoints[:-1]:  # each is three times the policy
        shutil.rmtree(path)
    if not done and step == (pieces[-1]["until_step"] if pieces else 0):
        sys.exit(
            f"no checkpoint within {until_s - began_s:.0f} s: lower --save_freq, now "
            f"{case.save_freq}"
        )
    spent = {
        "seconds": round(time.monotonic() - began_s, 1),
        "cpu_seconds": round(children_s() - cpu_s, 1),
    }
    pieces.append({"until_step": step, **spent})
    write(folder / "pieces.json", pieces)
    print(f"trained {step} of {case.steps} steps", flush=True)
    if done:
        write(folder / "trained.json", {"flags": given, "steps": step, "pieces": pieces})
    return done


def children_s() -> float:
    """CPU seconds of the processes that were started here and have ended."""
    spent = resource.getrusage(resource.RUSAGE_CHILDREN)
    return spent.ru_utime + spent.ru_stime


def evaluate(
    case: Case, flags: str, policy: Path, folder: Path, until_s: float
) -> list[dict[str, Any]] | None:
    """Go on evaluating; what each round found when all are done, else None."""
    from kata.eval.command import run_eval
    from kata.eval.options import resolve_eval

    found, longest_s = [], 0.0
    for first in range(0, case.episodes, case.round):
        target = folder / f"episodes_{first:04d}"
        if not (target / "eval.json").exists():
            if time.monotonic() + longest_s > until_s:
                print(f"evaluated {first} of {case.episodes} episodes", flush=True)
                return None
            shutil.rmtree(target, ignore_errors=True)
            number, began_s = min(case.round, case.episodes - first), time.monotonic()
            args = [f"--policy.path={policy}", f"--env.type={case.env}", f"--seed={SEED + first}"]
            args += [f"--eval.n_episodes={number}", f"--eval.videos={0 if first else 4}"]
            run_eval(
                resolve_eval([*args, *shlex.split(case.eval), *shlex.split(flags)]),
                target,
                shown=True,
            )
            longest_s = max(longest_s, time.monotonic() - began_s)
        found.append(read(target / "eval.json", None))
    return found


def outcome(
    name: str, rounds: list[dict[str, Any]], trained: dict[str, Any] | None
) -> dict[str, Any]:
    from kata.eval.result import wilson

    episodes = [episode for part in rounds for episode in part["episodes"]]
    wins = sum(episode["success"] for episode in episodes)
    keys = ("seed", "success", "sum_reward", "max_reward", "length", "crash")
    return {
        "case": name,
        "versions": {
            package: version(package) for package in ("kata", "torch", "gymnasium", "numpy")
        },
        "device": rounds[0]["policy"]["device"],
        "trained": trained,
        "env": rounds[0]["env"],
        "success_rate": wins / len(episodes),
        "success_interval": wilson(wins, len(episodes)),
        "mean_return": statistics.fmean(episode["sum_reward"] for episode in episodes),
        "mean_max_reward": statistics.fmean(episode["max_reward"] for episode in episodes),
        "mean_length": statistics.fmean(episode["length"] for episode in episodes),
        "eval_seconds": sum(part["seconds"]["total"] for part in rounds),
        "episodes": [{key: episode[key] for key in keys} for episode in episodes],
    }


def during_training(run: Path) -> list[dict[str, Any]]:
    """Success in the evaluations that a run made of itself, with the seconds of training before
    each.
    """
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    parts = {line["step"]: line["spent"]["total_s"] for line in lines if line["kind"] == "train"}
    found = {line["step"]: line["success_rate"] for line in lines if "success_rate" in line}
    return [
        {
            "step": step,
            "seconds": sum(s for at, s in parts.items() if at <= step),
            "success_rate": rate,
        }
        for step, rate in sorted(found.items())
    ]


def read(path: Path, absent: Any) -> Any:
    return json.loads(path.read_text()) if path.exists() else absent


def write(path: Path, value: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("case", choices=CASES)
    for name, kind in {
        "root": Path,
        "policy": Path,
        "steps": int,
        "episodes": int,
        "save_freq": int,
    }.items():
        parser.add_argument(f"--{name}", type=kind)
    usual = {
        "piece_s": 540.0,
        "train": "",
        "eval": "",
        "work": REPOSITORY / "outputs" / "outcomes",
        "results": RESULTS,
    }
    for name, value in usual.items():
        parser.add_argument(f"--{name}", type=type(value), default=value)
    given = parser.parse_args()
    until_s = time.monotonic() + given.piece_s
    asked = {
        key: value
        for key in ("steps", "episodes", "save_freq")
        if (value := getattr(given, key)) is not None
    }
    case, folder = dataclasses.replace(CASES[given.case], **asked), given.work / given.case
    if given.policy is None:
        data = case.data or case.env
        root = given.root or given.work / f"data_{data}"
        if not root.exists():
            partial = root.with_name(root.name + ".partial")
            shutil.rmtree(partial, ignore_errors=True)
            given.work.mkdir(parents=True, exist_ok=True)
            prepare(data, partial)
            partial.rename(root)
        if "{work}/clip" in case.train:
            tiny_clip.write(given.work / "clip", width=128, image=64, patch=32)
        if not train(case, given.train, root, folder, until_s):
            return MORE
    rounds = evaluate(
        case, given.eval, given.policy or folder / "train", folder / f"eval_{case.steps}", until_s
    )
    if rounds is None:
        return MORE
    found = outcome(
        given.case, rounds, None if given.policy else read(folder / "trained.json", None)
    )
    if given.policy is None:
        found["mean_return_of_demonstrations"] = practice.mean_return(root)
        found["during_training"] = during_training(folder / "train")
    write(given.results / f"{given.case}.json", found)
    print(
        f"{given.case}: success {found['success_rate']:.0%}, return {found['mean_return']:.2f} on "
        "average"
    )
    return 0


if __name__ == "__main__":
    sys.exit(main())
