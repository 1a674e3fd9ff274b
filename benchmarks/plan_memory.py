"""Traced bytes at the peak of a step on the CPU against the record of torch's CPU allocator.

    python benchmarks/plan_memory.py [--only=act] [--out=benchmarks/results/plan_memory.json]

Each case is one policy with one batch size, with or without EMA and activation checkpointing, in
float32 or bf16. The record is that of torch.profiler (profile_memory): it counts what the allocator
hands out and takes back, from before the policy is built until a step after the first one has
ended. The trace does not see it. Nothing is timed, so a busy machine does no harm.
"""

from __future__ import annotations

import argparse
import atexit
import functools
import json
import platform
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.profiler import ProfilerActivity, profile, record_function

from benchmarks.small_policies import SMALL, shrink_paligemma, small_options
from kata.dist.engine import Engine
from kata.dist.process_group import ProcessGroup
from kata.optim.config import EmaConfig
from kata.plan.memory import plan_memory
from kata.plan.tracing.blank_batch import blank_batch
from kata.plan.tracing.trace import trace_step, warm_state
from kata.policies import config_class
from kata.run import AcceleratorConfig, DatasetConfig, Run
from kata.spec import ACTION, STATE, Feature, FeatureType
from kata.update.step import update

BOUND = 0.03
MEASURED = "measured step"


class MemoryCase(NamedTuple):
    """A policy at small frames, so that a step on a CPU takes seconds."""

    policy: str
    frames: tuple[int, int]
    cameras: int
    options: dict[str, Any]
    sizes: tuple[int, int]


WITHOUT_WEIGHTS = {"pretrained_backbone_weights": None}
ALL_TRAINED = {"freeze_vision_encoder": False, "train_expert_only": False}

CASES = (
    MemoryCase("act", (120, 160), 2, WITHOUT_WEIGHTS, (2, 8)),
    MemoryCase(
        "diffusion", (96, 96), 1, {**WITHOUT_WEIGHTS, "down_dims": (128, 256, 512)}, (4, 16)
    ),
    MemoryCase("multi_task_dit", (224, 224), 1, {"num_layers": 2}, (1, 3)),
    MemoryCase("tdmpc", (84, 84), 1, {}, (4, 16)),
    MemoryCase("vqbet", (96, 96), 1, WITHOUT_WEIGHTS, (4, 16)),
    MemoryCase("smolvla", (64, 64), 2, ALL_TRAINED, (2, 8)),
    MemoryCase("pi0", (112, 112), 2, {}, (2, 8)),
    MemoryCase("pi05", (112, 112), 2, {}, (2, 8)),
    MemoryCase("pi0_fast", (112, 112), 2, {}, (2, 8)),
    MemoryCase("xvla", (112, 112), 2, {}, (2, 8)),
    MemoryCase("groot", (112, 112), 2, {}, (2, 8)),
    MemoryCase("eo1", (112, 112), 2, {}, (2, 8)),
    MemoryCase("wall_x", (112, 112), 2, {}, (2, 8)),
)
VARIANTS: tuple[dict[str, Any], ...] = (
    {},
    {"ema": EmaConfig(enable=True)},
    {"gradient_checkpointing": True},
    {"accelerator": AcceleratorConfig(mixed_precision="bf16")},
)


@functools.cache
def stand_in_folder() -> Path:
    """Return a folder that goes with this process."""
    folder = tempfile.mkdtemp()
    atexit.register(shutil.rmtree, folder)
    return Path(folder)


def make_run(case: MemoryCase, variant: dict[str, Any]) -> Run:
    """Return a run of the case's policy on cameras and four numbers."""
    cameras = {
        f"observation.images.cam{number}": Feature(FeatureType.VISUAL, (3, *case.frames))
        for number in range(case.cameras)
    }
    small = small_options(case.policy, stand_in_folder()) if case.policy in SMALL else {}
    config = config_class(case.policy)(
        input_features={**cameras, STATE: Feature(FeatureType.STATE, (4,))},
        output_features={ACTION: Feature(FeatureType.ACTION, (4,))},
        push_to_hub=False,
        **small | case.options,
    ).without_downloads()
    return Run(
        dataset=DatasetConfig(repo_id="random"),
        policy=config,
        optimizer=config.optimizer_preset(),
        **variant,
    )


def recorded_peak(run: Run, size: int) -> int:
    """Return the most bytes that the CPU allocator had handed out during a step."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        engine = Engine(ProcessGroup(), torch.device("cpu"))
        state = warm_state(run, engine)
        with record_function(MEASURED):
            update(state, blank_batch(run, size), run, engine)
    changes: list[tuple[int, int]] = []
    began_ns, ended_ns = 0, 0
    results: Any = profiler.profiler
    for event in results.kineto_results.events():
        if event.name() == "[memory]":
            changes.append((event.start_ns(), event.nbytes()))
        elif event.name() == MEASURED:
            began_ns, ended_ns = event.start_ns(), event.start_ns() + event.duration_ns()
    live, most = 0, 0
    for at_ns, change in sorted(changes, key=lambda item: item[0]):
        live += change
        if began_ns <= at_ns <= ended_ns:
            most = max(most, live)
    return most


def results_of(only: str | None) -> Iterator[dict[str, Any]]:
    """Yield one result per policy, variant and batch size."""
    for case in CASES:
        for variant in VARIANTS:
            run = make_run(case, variant)
            if only not in (None, case.policy):
                continue
            trace = trace_step(run, device="cpu")
            for size in case.sizes:
                planned = plan_memory(trace, size)
                measured = recorded_peak(run, size)
                yield {
                    "policy": case.policy,
                    "frames": list(case.frames),
                    "cameras": case.cameras,
                    "batch": size,
                    "ema": run.ema.enable,
                    "gradient_checkpointing": run.gradient_checkpointing,
                    "precision": run.precision,
                    "planned_bytes": planned.tensor_bytes,
                    "measured_bytes": measured,
                    "error": planned.tensor_bytes / measured - 1,
                    "parts": planned.parts,
                }


def main() -> int:
    """Measure all cases, print them, and write the JSON."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", help="one policy")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/plan_memory.json"))
    options = parser.parse_args()
    torch.set_num_threads(1)
    shrink_paligemma()
    found: list[dict[str, Any]] = []
    for result in results_of(options.only):
        found.append(result)
        print(
            f"{result['policy']:15} B={result['batch']:<3} ema={result['ema']!s:5} "
            f"checkpointing={result['gradient_checkpointing']!s:5} {result['precision']:4} "
            f"planned {result['planned_bytes'] / 1e6:8.1f} MB, measured "
            f"{result['measured_bytes'] / 1e6:8.1f} MB, {result['error']:+.2%}",
            flush=True,
        )
    worst = max(abs(result["error"]) for result in found)
    print(f"worst {worst:.2%} of {len(found)}")
    head = {"machine": platform.machine(), "torch": torch.__version__, "bound": BOUND}
    options.out.write_text(json.dumps({**head, "worst": worst, "cases": found}, indent=1) + "\n")
    return 0 if worst <= BOUND else 1


if __name__ == "__main__":
    raise SystemExit(main())
