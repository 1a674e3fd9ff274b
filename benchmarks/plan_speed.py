"""Seconds and memory of `kata plan` for steps that were not traced before, one process each.

    OMP_NUM_THREADS=1 python benchmarks/plan_speed.py [result.json] [policy ...]

Each policy has its defaults and the guide's dataset of two cameras (`benchmarks/plan_guide.py`).
The traces of a plan go into a cache folder that is empty before.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.plan_guide import MEMORY_GB, OPTIONS

LIMIT_S, LIMIT_ACT_S, LIMIT_BYTES = 60.0, 20.0, 4e9
DATA = (
    *("--dataset.frames=45000", "--dataset.cameras=2x480x640", "--dataset.state_dim=14"),
    *("--dataset.action_dim=14", "--dataset.fps=30", "--dataset.episodes_count=50"),
)
ONE_CAMERA = {"vqbet": "1x480x640", "tdmpc": "1x84x84"}


def arguments(policy: str) -> list[str]:
    """Return the arguments of `kata plan` for a policy."""
    words = [f"--policy.type={policy}", *DATA, "--gpu=a100-80gb", "--batch_size=8", "--json"]
    if policy in ONE_CAMERA:
        words.append(f"--dataset.cameras={ONE_CAMERA[policy]}")
    for name, value in OPTIONS.get(policy, {}).items():
        words.append(f"--policy.{name}={value if isinstance(value, str) else json.dumps(value)}")
    return words


def measured(policy: str) -> dict[str, Any]:
    """Plan a policy in a process of its own, and return its time and memory."""
    with tempfile.TemporaryDirectory() as folder:
        environment = {**os.environ, "KATA_CACHE": folder, "HF_HUB_OFFLINE": "1"}
        began_s = time.perf_counter()
        running = subprocess.Popen(
            [sys.executable, "-m", "kata", "plan", *arguments(policy)],
            stdout=subprocess.PIPE,
            env=environment,
        )
        assert running.stdout is not None
        answer = running.stdout.read()
        _, status, used = os.wait4(running.pid, 0)
        wall_s = time.perf_counter() - began_s
    if status:
        raise SystemExit(f"kata plan of {policy} ended with status {status}")
    plan = json.loads(answer)
    limit_s = LIMIT_ACT_S if policy == "act" else LIMIT_S
    cpu_s, memory_bytes = used.ru_utime + used.ru_stime, 1024 * used.ru_maxrss
    return {
        "policy": policy,
        "parameters": plan["policy"]["trainable_parameters"] + plan["policy"]["frozen_parameters"],
        "wall_s": round(wall_s, 1),
        "cpu_s": round(cpu_s, 1),
        "memory_mb": round(memory_bytes / 1e6),
        "inside": wall_s <= limit_s and memory_bytes <= LIMIT_BYTES,
    }


def main(path: Path, policies: list[str]) -> None:
    """Measure policies, print the rows and write them; rows of other policies are kept."""
    asked = policies or list(MEMORY_GB)
    kept = json.loads(path.read_text(encoding="utf-8"))["rows"] if path.is_file() else []
    rows = [row for row in kept if row["policy"] not in asked]
    for policy in asked:
        rows.append(measured(policy))
        print(rows[-1], flush=True)
        limits = {"act_s": LIMIT_ACT_S, "other_s": LIMIT_S, "memory_bytes": LIMIT_BYTES}
        path.write_text(json.dumps({"limits": limits, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    target = Path(sys.argv[1] if sys.argv[1:] else "benchmarks/results/plan_speed_20261123.json")
    main(target, sys.argv[2:])
