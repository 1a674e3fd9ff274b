"""Rates at which a device computes, moves bytes and starts kernels. Torch-free.

One set of constants says what a training step achieves of the peaks of any GPU, for all policies.
A profile that was measured on the device replaces all of them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from kata.errors import ConfigError
from kata.plan.catalogue import Gpu

GEMM_SHARE = 0.75
"""Share of the peak that products of matrices reach.

Long products in bf16 reach 0.78 to 0.87 (github.com/stas00/ml-engineering, MAMF); those of a step
are smaller.
"""

CONVOLUTION_SHARE = 0.70
"""Share of the peak that a convolution reaches besides its traffic of memory."""

CONVOLUTION_PASSES = 3
"""Times that a convolution moves its tensors.

cuDNN's kernels for tensor cores want channels last. So a contiguous tensor is rewritten before
and after, which reads and writes it once more each.
"""

ATTENTION_SHARE = 0.50
"""Share of the peak that fused attention reaches, forward and backward."""

BANDWIDTH_SHARE = 0.80
"""Share of the memory's peak bandwidth that operations on large tensors reach."""

KERNEL_S = 3e-6
"""Time of a kernel on the GPU before and after its work."""

HOST_LAUNCH_S = 7e-6
"""Time of the host for a kernel that eager PyTorch launches, autograd and Python included."""


@dataclass(frozen=True, slots=True)
class DeviceRates:
    """Rates of one device.

    Attributes:
        name: of the device.
        gemm_flop_s: floating-point operations per second in products of matrices, in the precision
            of the run. Those below are too.
        convolution_flop_s: those in convolutions.
        attention_flop_s: those in fused attention.
        bytes_s: bytes that operations read and write per second.
        kernel_s: time of a kernel beside its work.
        launch_s: time of the host for a launch; 0 if host and device are one.
        convolution_passes: times that a convolution moves its tensors.
        spread: relative half-width of the interval around a time computed from these rates.
        is_measured: True if they come from a profile of this device.
        half_gain: rate of products in bf16 or fp16 by that in the precision of the run; None if it
            is not known, and one rate serves all products.
        full_gain: the same for products in float32.
    """

    name: str
    gemm_flop_s: float
    convolution_flop_s: float
    attention_flop_s: float
    bytes_s: float
    kernel_s: float
    launch_s: float
    convolution_passes: int
    spread: float
    is_measured: bool = False
    half_gain: float | None = None
    full_gain: float | None = None

    def flop_s(self, kind: str, dtype: str) -> float:
        """Return the rate of a kind of product in a type, such as 'float32'.

        Weights may be bf16 in a run without autocast, and autocast leaves some products in float32.
        """
        gain = self.half_gain if dtype in ("bfloat16", "float16") else self.full_gain
        rates = {
            "gemm": self.gemm_flop_s,
            "convolution": self.convolution_flop_s,
            "attention": self.attention_flop_s,
        }
        return rates[kind] * (gain or 1.0)

    def faster(self, factor: float) -> DeviceRates:
        """Return the rates of a device that takes 1 / factor of the time for everything."""
        return replace(
            self,
            gemm_flop_s=self.gemm_flop_s * factor,
            convolution_flop_s=self.convolution_flop_s * factor,
            attention_flop_s=self.attention_flop_s * factor,
            bytes_s=self.bytes_s * factor,
            kernel_s=self.kernel_s / factor,
        )


UNCALIBRATED_SPREAD = 0.30


def rates_of(gpu: Gpu, precision: str, *, tf32: bool) -> DeviceRates:
    """Return what a step achieves on a GPU of the catalogue.

    Args:
        gpu: the GPU.
        precision: 'no', 'bf16' or 'fp16'.
        tf32: True if products of fp32 may use TF32.

    Raises:
        ConfigError: the GPU does not compute in bf16.
    """
    if precision == "bf16" and not gpu.has_bf16:
        raise ConfigError(
            f"accelerator.mixed_precision=bf16 on {gpu.name}",
            rule="this GPU has no bf16",
            remedy="--accelerator.mixed_precision=fp16, or no",
        )
    full = gpu.tf32_flop_s if tf32 else gpu.fp32_flop_s
    peak = full if precision == "no" else gpu.half_flop_s
    return DeviceRates(
        name=gpu.name,
        gemm_flop_s=GEMM_SHARE * peak,
        convolution_flop_s=CONVOLUTION_SHARE * peak,
        attention_flop_s=ATTENTION_SHARE * peak,
        bytes_s=BANDWIDTH_SHARE * gpu.bytes_s,
        kernel_s=KERNEL_S,
        launch_s=HOST_LAUNCH_S,
        convolution_passes=CONVOLUTION_PASSES,
        spread=UNCALIBRATED_SPREAD,
        half_gain=gpu.half_flop_s / peak,
        full_gain=full / peak,
    )
