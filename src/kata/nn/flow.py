"""Flow matching on straight paths (arXiv 2210.02747); time runs from noise at 0 to data at 1.

    x(t) = t * clean + (1 - (1 - s) t) * noise        the network's input
    v    = clean - (1 - s) * noise                    its target: dx/dt

s is the remaining spread around the data; 0 gives exact straight lines. In the other convention
time runs from data at 0 to noise at 1, and the velocity points to the noise. `facing_data` adapts
such a network: its time is 1 - t, its velocity -v, and its x the same.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable

import torch
from torch import Tensor

Velocity = Callable[[Tensor, Tensor], Tensor]
"""A network of (samples (B, ...), time (B,)) that gives dx/dt (B, ...)."""

METHODS = ("euler", "rk4")

GRID = 4096
"""Points of the table that times are looked up in."""


def between(clean: Tensor, noise: Tensor, time: Tensor, spread: float = 0.0) -> Tensor:
    """Return samples (B, ...) on the path from noise to data at times (B,)."""
    t = time.reshape(-1, *(1,) * (clean.ndim - 1))
    return t * clean + (1 - (1 - spread) * t) * noise


def velocity(clean: Tensor, noise: Tensor, spread: float = 0.0) -> Tensor:
    """Return the velocity that the network should predict between noise and data."""
    return clean - (1 - spread) * noise


def facing_data(network: Velocity) -> Velocity:
    """Adapt a network whose time runs from data at 0 to noise at 1 to this module's convention."""
    return lambda x, time: -network(x, 1 - time)


def integrate(network: Velocity, noise: Tensor, steps: int, method: str) -> Tensor:
    """Return samples (B, ...) from noise in `steps` equal steps, by Euler or Runge-Kutta 4."""
    x, times = noise, torch.linspace(0, 1, steps + 1)

    def slope(x: Tensor, t: float) -> Tensor:
        return network(x, torch.full((len(x),), t, dtype=noise.dtype, device=noise.device))

    for t, dt in zip(times.tolist(), times.diff().tolist(), strict=False):
        # Euler costs one pass of the network per step, Runge-Kutta 4 costs four.
        first = slope(x, t)
        if method == "euler":
            x = x + dt * first
            continue
        second = slope(x + dt / 2 * first, t + dt / 2)
        third = slope(x + dt / 2 * second, t + dt / 2)
        last = slope(x + dt * third, t + dt)
        x = x + dt / 6 * (first + 2 * second + 2 * third + last)
    return x


def time_sinusoid(time: Tensor, width: int, shortest: float, longest: float) -> Tensor:
    """Return an embedding (..., width) of times (...), sines first, with geometric periods.

    It is computed in float64 where the device has it: sines of large angles need the digits.
    """
    wide = torch.float32 if time.device.type == "mps" else torch.float64
    share = torch.linspace(0.0, 1.0, width // 2, dtype=wide, device=time.device)
    period = shortest * (longest / shortest) ** share
    angle = (1.0 / period * 2 * math.pi) * time[..., None]
    return torch.cat((angle.sin(), angle.cos()), dim=-1)


def beta_quantile(share: Tensor, alpha: float, beta: float) -> Tensor:
    """Return Beta(alpha, beta) numbers from uniform ones in [0, 1), by the inverse of the CDF.

    The inverse has a closed form if alpha or beta is 1, else a table with an error below 1e-6.
    """
    if beta == 1:
        return share ** (1 / alpha)
    if alpha == 1:
        return 1 - (1 - share) ** (1 / beta)
    # A table per half, each over a variable in which its end of [0, 1] is smooth. The tables are
    # made once per process.
    (low, below), (high, above) = _lower_half(alpha, beta), _lower_half(beta, alpha)
    # The mass in front of the wanted point, not divided by the whole mass. Both halves are looked
    # up for all numbers, which is cheaper than sorting them first.
    mass = share.double() * float(below[-1] + above[-1])
    lower = _interpolate(mass, below, low) ** (1 / alpha)
    upper = 1 - _interpolate(float(below[-1] + above[-1]) - mass, above, high) ** (1 / beta)
    return torch.where(mass <= below[-1], lower, upper).to(share.dtype)


@functools.cache
def _lower_half(alpha: float, beta: float) -> tuple[Tensor, Tensor]:
    """Return x^alpha on a grid of [0, 1/2], and the integrals of the density up to there.

    The density is x^(alpha-1) (1-x)^(beta-1). Over w = x^alpha the integrand is
    (1-x)^(beta-1) / alpha, which is finite for every alpha.
    """
    w = torch.linspace(0, 0.5**alpha, GRID, dtype=torch.float64)
    density = (1 - w ** (1 / alpha)) ** (beta - 1) / alpha
    return w, torch.cat([w.new_zeros(1), torch.cumulative_trapezoid(density, w)])


def _interpolate(at: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """Interpolate linearly between the points (x, y), x rising, and hold the ends."""
    x, y = x.to(at.device), y.to(at.device)
    right = torch.searchsorted(x, at).clamp(1, len(x) - 1)
    part = ((at - x[right - 1]) / (x[right] - x[right - 1])).clamp(0, 1)
    return y[right - 1] + part * (y[right] - y[right - 1])
