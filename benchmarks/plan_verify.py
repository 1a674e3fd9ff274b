"""Planned beside measured steps on this machine's device, calibrated with batch 2 and 4.

    OMP_NUM_THREADS=1 python benchmarks/plan_verify.py [--only=act] [--out=result.json]

Each policy is measured with batch 2 and 4, planned for batch 16, and measured with that. On a CPU
the policies are small and take float32; single threads are measured by their CPU time. On a GPU
they have their defaults, take two precisions, and are measured with batch 8 and 16. There the plan
from the catalogue is compared as well, and so is what torch allocated and reserved.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import torch

from benchmarks.plan_guide import MEMORY_GB, guide_run
from benchmarks.small_policies import SMALL, shrink_paligemma, small_options, tiny
from kata.launch.planning.subject import gpu_here, processor
from kata.plan.catalogue import Gpu
from kata.plan.device_rates import rates_of
from kata.plan.forecast import memory_of
from kata.plan.measuring.steps import (
    LINE_BATCHES,
    MeasuredSteps,
    line_through,
    measure_line,
    measure_steps,
    measure_times_s,
    with_micro_batch,
)
from kata.plan.profiles import StepLine
from kata.plan.step_time import step_time
from kata.plan.trace_store import step_trace_of
from kata.run import Run

PRECISIONS_GPU = ("no", "bf16")
BATCHES_GPU = (8, 16)
BATCH_CPU = 16
WITHOUT_WEIGHTS = {"pretrained_backbone_weights": None}


class VerifyCase(NamedTuple):
    """A policy, its frames, and options with which a step on a CPU takes about a second."""

    policy: str
    side: tuple[int, int]
    options: dict[str, Any]


def cpu_cases(folder: Path) -> Iterator[VerifyCase]:
    """Yield the policies at small sizes; tiny models in `folder` replace those of the Hub."""
    clip = str(tiny("tiny_clip").write(folder / "clip"))
    sizes = {"dim_model": 256, "dim_feedforward": 1024, "chunk_size": 50, "n_action_steps": 50}
    yield VerifyCase("act", (96, 96), {**WITHOUT_WEIGHTS, **sizes})
    yield VerifyCase("diffusion", (96, 96), {**WITHOUT_WEIGHTS, "down_dims": (64, 128, 256)})
    transformer = {"num_layers": 6, "hidden_dim": 512, "num_heads": 4}
    encoders: dict[str, Any] = {
        "vision_encoder_name": clip,
        "text_encoder_name": clip,
        "image_crop_shape": None,
    }
    encoders["tokenizer_max_length"] = 16
    yield VerifyCase("multi_task_dit", (32, 32), {**encoders, **transformer})
    yield VerifyCase("tdmpc", (84, 84), {})
    yield VerifyCase("vqbet", (96, 96), WITHOUT_WEIGHTS)
    shrink_paligemma()
    whole = {"gradient_checkpointing": False}
    for policy in SMALL:
        options = small_options(policy, folder)
        if policy.startswith("pi0"):
            options |= {"dtype": "float32", **whole}
        yield VerifyCase(policy, (112, 112), options)


def gpu_cases() -> Iterator[VerifyCase]:
    """Yield the policies with their defaults."""
    for policy in MEMORY_GB:
        yield VerifyCase(policy, (84, 84) if policy == "tdmpc" else (480, 640), {})


def verified(run: Run, line: StepLine, measured: MeasuredSteps, gpu: Gpu | None) -> dict[str, Any]:
    """Return the planned and the measured step of a run.

    Args:
        run: with the batch that is planned and measured.
        line: through the measured times of smaller batches.
        measured: its steps.
        gpu: of this machine; None on a CPU.
    """
    batch = run.batch_size
    row: dict[str, Any] = {
        "policy": run.policy.type,
        "precision": run.precision,
        "batch": batch,
        "planned_s": line.at(batch),
        "measured_s": measured.step_s,
        "error": line.at(batch) / measured.step_s - 1,
    }
    if gpu is not None:
        trace = step_trace_of(run)
        memory = memory_of(run, trace, gpu, batch)
        time = step_time(trace, batch, rates_of(gpu, run.precision, tf32=run.tf32))
        row |= {
            "catalogue_s": time.update_s,
            "catalogue_error": time.update_s / measured.step_s - 1,
            "planned_allocated_bytes": memory.tensor_bytes,
            "measured_allocated_bytes": measured.allocated_bytes,
            "allocated_error": memory.tensor_bytes / measured.allocated_bytes - 1,
            "planned_reserved_bytes": memory.reserved_bytes,
            "measured_reserved_bytes": measured.peak_bytes,
            "reserved_error": memory.reserved_bytes / measured.peak_bytes - 1,
        }
    return row


def rows_of(case: VerifyCase, gpu: Gpu | None) -> Iterator[dict[str, Any]]:
    """Yield a row per precision and batch size; a step that memory is too small for is one too."""
    for precision in ("no",) if gpu is None else PRECISIONS_GPU:
        for batch in (BATCH_CPU,) if gpu is None else BATCHES_GPU:
            run = guide_run(case.policy, batch, side=case.side, options=case.options)
            accelerator = dataclasses.replace(run.accelerator, mixed_precision=precision)
            run = dataclasses.replace(run, accelerator=accelerator, gradient_checkpointing=False)
            try:
                yield verified(run, *_measured(run, gpu), gpu)
            except torch.OutOfMemoryError as error:
                failed = {"policy": case.policy, "precision": precision, "batch": batch}
                yield {**failed, "out_of_memory": str(error).splitlines()[0]}


def _measured(run: Run, gpu: Gpu | None) -> tuple[StepLine, MeasuredSteps]:
    """Return the line of small batches and the steps of the run's own.

    On a CPU all three batches take turns, so that other programs slow all of them.
    """
    if gpu is not None:
        return measure_line(with_micro_batch(run, run.batch_size)), measure_steps(run)
    times_s = measure_times_s(run, (*LINE_BATCHES, run.batch_size), "cpu")
    return line_through(times_s), MeasuredSteps(times_s[run.batch_size], 0)


def summary(rows: list[dict[str, Any]]) -> dict[str, float]:
    """Return the median and the largest size of each error."""
    found: dict[str, float] = {}
    for name in ("error", "catalogue_error", "allocated_error", "reserved_error"):
        sizes = [abs(row[name]) for row in rows if name in row]
        if sizes:
            found[f"median_{name}"] = statistics.median(sizes)
            found[f"largest_{name}"] = max(sizes)
    return found


def main() -> None:
    """Verify all policies, print the rows, and write them; rows of other policies are kept."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--only", help="one policy")
    default = "benchmarks/results/plan_verify_cpu_20261123.json"
    parser.add_argument("--out", type=Path, default=Path(default))
    options = parser.parse_args()
    gpu = gpu_here()
    rows: list[dict[str, Any]] = []
    if options.only and options.out.is_file():
        kept = json.loads(options.out.read_text(encoding="utf-8"))["rows"]
        rows = [row for row in kept if row["policy"] != options.only]
    with tempfile.TemporaryDirectory() as folder:
        for case in gpu_cases() if gpu is not None else cpu_cases(Path(folder)):
            if options.only in (None, case.policy):
                for row in rows_of(case, gpu):
                    rows.append(row)
                    print(row, flush=True)
                _write(options.out, rows, gpu)
    print(summary(rows))


def _write(path: Path, rows: list[dict[str, Any]], gpu: Gpu | None) -> None:
    """Write what was measured so far."""
    result = {
        "device": processor() if gpu is None else torch.cuda.get_device_name(),
        "torch": version("torch"),
        "threads": torch.get_num_threads(),
        **summary(rows),
        "rows": rows,
    }
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
