"""LeRobot's own step under the rules and constants of the plan, beside public figures.

    PYTHONPATH=src:. .peer/bin/python benchmarks/plan_guide_peer.py [result.json] [only]

Public figures were measured with LeRobot's step, and `benchmarks/plan_guide.py` plans kata's. Here
the plan reads a trace of LeRobot's step instead. What is left of a difference is the plan's, or the
figure's. Runs in an environment with LeRobot 0.6.1 (`make peer`); no GPU is needed.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.plan_guide import ALL_TRAINED, FRAMES, NARROW, guide_run
from kata.bench.step.peer_step import peer_recording
from kata.plan.catalogue import LINKS, gpu_named
from kata.plan.device_rates import rates_of
from kata.plan.forecast import layout_of
from kata.plan.memory import plan_memory
from kata.plan.step_time import step_time
from kata.plan.step_trace import Linear, StepTrace, TracedOperation, TracedStorage
from kata.plan.tracing.recorder import Recording


class Figure(NamedTuple):
    """Public figures of one step of LeRobot's.

    Attributes:
        policy: its type.
        batch: samples of each GPU.
        public: what is published of it, by the GPU: seconds, or a range of bytes at batch 8.
        ranks: GPUs.
        side: height and width of the frames.
        options: of the policy, in LeRobot's and kata's config.
        cameras: of the dataset, or slots for them in the policy.
    """

    policy: str
    batch: int
    public: Mapping[str, Any]
    ranks: int = 1
    side: tuple[int, int] = (480, 640)
    options: Mapping[str, Any] = {}
    cameras: int = 2


def hours(least: float, batch: int, most: float | None = None) -> list[float]:
    """Return the range of a step's seconds that hours of five epochs are; twice the least if no
    most is named.
    """
    steps = 5 * math.ceil(FRAMES / batch)
    return [3600 * each / steps for each in (least, most or 2 * least)]


FIGURES = (
    Figure("diffusion", 32, {"h100": 0.167}, 4),
    Figure("smolvla", 32, {"h100": 0.312}, 4, options=ALL_TRAINED),
    *(Figure("diffusion", 32, {"h100": 0.167}, 4, cameras=count) for count in (1, 3)),
    *(
        Figure("smolvla", 32, {"h100": 0.312}, 4, options=ALL_TRAINED, cameras=count)
        for count in (1, 3)
    ),
    *(Figure("pi05", 32, {"h100": 2.548}, 4, options=NARROW, cameras=count) for count in (1, 2, 3)),
    Figure(
        "act", 160, {"h100": 160 / 1200, "a100-80gb": 160 / 615, "l4": 160 / 183}, 1, (256,) * 2
    ),
    Figure("smolvla", 64, {"a100-80gb": [64 / 89, 64 / 71]}),
    Figure("act", 8, {name: hours(1, 8) for name in ("l4", "a10g")}),
    Figure("act", 8, {name: hours(0.5, 8) for name in ("rtx4090", "rtx3090")}),
    Figure("act", 4, {name: hours(6, 4, 14) for name in ("m1-max", "m3-max")}),
    Figure("diffusion", 8, {name: hours(2, 8) for name in ("rtx4090", "rtx3090")}),
    Figure("smolvla", 4, {"l4": hours(3, 4)}),
    Figure("smolvla", 16, {"a100-40gb": hours(1, 16)}),
    *(
        Figure(policy, 4, {"a100-40gb": hours(4, 4)}, options=NARROW, cameras=count)
        for policy in ("pi0", "pi05")
        for count in (2, 3)
    ),
    Figure("act", 8, {"memory_gb": [2, 6]}),
    Figure("vqbet", 8, {"memory_gb": [2, 6]}),
    Figure("tdmpc", 8, {"memory_gb": [2, 6]}),
    Figure("diffusion", 8, {"memory_gb": [8, 14]}),
    Figure("multi_task_dit", 8, {"memory_gb": [8, 14]}),
    Figure("smolvla", 8, {"memory_gb": [10, 16]}),
    Figure("smolvla", 8, {"memory_gb": [10, 16]}, options=ALL_TRAINED),
    Figure("pi0", 8, {"memory_gb": [24, 40]}, options=NARROW),
    Figure("pi05", 8, {"memory_gb": [24, 40]}, options=NARROW),
)


def step_of(recording: Recording, policy: str, trainable: int) -> StepTrace:
    """Return a recording as a trace whose counts stand for any number of samples."""
    count = len(recording.operations)
    operations: list[TracedOperation] = []
    for op in recording.operations:
        counts = [Linear(each, 0) for each in (op.flops, op.read_bytes, op.written_bytes)]
        operations.append(
            TracedOperation(op.name, op.kind, op.phase, op.dtype, op.launches, 1, *counts)
        )
    storages: list[TracedStorage] = []
    for each in recording.storages:
        end = count if each.end is None else each.end
        size = Linear(each.size_bytes, 0)
        storages.append(TracedStorage(each.part or "temporaries", size, each.begin, end))
    return StepTrace(
        policy=policy,
        device="cuda",
        precision="no",
        recomputes=False,
        torch="",
        trainable=trainable,
        frozen=0,
        unit_bytes=(0,),
        begins=recording.begins,
        operations=tuple(operations),
        storages=tuple(storages),
        num_operations=count,
    )


def row_of(figure: Figure) -> dict[str, Any]:
    """Return the plan of LeRobot's step beside a public figure."""
    shape = (figure.batch, figure.ranks, figure.side, figure.options, figure.cameras)
    run = guide_run(figure.policy, *shape)
    recording, waits = peer_recording(run, figure.batch, figure.options)
    moments = sum(s.size_bytes for s in recording.storages if s.part == "optimizer_state")
    trace = step_of(recording, figure.policy, moments // 8)
    memory = plan_memory(trace, figure.batch, overheads=gpu_named("a100-80gb").overheads)
    row: dict[str, Any] = {
        "policy": figure.policy,
        "batch": figure.batch,
        "gpus": figure.ranks,
        "cameras": figure.cameras,
        "options": dict(figure.options),
        "public": dict(figure.public),
        "launches": trace.launches() - trace.launches("input"),
        "host_waits": waits,
        "memory_gb": memory.total_bytes / 1e9,
        "memory_parts_gb": {k: round(v / 1e9, 2) for k, v in memory.parts.items()},
    }
    for name in figure.public:
        if name != "memory_gb":
            gpu = gpu_named(name)
            rates = rates_of(gpu, run.precision, tf32=run.tf32)
            link = LINKS[gpu.link]
            time = step_time(trace, figure.batch, rates, layout=layout_of(run), link=link)
            row[f"{name}_s"] = time.update_s
            row[f"{name}_kinds_s"] = {k: round(v, 4) for k, v in time.kinds.items()}
            row[f"{name}_launch_s"] = time.launch_s
            row[f"{name}_inside"] = inside(time.update_s, figure.public[name])
    return row


def inside(found: float, public: float | list[float]) -> str:
    """Return by how much a figure is beside a range, or beside a measured one."""
    low, high = public if isinstance(public, list) else (public, public)
    if low <= found <= high:
        return "yes"
    return f"{found / (low if found < low else high) - 1:+.0%}"


def main(path: Path, only: str) -> None:
    """Compute all rows, or those of a policy, print them, and write them; others are kept."""
    kept = json.loads(path.read_text(encoding="utf-8")) if only and path.is_file() else []
    rows = [row for row in kept if row["policy"] != only]
    for figure in FIGURES:
        if only in ("", figure.policy):
            rows.append(row_of(figure))
            print(rows[-1], flush=True)
            path.write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    words = sys.argv[1:]
    default = "benchmarks/results/plan_guide_peer_20261123.json"
    main(Path(words[0] if words else default), words[1] if words[1:] else "")
