"""Activations that are computed again in the backward pass instead of kept: less memory, about a
third more work.
"""

from __future__ import annotations

from kata.errors import PolicyError
from kata.nn.recompute import recompute_in_backward
from kata.policies.base import Policy


def recompute_activations(policy: Policy) -> None:
    """Let the policy's `recompute_units` keep nothing but their inputs while they are trained.

    Dropout draws the same masks again, so gradients are those without it. To be called before the
    parts of the policy are compiled or sharded: what those put around a unit stays outside.

    Raises: PolicyError for a policy without such units.
    """
    units = policy.recompute_units()
    if not units:
        raise PolicyError(
            f"gradient_checkpointing=true for {policy.config.type}",
            rule="this policy has no parts, or no more, whose activations can be computed again",
            remedy="leave out --gradient_checkpointing; a smaller --batch_size with more "
            "--accelerator.gradient_accumulation.steps takes less memory too",
        )
    for unit in units:
        recompute_in_backward(unit)
