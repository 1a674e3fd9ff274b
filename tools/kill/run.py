"""Kills training runs with SIGKILL at random moments and checks that they end as if nothing had
happened.

    python tools/kill/run.py [--kills 100] [--seed 0] [--keep FOLDER] [further options of `kata
    train`]

Every run is started with `--resume=true`, killed one to three times, and started again with the
same command until it is over. Then everything that it leaves is compared with a run that nobody
touched, byte for byte: weights, average, optimiser, configs, the figures of metrics.jsonl, and the
report's curves and predictions. Leaves with 1 when anything differs, and when none of fifty kills
or more landed in a save.

The processes are forked from this one, which has imported what takes seconds to import and has
computed nothing; from then on each is `kata train` and nothing else. Half of the kills come at a
moment drawn evenly over the time of a straight run, the other half at most 30 ms after a save has
begun. What a process was doing is what its own stacks say a moment before the kill.
"""

from __future__ import annotations

import argparse
import faulthandler
import json
import linecache
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # a forked process must not find the threads of another
os.environ.setdefault("MPLBACKEND", "Agg")

import matplotlib.backends.backend_svg  # noqa: F401 - each forked process would import it
import numpy as np
import torch._dynamo  # noqa: F401 - the same: every optimizer imports it
import transformers.models.auto.tokenization_auto  # noqa: F401 - the same

import kata.rl.trainer  # noqa: F401 - the same
from kata import pointers
from kata.cli import main
from kata.data.storage.store import local_file
from kata.data.video.packet_index import build_index
from kata.data.writing.dataset_writer import DatasetWriter, VideoOptions
from kata.spec import Column
from kata.train.checkpoint import folder, manifest, retention, snapshot
from kata.train.metrics.meter import read_metrics

sys.path.append(str(Path(__file__).parents[1] / "peer"))

import tiny_smolvlm

CAMERA, STATE, PLACE, ACTION = (
    "observation.images.top",
    "observation.state",
    "observation.environment_state",
    "action",
)
SAME_SECTIONS = ("Curves", "Where the error is", "Predicted against recorded")
MEASURED = re.compile(r"(_s|_share|_bytes)$|^(time|spent|bound_by)$|_per_s$")
COMPARED = (".safetensors", ".json", ".jsonl", ".f32")


def stack_lines(*places: Callable[..., Any] | ModuleType) -> re.Pattern[str]:
    """Match the lines of a stack dump that are in one of these functions or modules."""
    patterns: list[str] = []
    for place in places:
        if isinstance(place, ModuleType):
            patterns.append(re.escape(f'File "{place.__file__}"'))
        else:
            code = place.__code__
            file, name = re.escape(code.co_filename), re.escape(code.co_name)
            patterns.append(rf'File "{file}", line \d+ in {name}\b')
    return re.compile("|".join(patterns))


PHASES = {
    "pruning": stack_lines(retention.prune),
    "publishing": stack_lines(manifest.write_manifest, pointers),
    "writing": stack_lines(folder.publish),
    "copying": stack_lines(snapshot),
}
"""What a thread that saves is at, the last thing first."""
DUMP = signal.SIGRTMIN
BASE = [
    "--dataset.root=../data", "--dataset.repo_id=kill/tiny", "--dataset.eval_split=0.3", "--output_dir=run",  # noqa: E501
    "--resume=true", "--policy.device=cpu", "--policy.push_to_hub=false", "--steps=10", "--log_freq=1",  # noqa: E501
    "--eval_steps=3", "--save_freq=2", "--num_workers=2", "--optimizer.lr=1e-3", "--policy.chunk_size=4",  # noqa: E501
    "--policy.n_action_steps=4",
]  # fmt: skip
ACT = [
    "--policy.type=act", "--policy.pretrained_backbone_weights=null", "--policy.dim_model=16",
    "--policy.n_heads=2", "--policy.dim_feedforward=16", "--policy.n_encoder_layers=1",
    "--policy.n_vae_encoder_layers=1", "--policy.latent_dim=4",
]  # fmt: skip
_STATE = {STATE: {"type": "STATE", "shape": [3]}}
VECTORS = json.dumps({**_STATE, PLACE: {"type": "ENV", "shape": [2]}})
PICTURES = json.dumps({**_STATE, CAMERA: {"type": "VISUAL", "shape": [3, 16, 16]}})
ACCUMULATED = ["--batch_size=1", "--accelerator.gradient_accumulation.steps=4"]
VARIANTS = {
    "vectors": [f"--policy.input_features={VECTORS}", "--batch_size=4"],
    "vectors, EMA, accumulation " "4": [f"--policy.input_features={VECTORS}", *ACCUMULATED, "--ema.enable=true"],  # noqa: E501
    "vectors, EMA, bf16": [
        f"--policy.input_features={VECTORS}", "--batch_size=4", "--ema.enable=true",
        "--accelerator.mixed_precision=bf16",
    ],
    "vectors, accumulation 4, bf16": [
        f"--policy.input_features={VECTORS}", *ACCUMULATED, "--accelerator.mixed_precision=bf16",
    ],
    "vectors, few kept": [f"--policy.input_features={VECTORS}", "--batch_size=4", "--save_freq=1", "--keep_last=2"],  # noqa: E501
    "pictures, EMA": [f"--policy.input_features={PICTURES}", "--batch_size=4", "--ema.enable=true"],
    "pictures in clips, accumulation 4": [
        f"--policy.input_features={PICTURES}", *ACCUMULATED, "--dataset.shuffle=clips", "--dataset.clip_frames=4",  # noqa: E501
        "--dataset.clip_pool=2", "--keep_last=1",
    ],
    "pictures, one of which cannot be decoded": [
        f"--policy.input_features={PICTURES}", "--batch_size=4", "--dataset.root=../damaged",
        "--on_bad_frame=substitute",
    ],
    "learning by acting": [
        "rl", "--output_dir=run", "--resume=true", "--policy.device=cpu", "--policy.latent_dim=8",
        "--env.type=gym", "--env.id=Pendulum-v1", "--env.max_steps=12", "--rl.reward=env",
        "--env.success_key=terminated", "--policy.online_steps=200", "--save_freq=20",
        "--batch_size=8", "--log_freq=5", "--policy.online_buffer_capacity=100",
        "--policy.online_step_before_learning=10", "--algorithm.utd_ratio=2",
    ],
    "a vision-language model, its features cached": [
        "--policy.type=smolvla", "--policy.vlm_model_name=../smolvlm", f"--policy.input_features={PICTURES}",  # noqa: E501
        "--policy.num_vlm_layers=2", "--policy.resize_imgs_with_padding=[32,32]", "--policy.num_steps=2",  # noqa: E501
        "--policy.max_state_dim=4", "--policy.max_action_dim=4", "--batch_size=3", "--ema.enable=true",  # noqa: E501
        "--dataset.cache=prefix", "--dataset.cache_dir=cache", "--steps=20",
    ],
    "pictures cached on the disk": [
        f"--policy.input_features={PICTURES}", "--batch_size=4", "--dataset.cache=disk", "--dataset.cache_dir=cache",  # noqa: E501
        "--keep_last=2",
    ],
}  # fmt: skip
"""Small runs of two and a half epochs; that of the vision-language model has five, whose batches
cross the ends of epochs. Those with pictures have eleven million parameters, so that
their saves last; without bf16, in which torch 2.11 leaves parts of the gradient of a strided
convolution over a single pixel unwritten.
"""


@dataclass
class Straight:
    """A run that nobody touched: what it leaves, and how long it took."""

    left: dict[str, Any]
    wall_s: float


@dataclass
class Tally:
    """Counts of what the kills met."""

    kills: int = 0
    runs: int = 0
    saving: Counter[str] = field(default_factory=Counter)
    doing: Counter[str] = field(default_factory=Counter)
    mismatches: list[str] = field(default_factory=list)


def make_dataset(root: Path) -> None:
    """Three episodes of eight frames with one small camera: two thirds train, in four steps of
    four samples.
    """
    features = {
        CAMERA: Column("video", (16, 16, 3)),
        STATE: Column("float32", (3,)),
        PLACE: Column("float32", (2,)),
        ACTION: Column("float32", (2,)),
    }
    rng = np.random.default_rng(0)
    with DatasetWriter.create(
        root, fps=10, features=features, video=VideoOptions(codec="h264")
    ) as writer:
        for _ in range(3):
            for t in range(8):
                state = rng.normal(size=3).astype(np.float32)
                picture = np.full((16, 16, 3), 20 * t, dtype=np.uint8)
                place = rng.normal(size=2).astype(np.float32)
                writer.add_frame(
                    {CAMERA: picture, STATE: state, PLACE: place, ACTION: state[:2] - place},
                    task="go",
                )
            writer.save_episode()


def make_damaged(root: Path, whole: Path) -> None:
    """The same with a frame in the last episode, which is trained on, that cannot be decoded."""
    shutil.copytree(whole, root)
    video = next(root.glob("videos/**/*.mp4"))
    index = build_index(local_file(video))
    data = bytearray(video.read_bytes())
    at, size = int(index.offset[-3]), int(index.size[-3])
    data[at : at + size] = b"\xff" * size
    video.write_bytes(bytes(data))


def arguments(options: list[str]) -> list[str]:
    """The command line of a variant: `kata rl train` where its first word is rl."""
    if options[:1] == ["rl"]:
        return ["rl", "train", *options[1:]]
    is_named = any(option.startswith("--policy.type=") for option in options)
    return ["train", *BASE, *([] if is_named else ACT), *options]


def start(folder: Path, options: list[str]) -> int:
    """Fork a process that is `kata train` in this folder; its output goes to log.txt."""
    child = os.fork()
    if child:
        return child
    status = 70
    try:
        os.chdir(folder)
        output = os.open("log.txt", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        os.dup2(output, 1)
        os.dup2(output, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        with open("stacks.txt", "w") as stacks:
            faulthandler.register(DUMP, file=stacks, all_threads=True)
            status = main(arguments(options))
        sys.stdout.flush()
    finally:
        os._exit(status)


def kill(child: int, folder: Path, after_s: float, aimed: bool) -> str | None:
    """SIGKILL after that time, or that long after a save has begun; the stacks, or None when the
    run was over.
    """
    hidden = folder / "run" / "checkpoints"
    began_s = time.monotonic()
    while aimed and not _saves(hidden):
        if os.waitpid(child, os.WNOHANG)[0]:
            return None
        time.sleep(0.001)
    if aimed:
        began_s, after_s = time.monotonic(), after_s % 0.03
    while time.monotonic() - began_s < after_s:
        if os.waitpid(child, os.WNOHANG)[0]:
            return None
        time.sleep(min(0.005, max(0.0, after_s - (time.monotonic() - began_s))))
    stacks = folder / "stacks.txt"
    os.kill(child, DUMP)
    until_s = (
        time.monotonic() + 0.2
    )  # a process that waits for the disk answers later, and need not
    while (
        not (stacks.exists() and stacks.read_text().endswith("in <module>\n"))
        and time.monotonic() < until_s
    ):
        time.sleep(0.0005)
    os.kill(child, signal.SIGKILL)
    _, status = os.waitpid(child, 0)
    return (
        stacks.read_text()
        if os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL
        else None
    )


def _saves(checkpoints: Path) -> bool:
    return checkpoints.is_dir() and any(name.startswith(".") for name in os.listdir(checkpoints))


def doing(stacks: str) -> str:
    """The innermost line of kata's own in the main thread's stack (the last one that is dumped)."""
    main_thread = stacks.rpartition("(most recent call first):")[2]
    for path, line, function in re.findall(r'File "(.+?)", line (\d+) in (\w+)', main_thread):
        if "/kata/" in path and "/tools/" not in path:
            source = linecache.getline(path, int(line)).strip()
            return f"{path.rpartition('/kata/')[2]} {function}: {source[:60]}"
    return "outside kata's own lines"


def phase(stacks: str) -> list[str]:
    """Return the part of a save that was under way: one of PHASES, or nothing."""
    return [name for name, frame in PHASES.items() if frame.search(stacks)][:1]


def finish(folder: Path, options: list[str]) -> float:
    """Run to the end and return the wall time; SystemExit with the log when it fails."""
    began_s = time.monotonic()
    _, status = os.waitpid(start(folder, options), 0)
    if status:
        raise SystemExit(
            f"status {os.waitstatus_to_exitcode(status)} in "
            f"{folder}:\n{(folder / 'log.txt').read_text()}"
        )
    return time.monotonic() - began_s


def left(run: Path) -> dict[str, Any]:
    """Return what must be equal, by name: files, figures, and parts of the report.

    Manifests hold versions, and hashes of files that are compared themselves.
    """
    found: dict[str, Any] = {}
    for path in sorted(run.rglob("*")):
        name = str(path.relative_to(run))
        if path.is_symlink():
            found[name] = str(path.readlink())
        elif (
            path.suffix in COMPARED and "manifest" not in path.name and path.name != "metrics.jsonl"
        ):
            found[name] = path.read_bytes()
    # `saved` says how long a save took: a process killed right after one has no chance to say it.
    told = [line for line in read_metrics(run / "metrics.jsonl") if line["kind"] != "saved"]
    lines = [{k: v for k, v in line.items() if not MEASURED.search(k)} for line in told]
    found["metrics.jsonl"] = sorted(map(repr, lines))
    report = run / "report.html"
    page = report.read_text() if report.exists() else ""
    for section in re.findall(r"<section><h2>(.+?)</h2>\n(.*?)</section>", page, re.DOTALL):
        if section[0] in SAME_SECTIONS:
            found[f"report.html, {section[0]}"] = section[1]
    return found


def differences(straight: dict[str, Any], killed: dict[str, Any]) -> Iterator[str]:
    """Names of what is not equal."""
    for name in sorted({*straight, *killed}):
        if name not in killed or name not in straight:
            yield f"{name}: only in {'the killed run' if name in killed else 'the straight run'}"
        elif straight[name] != killed[name]:
            yield f"{name}: differs"


def campaign(base: Path, kills: int, seed: int, more: list[str], variants: list[str]) -> Tally:
    """Kill until there were so many; each run is compared when it is over."""
    rng, tally = random.Random(seed), Tally()
    straight: dict[str, Straight] = {}
    while tally.kills < kills:
        name = variants[tally.runs % len(variants)]
        options = [*VARIANTS[name], *more]
        if name not in straight:
            folder = base / f"straight-{len(straight)}"
            folder.mkdir()
            wall_s = finish(folder, options)
            straight[name] = Straight(left(folder / "run"), wall_s)
        folder = base / f"killed-{tally.runs:03d}"
        folder.mkdir()
        history: list[str] = []
        for _ in range(min(rng.randint(1, 3), kills - tally.kills)):
            after_s, aimed = rng.uniform(0, straight[name].wall_s), rng.random() < 0.5
            stacks = kill(start(folder, options), folder, after_s, aimed)
            if stacks is None:
                break
            tally.kills += 1
            tally.saving.update(phase(stacks))
            history.append(doing(stacks))
        tally.doing.update(history)
        finish(folder, options)
        tally.runs += 1
        found = list(differences(straight[name].left, left(folder / "run")))
        tally.mismatches += [
            f"run {tally.runs} ({name}; killed in: {' | '.join(history)}): {text}" for text in found
        ]
        print(
            f"{tally.kills:4d} kills, {tally.runs} runs, {len(tally.mismatches)} mismatches",
            flush=True,
        )
        if not found:
            shutil.rmtree(folder)
    return tally


def report(tally: Tally) -> int:
    """Print what came out; the exit status."""
    phases = ", ".join(f"{name} {tally.saving[name]}" for name in PHASES)
    print(
        f"\n{tally.kills} kills in {tally.runs} runs, {tally.saving.total()} of them in a save "
        f"({phases}):"
    )
    for text, count in tally.doing.most_common():
        print(f"{count:5d}  {text}")
    for text in tally.mismatches:
        print(f"MISMATCH {text}")
    bad_runs = len({text.partition("(")[0] for text in tally.mismatches})
    print(f"{tally.runs - bad_runs} of {tally.runs} runs ended exactly as the straight one")
    missed = tally.kills >= 50 and not tally.saving
    return 1 if tally.mismatches or missed else 0


def run() -> int:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--kills", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--keep", type=Path, help="a folder that stays, with every run that differed"
    )
    parser.add_argument("--only", choices=[*VARIANTS], help="one kind of run alone")
    known, more = parser.parse_known_args()
    with tempfile.TemporaryDirectory(prefix="kata-kill-") as made:
        base = known.keep or Path(made)
        base.mkdir(parents=True, exist_ok=True)
        if not (base / "data").exists():
            make_dataset(base / "data")
            make_damaged(base / "damaged", base / "data")
            tiny_smolvlm.write(base / "smolvlm")
        variants = [known.only] if known.only else [*VARIANTS]
        return report(campaign(base.resolve(), known.kills, known.seed, more, variants))


if __name__ == "__main__":
    sys.exit(run())
