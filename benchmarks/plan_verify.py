"""Planned beside measured steps on this machine's device, calibrated with batch 2 and 4.

    OMP_NUM_THREADS=1 python benchmarks/plan_verify.py [result.json]

Each policy is measured with batch 2 and 4, planned for batch 16, and measured with that. Single
threads are measured by their CPU time. On a GPU the reserved memory is compared as well.
"""

from __future__ import annotations

import dataclasses
import json
import statistics
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch

from benchmarks.plan_guide import guide_run
from kata.launch.planning.subject import gpu_here, processor
from kata.plan.forecast import memory_of
from kata.plan.measuring.steps import measure_line, measure_steps
from kata.plan.trace_store import step_trace_of

POLICIES = ("act", "diffusion", "multi_task_dit", "tdmpc", "vqbet")
BATCH, SIDE = 16, (96, 96)
PRECISIONS_GPU = ("no", "bf16")


def verified(policy: str, precision: str) -> dict[str, Any]:
    """Return the planned and the measured step of a policy."""
    run = guide_run(policy, BATCH, side=SIDE)
    accelerator = dataclasses.replace(run.accelerator, mixed_precision=precision)
    run = dataclasses.replace(run, accelerator=accelerator)
    line = measure_line(run)
    measured = measure_steps(run)
    row: dict[str, Any] = {
        "policy": policy,
        "precision": precision,
        "batch": BATCH,
        "planned_s": line.at(BATCH),
        "measured_s": measured.step_s,
        "error": line.at(BATCH) / measured.step_s - 1,
    }
    here = gpu_here()
    if here is not None:
        planned = memory_of(run, step_trace_of(run), here, BATCH).reserved_bytes
        row |= {"planned_bytes": planned, "measured_bytes": measured.peak_bytes}
        row["memory_error"] = planned / measured.peak_bytes - 1
    return row


def main(path: Path) -> None:
    """Verify all policies, print the rows, and write them."""
    precisions = PRECISIONS_GPU if torch.cuda.is_available() else ("no",)
    rows: list[dict[str, Any]] = []
    for policy in POLICIES:
        for precision in precisions:
            rows.append(verified(policy, precision))
            print(rows[-1], flush=True)
    errors = [abs(row["error"]) for row in rows]
    result = {
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else processor(),
        "torch": version("torch"),
        "threads": torch.get_num_threads(),
        "median_error": statistics.median(errors),
        "largest_error": max(errors),
        "rows": rows,
    }
    print({name: result[name] for name in ("median_error", "largest_error")})
    path.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1] if sys.argv[1:] else "benchmarks/results/plan_verify_cpu_20261122.json"))
