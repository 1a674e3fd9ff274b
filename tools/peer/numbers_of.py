"""Numbers that go into comparisons: they follow from names alone, so that golden files hold results
only.

numpy's RandomState gives them, whose streams never change.
"""

from __future__ import annotations

import functools
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from unittest import mock

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

PROBES = (0.37, 1.13, 2.29, 2.91)
"""Frequencies of the cosines that a gradient is projected on."""

SMALL = 128
"""Gradients of at most this many numbers are kept whole."""

TOLERANCE = 1e-5
"""Largest difference in fp32, as `difference` measures it."""


def numbers(name: str, shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Numbers in [-1, 1) that depend on the name and the shape alone."""
    stream = np.random.RandomState(zlib.crc32(name.encode()))
    return (2 * stream.random_sample(shape) - 1).astype(np.float32)


def tensor(name: str, shape: tuple[int, ...]) -> Tensor:
    return torch.from_numpy(numbers(name, shape))


@functools.cache
def weight(name: str, shape: tuple[int, ...]) -> Tensor:
    """The weight called `name` (LeRobot's name), of a size that keeps activations near one."""
    values = tensor(name, shape)
    if name.endswith("running_var"):
        return 1 + 0.5 * values
    if len(shape) == 1:
        if not name.endswith("weight"):
            return 0.1 * values
        return (0.4 if "bn2" in name or "bn3" in name else 1.0) + 0.2 * values
    fan_in = int(np.prod(shape[1:]))
    return values * (3 * (2 if len(shape) == 4 else 1) / fan_in) ** 0.5


used_weight = weight
"""What `fill` gives; `moved_weights` replaces it."""

ROUNDING = 3e-6
"""How far `moved_weights` moves a weight, relative to itself: what a convolution in fp32 rounds."""


@contextmanager
def moved_weights() -> Iterator[None]:
    """Weights inside are moved by rounding errors, up or down as their names say.

    A ReLU or a maximum that is nearly undecided then decides otherwise, and gradients jump. What a
    policy's results differ by is what two processors may make of one program.
    """

    def moved(name: str, shape: tuple[int, ...]) -> Tensor:
        return weight(name, shape) * (1 + ROUNDING * tensor(f"{name} moved", shape))

    with mock.patch(f"{__name__}.used_weight", moved):
        yield


def fill(policy: nn.Module, fixed: tuple[str, ...] = ()) -> None:
    """Give every floating tensor of a policy with LeRobot's names its weight, but those that end
    in one of `fixed`.
    """
    for name, value in policy.state_dict().items():
        if value.is_floating_point() and not name.endswith(fixed):
            value.copy_(used_weight(name, tuple(value.shape)))


@contextmanager
def drawn(label: str) -> Iterator[None]:
    """torch's normal draws inside give numbers that follow from the label and from how many came
    before.
    """
    calls = iter(range(1_000_000))

    def normal(*size: object, **options: object) -> Tensor:
        given = options.get("size", size[0] if len(size) == 1 else size)
        shape = tuple(given.shape) if isinstance(given, Tensor) else tuple(given)  # type: ignore[arg-type]
        return 1.7 * tensor(f"{label} {next(calls)}", shape)

    with mock.patch("torch.randn", normal), mock.patch("torch.randn_like", normal):
        yield


@functools.cache
def _probes(size: int) -> Tensor:
    return torch.cos(
        torch.arange(size, dtype=torch.float64)[None] * torch.tensor(PROBES).double()[:, None]
    )


def gradient_summary(gradient: Tensor) -> Tensor:
    """Norm and projections of a gradient, float64 (1 + len(PROBES),)."""
    flat = gradient.detach().double().flatten()
    probes = _probes(flat.numel())
    return torch.cat([flat.norm()[None], probes @ flat / probes.norm(dim=1)])


def golden(results: dict[str, Tensor]) -> dict[str, Tensor]:
    """Results small enough for a repository: gradients as summaries, small ones whole too."""
    kept = {name: value for name, value in results.items() if not name.startswith("grad/")}
    for name, value in results.items():
        if name.startswith("grad/"):
            kept["summary/" + name.removeprefix("grad/")] = gradient_summary(value)
            if value.numel() <= SMALL:
                kept[name] = value
    return {name: value.detach().contiguous() for name, value in kept.items()}


def difference(own: Tensor, peer: Tensor) -> float:
    """The largest difference, relative to the peer's largest number or to 0.1, whichever is
    larger.
    """
    if own.shape != peer.shape:
        return float("inf")
    apart = (own.double() - peer.double()).abs().max()
    return float(apart / peer.double().abs().max().clamp(min=0.1))


def is_gradient(result: str) -> bool:
    return result.startswith(("grad/", "summary/"))


def within(found: dict[str, float], changes: dict[str, float]) -> bool:
    """True if differences are at most TOLERANCE, or twice what moved weights change.

    Args:
        found: differences by result.
        changes: what LeRobot's own results change by, where its weights are moved. One decision of
            a ReLU moves the gradients of all layers below, so gradients share the largest.
    """
    gradients = max((value for name, value in changes.items() if is_gradient(name)), default=0.0)
    for name, value in found.items():
        change = gradients if is_gradient(name) else changes.get(name, 0.0)
        if value > max(TOLERANCE, 2 * change):
            return False
    return True
