"""Seconds, memory and host waits of one update on this machine's device, without any data reading.

    python benchmarks/step_time.py [--policy=act] [--options='{"chunk_size": 50}'] [--batch=8]
                                   [--height=480] [--width=640] [--cameras=2] [--steps=20]
                                   [--precision=no|bf16] [--compile]
                                   [--out=benchmarks/results/step_time.json]

Random weights, frames and numbers; the policy has its default options but for `--options`. On CUDA
every update after the first runs under torch.cuda.set_sync_debug_mode("error"): an update that made
the host wait would fail. With
--compile the policy's blocks are compiled (first_s has the time that takes), and blocks that were
not are listed. Needs torch, torchvision, numpy, safetensors and PyYAML alone, so that it runs where
nothing can be installed (multi_task_dit: transformers too).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import resource
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from kata.dist.engine import Engine
from kata.dist.process_group import ProcessGroup
from kata.policies import config_class
from kata.run import AcceleratorConfig, DatasetConfig, Run
from kata.spec import ACTION, LANGUAGE_MASK, LANGUAGE_TOKENS, STATE, Feature, FeatureType, pad_key
from kata.train.model.compile import compile_blocks, uncompiled
from kata.update.state import build_state
from kata.update.step import update


@dataclass
class RandomBatch:
    """A batch for one update, made once on the device."""

    micros: list[dict[str, Any]]
    draws: list[dict[str, torch.Tensor]]
    weights: dict[str, float]
    first_micro: int = 0
    shares: tuple[()] = ()


def make_run(options: argparse.Namespace) -> Run:
    """A run of the policy that is asked for, which sees cameras and 14 numbers and gives 14."""
    cameras = {
        f"observation.images.cam{i}": Feature(
            FeatureType.VISUAL, (3, options.height, options.width)
        )
        for i in range(options.cameras)
    }
    config = config_class(options.policy)(
        input_features={**cameras, STATE: Feature(FeatureType.STATE, (14,))},
        output_features={ACTION: Feature(FeatureType.ACTION, (14,))},
        **options.options,
    ).without_downloads()
    return Run(
        dataset=DatasetConfig(repo_id="random"),
        policy=config,
        optimizer=config.optimizer_preset(),
        batch_size=options.batch,
        accelerator=AcceleratorConfig(mixed_precision=options.precision),
    )


def make_batch(run: Run, device: torch.device) -> RandomBatch:
    """One batch, half of whose chunks of actions end in padding."""
    config, size, windows = run.policy, run.batch_size, run.policy.windows()
    lead = {
        key: (size, len(windows[key])) if key in windows else (size,)
        for key in config.input_features
    }
    frames = {
        # Channels innermost, as the feed leaves them.
        key: torch.rand(*lead[key], *f.shape[1:], f.shape[0], device=device).movedim(-1, -3)
        for key, f in config.cameras.items()
    }
    chunk = len(windows[ACTION])
    pad = torch.zeros(size, chunk, dtype=torch.bool, device=device)
    pad[: size // 2, chunk // 2 :] = True
    batch = {
        **frames,
        STATE: torch.randn(*lead[STATE], 14, device=device),
        ACTION: torch.randn(size, chunk, 14, device=device),
        pad_key(ACTION): pad,
    }
    if (tokenizer := config.tokenizer()) is not None:
        length = tokenizer["max_length"]
        batch[LANGUAGE_TOKENS] = torch.full((size, length), 7, device=device)
        batch[LANGUAGE_MASK] = torch.ones(size, length, dtype=torch.bool, device=device)
    made = {"normal": torch.randn, "uniform": torch.rand}
    draws = {
        name: made[draw.kind](size, *draw.shape, device=device)
        for name, draw in config.draws().items()
    }
    return RandomBatch(
        [batch], [draws], config.loss_weights(size, {pad_key(ACTION): pad.cpu().numpy()})
    )


def measure(options: argparse.Namespace) -> dict[str, Any]:
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    run = make_run(options)
    torch.backends.cudnn.benchmark = torch.backends.cuda.matmul.allow_tf32 = True
    engine = Engine(ProcessGroup(), device)
    state, batch = build_state(run, engine), make_batch(run, device)
    blocks = compile_blocks(state.policy) if options.compile else []
    state.optimizer = engine.begin(state.policy, state.optimizer)
    on_cuda = device.type == "cuda"
    began_s = time.perf_counter()
    update(state, batch, run, engine)  # pyright: ignore[reportArgumentType]
    first_s = time.perf_counter() - began_s
    for _ in range(2):
        update(state, batch, run, engine)  # pyright: ignore[reportArgumentType]
    if on_cuda:
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        torch.cuda.set_sync_debug_mode("error")
    wall_s, cpu_s = [], []
    for _ in range(options.steps):
        began_s, began_cpu_s = time.perf_counter(), time.process_time()
        update(state, batch, run, engine)  # pyright: ignore[reportArgumentType]
        if on_cuda:
            torch.cuda.set_sync_debug_mode("default")
            torch.cuda.synchronize()
            torch.cuda.set_sync_debug_mode("error")
        wall_s.append(time.perf_counter() - began_s)
        cpu_s.append(time.process_time() - began_cpu_s)
    peak = (
        torch.cuda.max_memory_allocated()
        if on_cuda
        else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    )
    return {
        "options": {name: value for name, value in vars(options).items() if name != "out"},
        "device": torch.cuda.get_device_name()
        if on_cuda
        else f"{platform.machine()}, {os.cpu_count()} cores",
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "first_s": first_s,
        "uncompiled": uncompiled(blocks),
        "update_s": statistics.median(wall_s),
        "update_cpu_s": statistics.median(cpu_s),
        "samples_per_s": run.batch_size / statistics.median(wall_s),
        "peak_bytes": peak,
        "host_waits": 0 if on_cuda else None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in (
        ("batch", 8),
        ("height", 480),
        ("width", 640),
        ("cameras", 2),
        ("steps", 20),
    ):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--policy", default="act")
    parser.add_argument("--options", type=json.loads, default={}, help="of the policy, as JSON")
    parser.add_argument("--precision", default="no", choices=("no", "bf16"))
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    result = measure(options)
    text = json.dumps(result, indent=4)
    print(text)
    if options.out:
        options.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
