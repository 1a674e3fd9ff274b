"""Buffers that a forward pass changes, kept aside for a step that turns out bad.

A policy has dozens of them, each of a few numbers. On a GPU a copy of each would cost more than all
of them joined, so those of one type are joined.
"""

# pyright: reportPrivateImportUsage=false, reportPrivateUsage=false
# torch's operations on lists of tensors have no public name.

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def kept_aside(buffers: Sequence[Tensor]) -> list[Tensor]:
    """Return the values of all buffers, joined by type in the order of `_by_type`."""
    return [_joined(alike) for alike in _by_type(buffers)]


def put_back(buffers: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Give the buffers the values of `kept_aside`."""
    for alike, joined in zip(_by_type(buffers), values, strict=True):
        parts = joined.split([b.numel() for b in alike])
        shaped = [part.view_as(b) for part, b in zip(parts, alike, strict=True)]
        with torch.no_grad():
            torch._foreach_copy_(alike, shaped)


def put_back_if(bad: Tensor, buffers: Sequence[Tensor], values: Sequence[Tensor]) -> None:
    """Give the buffers the values of `kept_aside` if `bad`, a bool scalar on the device, is True.

    The host does not wait: otherwise the buffers get the values that they have.
    """
    now = kept_aside(buffers)
    chosen = [torch.where(bad, old, new) for old, new in zip(values, now, strict=True)]
    put_back(buffers, chosen)


def _joined(buffers: Sequence[Tensor]) -> Tensor:
    """Return the values of buffers of one type, one after the other."""
    return torch.cat([buffer.reshape(-1) for buffer in buffers])


def _by_type(buffers: Sequence[Tensor]) -> list[list[Tensor]]:
    """Return the buffers of each type, in the order in which types first occur."""
    found: dict[torch.dtype, list[Tensor]] = {}
    for buffer in buffers:
        found.setdefault(buffer.dtype, []).append(buffer)
    return list(found.values())
