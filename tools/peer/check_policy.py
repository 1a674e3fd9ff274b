"""Compares a policy of kata with LeRobot's, every gradient element by element: `check_policy.py
NAME`, in the peer environment with kata's `src` on PYTHONPATH; one line per case, leaving with 1
when a difference is too large: above 1e-5, or above what the module's TOLERANCES allow.
`check_policy.py NAME --golden OUT_DIR` writes what LeRobot computes for the golden cases instead;
with `--moved` for weights that are moved by rounding errors.
"""

from __future__ import annotations

import argparse
import importlib
import sys
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from numbers_of import TOLERANCE, difference, golden, is_gradient, moved_weights, within
from safetensors.torch import save_file
from torch import Tensor


def own_changes(policy: Any, case: Any, theirs: dict[str, Tensor]) -> dict[str, float]:
    """Return by how much rounding errors of its weights change LeRobot's own gradients."""
    with moved_weights():
        moved = policy.peer(case)
    return {
        result: difference(moved[result], value)
        for result, value in theirs.items()
        if is_gradient(result)
    }


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("name")
    parser.add_argument("--golden", type=Path)
    parser.add_argument("--moved", action="store_true")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    policy = importlib.import_module(f"policy_{asked.name}")
    if asked.golden:
        asked.golden.mkdir(parents=True, exist_ok=True)
        for name, case in policy.GOLDEN.items():
            with moved_weights() if asked.moved else nullcontext():
                save_file(golden(policy.peer(case)), asked.golden / f"{name}.safetensors")
        return 0
    tolerances: dict[str, float] = vars(policy).get("TOLERANCES", {})
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
        found = {result: difference(ours[result], value) for result, value in theirs.items()}
        where = max(found, key=lambda result: found[result])
        text = f"{found[where]:.1e} at most, in {where}, of {len(theirs)} results"
        passed = found[where] <= tolerances.get(name, TOLERANCE)
        if not passed and not tolerances:
            changes = own_changes(policy, case, theirs)
            passed = within(found, changes)
            text += f"; LeRobot's own change by {max(changes.values()):.1e} with moved weights"
        failed += not passed
        print(f"{'PASS' if passed else 'FAIL'} {asked.name} {name}: {text}", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
