"""π0.5: cases, and what LeRobot and kata compute for them."""

from __future__ import annotations

from pi_cases import GOLDEN, LIVE, Case, Sides, steady

__all__ = ["CHECKPOINT", "GOLDEN", "LIVE", "build_own", "build_peer", "own", "peer", "steady"]

CHECKPOINT = Case(max_length=100)
"""What a checkpoint is written of and acted from, both ways."""

SIDES = Sides("pi05", "PI05")
build_peer, build_own = SIDES.build_peer, SIDES.build_own
peer, own = SIDES.peer, SIDES.own
