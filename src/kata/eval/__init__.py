"""Acting and its evaluation: loading a policy, the built-in task, demonstrations, and rollouts.

The names are imported when they are first used: `kata eval --help` needs no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kata.eval.rollout_policy import Acting, load_for_acting

__all__ = ["Acting", "load_for_acting"]


def __getattr__(name: str) -> object:
    """Import the policy's side of a rollout, with torch, when one of its names is first used."""
    if name not in __all__:
        raise AttributeError(f"module 'kata.eval' has no attribute '{name}'")
    from kata.eval import rollout_policy

    return vars(rollout_policy)[name]
