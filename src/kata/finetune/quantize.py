"""Frozen linear maps whose weights are held in 8 bits, or in 4 through the package bitsandbytes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from kata.optim.eight_bit import bitsandbytes
from kata.policies.base import Policy

BLOCK = 64
"""Numbers that share a scale in 4 bits (arXiv 2305.14314)."""


class QuantizedLinear(nn.Module):
    """A linear map whose weight stays as it is, in 8 bits with a scale per row, or in 4 (NF4).

    Each pass restores the weight in the dtype that it had, and drops it after the product.
    """

    def __init__(self, linear: nn.Linear, bits: int) -> None:
        super().__init__()
        weight = linear.weight.detach()
        self.shape = weight.shape
        self.dtype = weight.dtype
        self.bits = bits
        if bits == 4:
            library = bitsandbytes().functional
            codes, state = library.quantize_4bit(weight, blocksize=BLOCK, quant_type="nf4")
            scales = state.absmax
        else:
            scales = weight.float().abs().amax(1, keepdim=True) / 127
            codes = (weight.float() / scales.clamp_min(1e-30)).round().to(torch.int8)
        self.codes = nn.Parameter(codes, requires_grad=False)
        self.scales = nn.Parameter(scales.float(), requires_grad=False)
        self.bias: nn.Parameter | None = linear.bias

    @property
    def weight(self) -> Tensor:
        """An empty tensor with the dtype and device of the weight, which callers ask for."""
        return self.scales.new_empty(0, dtype=self.dtype)

    def whole_weight(self) -> Tensor:
        """Return the weight that the codes stand for, (out, in)."""
        if self.bits == 8:
            return (self.codes * self.scales).to(self.dtype)
        library = bitsandbytes().functional
        state = library.QuantState(
            absmax=self.scales,
            shape=self.shape,
            dtype=self.dtype,
            blocksize=BLOCK,
            quant_type="nf4",
        )
        return library.dequantize_4bit(self.codes, state)

    def forward(self, input: Tensor) -> Tensor:
        """(..., in) -> (..., out)."""
        if torch.is_autocast_enabled(input.device.type):
            input = input.to(torch.get_autocast_dtype(input.device.type))
        bias: Tensor | None = self.bias
        bias = None if bias is None else bias.to(input.dtype)
        return _Product.apply(input, bias, self)


class _Product(torch.autograd.Function):
    """A product with a weight that the backward pass makes a second time instead of keeping."""

    @staticmethod
    def forward(ctx: Any, input: Tensor, bias: Tensor | None, layer: QuantizedLinear) -> Tensor:
        ctx.layer = layer
        return F.linear(input, layer.whole_weight().to(input.dtype), bias)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        grad = grads[0]
        return grad @ ctx.layer.whole_weight().to(grad.dtype), None, None


def quantize_frozen(policy: Policy, bits: int) -> int:
    """Hold the weights of all frozen linear maps in 8 or 4 bits; return how many maps there are.

    Raises:
        ConfigError: 4 bits need the package bitsandbytes, which is not installed.
    """
    found: dict[str, nn.Linear] = {}
    for name, module in policy.named_modules():
        # Subclasses are left alone: what holds them reads their weights without calling them.
        if type(module) is nn.Linear and not module.weight.requires_grad:
            found[name] = module
    for name, linear in found.items():
        parent, _, last = name.rpartition(".")
        setattr(policy.get_submodule(parent), last, QuantizedLinear(linear, bits))
    return len(found)
