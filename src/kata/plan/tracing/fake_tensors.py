"""Three things that torch does with real tensors and not with fake ones."""

# pyright: reportPrivateUsage=false
# torch has no public switch for them.

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _foreach_utils


@contextmanager
def treated_as_real() -> Generator[None]:
    """Let lists of fake tensors use the kernels for lists, and modules with fake tensors be copied
    and converted, inside the block.
    """
    swap = torch.utils.swap_tensors
    torch.utils.swap_tensors = _take_data
    _foreach_utils._foreach_supported_types.append(FakeTensor)
    copying: Any = FakeTensor
    copying.__deepcopy__ = _deepcopy
    try:
        yield
    finally:
        torch.utils.swap_tensors = swap
        del copying.__deepcopy__
        _foreach_utils._foreach_supported_types.remove(FakeTensor)


def _take_data(tensor: Tensor, converted: Tensor) -> None:
    """Let a parameter hold its converted values. torch would exchange the two Python objects, which
    it refuses for a fake tensor that something refers to weakly.
    """
    tensor.data = converted.data


def _deepcopy(tensor: FakeTensor, memo: dict[int, Tensor]) -> Tensor:
    """Copy a fake tensor; torch would copy the value that it keeps of a constant as a fake one."""
    if id(tensor) not in memo:
        with torch.no_grad():
            copied = tensor.detach().clone()
        if isinstance(copied, FakeTensor):
            copied.constant = tensor.constant
        if isinstance(tensor, nn.Parameter):
            copied = nn.Parameter(copied, requires_grad=tensor.requires_grad)
        memo[id(tensor)] = copied
    return memo[id(tensor)]
