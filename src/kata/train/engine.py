"""The engine that a run asks for."""

from __future__ import annotations

from kata.dist.engine import Ddp, Engine
from kata.dist.team import Team
from kata.policies.base import Policy
from kata.run import Run


def open_engine(run: Run, policy: Policy, team: Team) -> Engine:
    """How the gradients of this run's ranks become one."""
    if team.world.size == 1:
        return Engine(policy, team)
    return Ddp(
        policy,
        team,
        bucket_mb=run.ddp.bucket_mb,
        bf16=run.ddp.compression == "bf16",
        changes=run.policy.loss_changes_after() > 0,
    )
