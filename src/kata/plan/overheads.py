"""Memory that a CUDA process takes beside torch's tensors. Torch-free.

Each figure is a typical value. A calibration on the GPU replaces them.
"""

from __future__ import annotations

from dataclasses import dataclass

MIB = 2**20

CONTEXT_BYTES = 480 * MIB
"""CUDA context with kernels loaded lazily, which is the default from CUDA 11.7 on.

Measured 0.47 GiB on an A100 (github.com/stas00/ml-engineering, training/performance); between 0.3
and 0.5 GiB on other GPUs.
"""

CUBLAS_BYTES = 8_519_680
"""cuBLAS workspace of one handle before Hopper: 2 x 4096 KiB + 8 x 16 KiB
(torch.backends.cuda, CUBLAS_WORKSPACE_CONFIG).
"""

CUBLAS_HOPPER_BYTES = 32 * MIB
"""cuBLAS workspace from Hopper on (NVIDIA's cuBLAS manual, section cublasSetWorkspace)."""

NCCL_BYTES = 1024 * MIB
"""Channels and buffers of NCCL on one node. Measured 1 to 2 GiB, 1.45 GiB on two A100
(github.com/stas00/ml-engineering, training/performance); it does not pass through torch.
"""


@dataclass(frozen=True, slots=True)
class Overheads:
    """Memory of one process on one GPU, in bytes, outside of torch's tensors.

    Attributes:
        context_bytes: CUDA context and kernels.
        workspace_bytes: of cuBLAS, which torch's allocator holds.
        nccl_bytes: of NCCL, if there are several ranks.
    """

    context_bytes: int = CONTEXT_BYTES
    workspace_bytes: int = CUBLAS_BYTES
    nccl_bytes: int = NCCL_BYTES


def overheads_of(compute_capability: float) -> Overheads:
    """Return the typical overheads for a compute capability, such as 8.6 or 9.0."""
    is_hopper = compute_capability >= 9.0
    return Overheads(workspace_bytes=CUBLAS_HOPPER_BYTES if is_hopper else CUBLAS_BYTES)
