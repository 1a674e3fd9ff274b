"""Kind, launched kernels, floating-point operations and bytes of one operation of torch."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch._ops import OpOverload
from torch._prims_common import suggest_memory_format
from torch.utils import flop_counter

aten = torch.ops.aten

_NAMES: dict[str, tuple[str, ...]] = {
    "gemm": ("mm", "addmm", "bmm", "baddbmm", "addmv", "mv", "dot"),
    "convolution": ("convolution", "convolution_backward"),
    "normalization": (
        *("native_layer_norm", "native_layer_norm_backward"),
        *("native_group_norm", "native_group_norm_backward"),
        *("native_batch_norm", "native_batch_norm_backward"),
        *("_fused_rms_norm", "_fused_rms_norm_backward"),
    ),
    "reduction": (
        *("sum", "mean", "prod", "amax", "amin", "max", "min", "argmax", "argmin", "any", "all"),
        *("linalg_vector_norm", "cumsum", "logsumexp", "_softmax", "_softmax_backward_data"),
        *("_log_softmax", "_log_softmax_backward_data", "var_mean", "max_pool2d_with_indices"),
        *("max_pool2d_with_indices_backward", "sort", "topk"),
    ),
    "gather": (
        *("index", "index_select", "gather", "embedding", "scatter", "scatter_add", "index_put"),
        *("index_put_", "index_add_", "embedding_dense_backward", "take", "scatter_"),
        *("_unsafe_index", "_unsafe_index_put", "scatter_add_"),
    ),
    "copy": (
        *("_to_copy", "clone", "copy_", "copy", "cat", "stack", "constant_pad_nd", "roll", "flip"),
        *("fill_", "zero_", "zeros", "ones", "full", "zeros_like", "ones_like", "full_like"),
        *("new_zeros", "new_ones", "new_full", "scalar_tensor", "arange", "slice_backward"),
        *("select_backward", "repeat", "replication_pad2d", "unfold_backward", "eye", "tril"),
    ),
    "random": ("bernoulli_", "bernoulli", "uniform_", "normal_", "rand", "randn", "native_dropout"),
}
_KIND_OF: dict[str, str] = {}
for _kind, _names in _NAMES.items():
    _KIND_OF.update(dict.fromkeys(_names, _kind))

_WITHOUT_KERNEL = {
    *("empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "_unsafe_view"),
    *("detach", "alias", "lift_fresh", "lift_fresh_copy", "_reshape_alias", "set_", "resize_"),
}

_KERNELS = {
    "native_layer_norm_backward": 2,
    "native_group_norm": 2,
    "native_group_norm_backward": 3,
    "_scaled_dot_product_flash_attention_backward": 3,
    "_scaled_dot_product_efficient_attention_backward": 2,
    "slice_backward": 2,
    "select_backward": 2,
    "embedding_dense_backward": 6,
    "index_put_": 2,
    "cumsum": 2,
    "sort": 4,
}
"""Kernels of operations that start several; those of others is 1."""

_LIST_TENSORS = 30
_LIST_CHUNK = 65536
_LIST_BLOCKS = 320
"""Limits of one launch over lists of tensors (aten/src/ATen/native/cuda/MultiTensorApply.cuh):
tensors of a list of depth five, elements per chunk, and chunks.
"""


def name_of(func: OpOverload) -> str:
    """Return an operation's name without namespace and overload, such as 'addmm'."""
    return func.overloadpacket.__name__


def has_kernel(func: OpOverload) -> bool:
    """Return True if the operation computes or moves something, False for views and metadata."""
    if func.namespace in ("prim", "profiler") or func.is_view:
        return False
    name = name_of(func)
    return name not in _WITHOUT_KERNEL and not name.startswith(("sym_", "is_"))


def kind_of(name: str) -> str:
    """Return the class of an operation, one of `kata.plan.step_trace.KINDS`."""
    if "attention" in name:
        return "attention"
    if name.startswith(("_fused_adam", "_fused_sgd", "_foreach", "_amp_")):
        return "optimizer"
    return _KIND_OF.get(name, "elementwise")


_BLOCKED_CHANNELS = 8
"""From this number of channels on, oneDNN convolves in blocks of channels."""


def hidden_copies(func: OpOverload, args: Sequence[Any], device: str) -> list[int]:
    """Return the bytes of each copy that an operation makes of an argument, and frees at its end.

    cuDNN and oneDNN take input, weight and gradient of a convolution in one memory format: that
    of channels last if input or weight has it (aten/src/ATen/native/ConvUtils.h). Without it,
    oneDNN makes copies in blocks of channels. A CPU for which oneDNN has no bf16 multiplies columns
    of patches instead.
    """
    name = name_of(func)
    if name not in ("convolution", "convolution_backward"):
        return []
    if device == "cpu" and args[0].dtype == torch.bfloat16 and not _convolves_bf16():
        return _columns(name, args)
    takes = args[:2] if name == "convolution" else args[:3]
    *_, x, weight = takes
    formats = (suggest_memory_format(x), suggest_memory_format(weight))
    is_last = torch.channels_last in formats and x.dim() == 4
    if device == "cpu" and not is_last and x.dim() == 4 and x.shape[1] >= _BLOCKED_CHANNELS:
        return [bytes_of([one]) for one in takes]
    wanted = torch.channels_last if is_last else torch.contiguous_format
    return [bytes_of([one]) for one in takes if not one.is_contiguous(memory_format=wanted)]


@functools.cache
def _convolves_bf16() -> bool:
    """Return True if oneDNN has convolutions in bf16 for this CPU: they need AVX-512."""
    return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def _columns(name: str, args: Sequence[Any]) -> list[int]:
    """Return the bytes of the patches of all samples, one column each
    (aten/src/ATen/native/ConvolutionMM2d.cpp). Kernels of one pixel need none.
    """
    is_forward = name == "convolution"
    x, weight, _, stride, padding, dilation, transposed = args[:7] if is_forward else args[1:8]
    kernel = weight.shape[2:]
    is_pointwise = math.prod(kernel) == 1 and math.prod(stride) == 1 and not sum(padding)
    if transposed or is_pointwise:
        return []
    places = 1
    for size, width, step, edge, gap in zip(
        x.shape[2:], kernel, stride, padding, dilation, strict=True
    ):
        places *= (size + 2 * edge - gap * (width - 1) - 1) // step + 1
    return [len(x) * x.shape[1] * math.prod(kernel) * places * x.element_size()]


def launches_of(name: str, args: Sequence[Any]) -> int:
    """Return the kernels that an operation starts on a GPU, copies of memory included."""
    if name == "convolution_backward":
        return sum(args[-1])
    if kind_of(name) == "optimizer":
        return _list_launches(next((arg for arg in args if isinstance(arg, (list, tuple))), ()))
    return _KERNELS.get(name, 1)


def _list_launches(tensors: Sequence[Any]) -> int:
    """Return the launches over a list of tensors, whose chunks are dealt out in order."""
    chunks = 0
    for tensor in tensors:
        chunks += max(1, math.ceil(tensor.numel() / _LIST_CHUNK))
    return max(1, math.ceil(len(tensors) / _LIST_TENSORS), math.ceil(chunks / _LIST_BLOCKS))


Flops = Callable[..., int]


def _attention_forward(query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any) -> int:
    return flop_counter.sdpa_flop_count(query.shape, key.shape, value.shape)


def _attention_backward(
    grad: Tensor, query: Tensor, key: Tensor, value: Tensor, *_: Any, **__: Any
) -> int:
    return flop_counter.sdpa_backward_flop_count(grad.shape, query.shape, key.shape, value.shape)


_FLOPS: Mapping[Any, Flops] = {
    **flop_counter.flop_registry,
    # torch's own counter leaves out what attention runs on a CPU.
    aten._scaled_dot_product_flash_attention_for_cpu: _attention_forward,
    aten._scaled_dot_product_flash_attention_for_cpu_backward: _attention_backward,
}


def flops_of(func: OpOverload, args: Sequence[Any], kwargs: Mapping[str, Any], out: Any) -> int:
    """Return the floating-point operations of products, convolutions and attention; others: 0."""
    count = _FLOPS.get(func.overloadpacket)
    return 0 if count is None else int(count(*args, **kwargs, out_val=out))


def bytes_of(tensors: Sequence[Tensor]) -> int:
    """Return the bytes of these tensors; what an expanded one repeats is read once."""
    total = 0
    for tensor in tensors:
        size = tensor.element_size()
        for length, step in zip(tensor.shape, tensor.stride(), strict=True):
            size *= length if step or not length else 1
        total += min(size, tensor.untyped_storage().nbytes())
    return total


_READS_TWICE = {
    *("native_batch_norm", "native_batch_norm_backward"),
    *("native_group_norm", "native_group_norm_backward", "native_layer_norm_backward"),
}
"""Operations whose kernels read their arguments once for sums and again for the result
(aten/src/ATen/native/cuda). A row of a layer norm stays in registers between the two in the forward
pass; in the backward pass another kernel sums over rows.
"""


_TAKES = {"index", "index_select", "gather", "embedding", "take", "_unsafe_index"}
_PUTS = {"index_put_", "index_add_", "scatter_", "scatter_add_"}
"""Operations that take rows of their first argument, and those that change some of it."""


def read_bytes_of(name: str, inputs: Sequence[Tensor], written: int) -> int:
    """Return the bytes that an operation reads; of a table only rows that it takes or changes."""
    if name in _TAKES:
        return written + bytes_of(inputs[1:])
    if name in _PUTS:
        return bytes_of(inputs[1:])
    return bytes_of(inputs) * (2 if name in _READS_TWICE else 1)


def dtype_of(inputs: Sequence[Tensor], outputs: Sequence[Tensor]) -> str:
    """Return the type in which an operation computes: that of its first floating-point tensor."""
    for tensor in (*inputs, *outputs):
        if tensor.is_floating_point():
            return str(tensor.dtype).removeprefix("torch.")
    first = next(iter((*inputs, *outputs)), None)
    return "none" if first is None else str(first.dtype).removeprefix("torch.")
