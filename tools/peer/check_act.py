"""Compares kata's ACT with LeRobot's, every gradient element by element: `python check_act.py`, in the peer
environment with kata's `src` on PYTHONPATH. One line per case; leaves with 1 when a difference is too large.
"""

from __future__ import annotations

import sys
from typing import Any

import act_cases
import golden_act
import kata_act
import torch

TOLERANCE = 1e-5
"""Largest difference in fp32, as `kata_act.difference` measures it."""


def compare(case: act_cases.Case, config: dict[str, Any]) -> tuple[float, str, int]:
    """(largest difference, of which result, how many results)."""
    peer, own = golden_act.run(case, config), kata_act.run(case, config)
    if peer.keys() != own.keys():
        raise SystemExit(f"results differ in kind: {sorted(peer.keys() ^ own.keys())}")
    worst = max((kata_act.difference(own[name], value), name) for name, value in peer.items())
    return *worst, len(peer)


def main() -> int:
    torch.set_num_threads(1)
    failed = 0
    for name, (case, config) in act_cases.LIVE.items():
        worst, where, count = compare(case, config)
        failed += worst > TOLERANCE
        verdict = "PASS" if worst <= TOLERANCE else "FAIL"
        print(f"{verdict} act {name}: {worst:.1e} at most, in {where}, of {count} results", flush=True)
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
