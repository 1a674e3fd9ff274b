"""Real-time chunking: a chunk continues the one that is still executed (arXiv 2506.07339).

The robot executes the last chunk while the next one is computed. What is left over of the last
chunk pulls the first actions of the next one towards it. Time runs from noise at 1 to actions at 0.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor


class Continued(NamedTuple):
    """Actions that a chunk is pulled towards.

    Attributes:
        actions: (B, T, A).
        weights: strength of the pull at each action, (T,), from 0 to 1.
        most: upper bound of the guidance weight.
    """

    actions: Tensor
    weights: Tensor
    most: float

    def corrected(self, x: Tensor, velocity: Tensor, time: float) -> Tensor:
        """Return the velocity (B, T, A) that leads from noisy actions `x` towards `actions`.

        The error of the expected clean actions is the correction itself: LeRobot differentiates
        through them with the velocity held constant, whose Jacobian is the identity.
        """
        error = (self.actions - (x - time * velocity)) * self.weights[:, None]
        return velocity - guidance_weight(time, self.most) * error


class Given(NamedTuple):
    """Actions (B, T, A) that are known, where `mask`, bool (B, T), is True."""

    actions: Tensor
    mask: Tensor

    def kept(self, x: Tensor) -> Tensor:
        """Return noisy actions with the known ones in their places."""
        return torch.where(self.mask[..., None], self.actions, x)

    def times(self, time: Tensor) -> Tensor:
        """Return the time of each action, (B, T), from (B,): known actions hold no noise."""
        return torch.where(self.mask, torch.zeros_like(time[:, None]), time[:, None])


def prefix_weights(schedule: str, delay: int, horizon: int, steps: int) -> Tensor:
    """Return how much each of `steps` actions follows the last chunk, (steps,).

    Args:
        schedule: ZEROS, ONES, LINEAR or EXP: what follows the first `delay` actions, whose weight
            is 1, up to `horizon`. The rest has no weight.
        delay: actions that are executed before the new chunk is there.
        horizon: actions that follow the last chunk at all.
        steps: length of the chunk.
    """
    fixed = min(delay, horizon)
    between = max(min(horizon, steps) - fixed, 0)
    ramp = {
        "ZEROS": lambda: torch.zeros(between),
        "ONES": lambda: torch.ones(between),
        "LINEAR": lambda: torch.linspace(1, 0, between + 2)[1:-1],
        "EXP": lambda: _exponential(torch.linspace(1, 0, between + 2)[1:-1]),
    }[schedule]()
    weights = torch.zeros(steps)
    weights[:fixed] = 1.0
    weights[fixed : fixed + between] = ramp
    return weights


def _exponential(ramp: Tensor) -> Tensor:
    return ramp * torch.expm1(ramp) / (math.e - 1)


def guidance_weight(time: float, most: float) -> float:
    """Return the weight of the correction at a time from 1, noise, to 0; at most `most`."""
    done = 1 - time
    if done == 0 or time == 0:
        return most
    return min(time / done * (time**2 + done**2) / time**2, most)


def euler_from_noise(
    network: Callable[[Tensor, Tensor], Tensor],
    noise: Tensor,
    steps: int,
    *,
    guide: Continued | None = None,
    given: Given | None = None,
) -> Tensor:
    """Return actions (B, T, A) from noise by Euler's method, also as the continuation of a chunk.

    The velocity of `network` points to the noise. Time k is the float32 that is nearest to
    1 - k / steps in double precision, as in openpi and LeRobot: embeddings with short periods feel
    a difference in the last bit.

    Args:
        network: the velocity at (x, time); time is (B,), and with `given` (B, T).
        noise: (B, T, A).
        steps: Euler steps.
        guide: actions that the result is pulled towards.
        given: actions that the result begins with.
    """
    x, dt = noise, -1.0 / steps
    for k in range(steps):
        time = 1.0 + k * dt
        at = torch.full((len(x),), time, dtype=torch.float32, device=x.device)
        x = x if given is None else given.kept(x)
        velocity = network(x, at if given is None else given.times(at))
        if guide is not None:
            velocity = guide.corrected(x, velocity, time)
        x = x + dt * velocity
    return x if given is None else given.kept(x)
