"""Compares a policy of kata with LeRobot's, every gradient element by element: `check_policy.py
NAME`, in the peer environment with kata's `src` on PYTHONPATH; one line per case, leaving with 1
when a difference is too large. `check_policy.py NAME --golden OUT_DIR` writes what LeRobot computes
for the golden cases instead.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path

import torch
from numbers_of import TOLERANCE, difference, golden
from safetensors.torch import save_file


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--golden", type=Path)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    policy = importlib.import_module(f"policy_{asked.name}")
    if asked.golden:
        asked.golden.mkdir(parents=True, exist_ok=True)
        for name, case in policy.GOLDEN.items():
            save_file(golden(policy.peer(case)), asked.golden / f"{name}.safetensors")
        return 0
    failed = 0
    for name, case in policy.LIVE.items():
        theirs, ours = policy.peer(case), policy.own(case)
        if theirs.keys() != ours.keys():
            print(
                f"FAIL {asked.name} {name}: results differ in kind: "
                f"{sorted(theirs.keys() ^ ours.keys())[:6]}"
            )
            failed += 1
            continue
        worst, where = max(
            (difference(ours[result], value), result) for result, value in theirs.items()
        )
        failed += worst > TOLERANCE
        verdict = "PASS" if worst <= TOLERANCE else "FAIL"
        print(
            f"{verdict} {asked.name} {name}: {worst:.1e} at most, in {where}, of {len(theirs)} "
            "results",
            flush=True,
        )
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
