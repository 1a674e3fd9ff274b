"""CUDA's rules for tensors that torch takes for the CPU's.

A machine without a GPU cannot differentiate fake CUDA tensors, so fake CPU tensors stand in for
them. Where torch would do another thing on CUDA, an implementation is registered for the time of
the trace: the casts of autocast, dropout with its mask of one byte, the choice of attention.
"""

# pyright: reportPrivateUsage=false
# torch has no public way to change what its dispatcher does.

from __future__ import annotations

import functools
from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch.library import Library

aten = torch.ops.aten

FP32_OPERATIONS = (
    *("acos", "asin", "cosh", "erfinv", "exp", "expm1", "log", "log10", "log2", "log1p"),
    *("reciprocal", "rsqrt", "sinh", "tan", "pow", "softplus", "layer_norm", "group_norm"),
    *("frobenius_norm", "nuclear_norm", "cosine_similarity", "poisson_nll_loss", "nll_loss"),
    *("cosine_embedding_loss", "nll_loss2d", "hinge_embedding_loss", "kl_div", "l1_loss"),
    *("smooth_l1_loss", "huber_loss", "mse_loss", "margin_ranking_loss", "soft_margin_loss"),
    *("multilabel_margin_loss", "triplet_margin_loss", "multi_margin_loss", "dist", "pdist"),
    *("binary_cross_entropy_with_logits", "cdist", "renorm", "logsumexp"),
    *("upsample_bilinear2d", "_upsample_bilinear2d_aa", "upsample_nearest2d", "upsample_bicubic2d"),
)
"""Operations that autocast runs in float32 on CUDA (aten/src/ATen/autocast_mode.h).
"""

FP32_RESULTS = (
    *("prod", "softmax", "log_softmax", "cumprod", "cumsum", "sum"),
    *("linalg_vector_norm", "linalg_matrix_norm"),
)
"""Operations whose result autocast wants in float32; their input stays as it is."""

_AUTOCAST = torch._C.DispatchKeySet(torch._C.DispatchKey.AutocastCPU)
_HALF = (torch.bfloat16, torch.float16)
FLASH_HEAD_SIZE = 256
"""Largest size of a head for FlashAttention (aten/src/ATen/native/transformers/cuda/sdp_utils)."""


@contextmanager
def cuda_rules() -> Generator[None]:
    """Let operations on CPU tensors follow CUDA's rules inside the block, on this process."""
    library = Library("aten", "IMPL")
    library.impl("dropout", _dropout, "AutogradCPU")
    library.impl("scaled_dot_product_attention", _attention, "AutogradCPU")
    # Without a kernel for CPUs, torch takes the norm apart into five others.
    library.impl("_fused_rms_norm", _rms_norm, "CPU")
    for rule, names in ((_in_float32, FP32_OPERATIONS), (_to_float32, FP32_RESULTS)):
        for name in names:
            _register(library, name, rule)
    try:
        yield
    finally:
        library._destroy()


def _register(library: Library, name: str, rule: Callable[..., Any]) -> None:
    """Let autocast apply a rule to all overloads of an operation that it does not know yet."""
    packet = getattr(aten, name)
    for overload in packet.overloads():
        operation: OpOverload = getattr(packet, overload)
        # TorchScript's overloads for numbers have no tensor, and no kernel.
        takes_tensors = any("Tensor" in str(arg.type) for arg in operation._schema.arguments)
        if "out" in overload or not takes_tensors:
            continue
        full = name if overload == "default" else f"{name}.{overload}"
        if not torch._C._dispatch_has_kernel_for_dispatch_key(f"aten::{full}", "AutocastCPU"):
            library.impl(full, functools.partial(rule, operation), "AutocastCPU")


def _in_float32(operation: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Run an operation without autocast, tensors of half precision cast to float32."""
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
        return operation(*_widened(args), **{name: _widened(v) for name, v in kwargs.items()})


def _to_float32(operation: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Run an operation without autocast, with a result in float32 unless its type is given."""
    declared = operation._schema.arguments
    names = [argument.name for argument in declared]
    given = names[: len(args)]
    is_half = isinstance(args[0], Tensor) and args[0].dtype in _HALF
    if is_half and "dtype" in names and "dtype" not in given and kwargs.get("dtype") is None:
        kwargs["dtype"] = torch.float32
    with torch._C._ExcludeDispatchKeyGuard(_AUTOCAST):
        return operation(*args, **kwargs)


def _widened(value: Any) -> Any:
    if isinstance(value, Tensor):
        return value.float() if value.dtype in _HALF else value
    if isinstance(value, (tuple, list)):
        return type(value)(_widened(one) for one in value)
    return value


def _dropout(x: Tensor, p: float, train: bool) -> Tensor:
    """Dropout in one kernel that keeps a mask of one byte per value."""
    if not train or p == 0.0:
        return x
    return aten.native_dropout.default(x, p, True)[0]


def _rms_norm(
    x: Tensor, shape: list[int], weight: Tensor | None, eps: float | None
) -> tuple[Tensor, Tensor]:
    """Return what CUDA's kernel returns: the norm, and the factor of each row."""
    axes = list(range(x.dim() - len(shape), x.dim()))
    tiny = torch.finfo(x.dtype).eps if eps is None else eps
    factor = torch.rsqrt(x.square().mean(axes, keepdim=True) + tiny)
    normed = x * factor
    return normed if weight is None else normed * weight, factor


def _attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attn_mask: Tensor | None = None,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    *,
    scale: float | None = None,
    enable_gqa: bool = False,
) -> Tensor:
    """Attention by the kernel that CUDA would choose: flash, memory-efficient, or plain math."""
    is_half = query.dtype in _HALF and key.dtype == query.dtype == value.dtype
    size = query.shape[-1]
    if is_half and attn_mask is None and size <= FLASH_HEAD_SIZE and value.shape[-1] == size:
        return _flash(query, key, value, dropout_p, is_causal, scale)
    step = 8 if is_half else 4
    is_even = size % step == 0 and value.shape[-1] % step == 0
    # Where no heads share keys, the flag of grouped queries says nothing.
    if query.dim() == 4 and is_even and query.shape[1] == key.shape[1]:
        keeps = torch.is_grad_enabled() and (query.requires_grad or key.requires_grad)
        bias = None if attn_mask is None else _bias(attn_mask, query, key)
        found = aten._scaled_dot_product_efficient_attention.default(
            query, key, value, bias, keeps, dropout_p, is_causal, scale=scale
        )
        return found[0]
    return aten._scaled_dot_product_attention_math.default(
        query, key, value, attn_mask, dropout_p, is_causal, scale=scale, enable_gqa=enable_gqa
    )[0]


def _flash(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float,
    is_causal: bool,
    scale: float | None,
) -> Tensor:
    """FlashAttention, with heads padded to a multiple of eight."""
    size = query.shape[-1]
    lacking = -size % 8
    if lacking:
        query, key, value = (
            torch.nn.functional.pad(one, (0, lacking)) for one in (query, key, value)
        )
        scale = size**-0.5 if scale is None else scale
    found = aten._scaled_dot_product_flash_attention.default(
        query, key, value, dropout_p, is_causal, scale=scale
    )
    return found[0][..., :size] if lacking else found[0]


def _bias(mask: Tensor, query: Tensor, key: Tensor) -> Tensor:
    """Return a mask as the memory-efficient kernel takes it: added, one per head, and with rows
    that begin at multiples of eight numbers.
    """
    if mask.dtype == torch.bool:
        mask = torch.zeros_like(mask, dtype=query.dtype).masked_fill_(~mask, float("-inf"))
    length = mask.shape[-1]
    if mask.stride(-1) != 1 or any(step % 8 for step in mask.stride()[:-1]):
        mask = torch.nn.functional.pad(mask, (0, 8 - length % 8))[..., :length]
    return mask.expand(*query.shape[:-1], key.shape[-2])
