"""Flow matching on straight paths (arXiv 2210.02747), in one convention: time runs from noise at 0 to data at 1.

    x(t) = t * clean + (1 - (1 - s) t) * noise        what the network sees
    v    = clean - (1 - s) * noise                    what it should give: dx/dt

s is the spread that is left around the data; 0 for exact straight lines. Networks of the other convention, where noise
lies at 1 and the velocity points from data to noise, are used through `facing_data`: their time is 1 - t, their
velocity -v, and their x the same.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import torch
from torch import Tensor

Velocity = Callable[[Tensor, Tensor], Tensor]
"""A network of (samples (B, ...), time (B,)) that gives dx/dt (B, ...)."""

METHODS = ("euler", "rk4")

GRID = 4096
"""Points of the table that times are looked up in."""


def between(clean: Tensor, noise: Tensor, time: Tensor, spread: float = 0.0) -> Tensor:
    """Samples (B, ...) on the way from noise to data at times (B,)."""
    t = time.reshape(-1, *(1,) * (clean.ndim - 1))
    return t * clean + (1 - (1 - spread) * t) * noise


def velocity(clean: Tensor, noise: Tensor, spread: float = 0.0) -> Tensor:
    """Return the velocity that the network should predict between noise and data."""
    return clean - (1 - spread) * noise


def facing_data(network: Velocity) -> Velocity:
    """A network whose time runs from data at 0 to noise at 1, in this module's convention."""
    return lambda x, time: -network(x, 1 - time)


def integrate(network: Velocity, noise: Tensor, steps: int, method: str) -> Tensor:
    """Samples (B, ...) from noise in `steps` equal steps of time, by Euler's or the classical Runge-Kutta method."""
    x, times = noise, torch.linspace(0, 1, steps + 1)

    def slope(x: Tensor, t: float) -> Tensor:
        return network(x, torch.full((len(x),), t, dtype=noise.dtype, device=noise.device))

    for t, dt in zip(times.tolist(), times.diff().tolist(), strict=False):
        first = slope(x, t)
        if method == "euler":
            x = x + dt * first
            continue
        second = slope(x + dt / 2 * first, t + dt / 2)
        third = slope(x + dt / 2 * second, t + dt / 2)
        last = slope(x + dt * third, t + dt)
        x = x + dt / 6 * (first + 2 * second + 2 * third + last)
    return x


def beta_quantile(share: Tensor, alpha: float, beta: float) -> Tensor:
    """Numbers that follow Beta(alpha, beta), from uniform ones in [0, 1): the inverse of its distribution function.

    In closed form where alpha or beta is 1, else from a table with an error below 1e-6.
    """
    if beta == 1:
        return share ** (1 / alpha)
    if alpha == 1:
        return 1 - (1 - share) ** (1 / beta)
    (low, below), (high, above) = _lower_half(alpha, beta), _lower_half(beta, alpha)
    mass = share.double() * float(below[-1] + above[-1])
    lower = _interpolate(mass, below, low) ** (1 / alpha)
    upper = 1 - _interpolate(float(below[-1] + above[-1]) - mass, above, high) ** (1 / beta)
    return torch.where(mass <= below[-1], lower, upper).to(share.dtype)


@functools.cache
def _lower_half(alpha: float, beta: float) -> tuple[Tensor, Tensor]:
    """x^alpha on a grid over x in [0, 1/2], and the integral of x^(alpha-1) (1-x)^(beta-1) from 0 to there.

    Over w = x^alpha the integrand is (1-x)^(beta-1) / alpha, which is finite for every alpha.
    """
    w = torch.linspace(0, 0.5**alpha, GRID, dtype=torch.float64)
    density = (1 - w ** (1 / alpha)) ** (beta - 1) / alpha
    return w, torch.cat([w.new_zeros(1), torch.cumulative_trapezoid(density, w)])


def _interpolate(at: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Linear between the points (x, y), x rising; the ends are held."""
    x, y = x.to(at.device), y.to(at.device)
    right = torch.searchsorted(x, at).clamp(1, len(x) - 1)
    part = ((at - x[right - 1]) / (x[right] - x[right - 1])).clamp(0, 1)
    return y[right - 1] + part * (y[right] - y[right - 1])
