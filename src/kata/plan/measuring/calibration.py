"""Calibration: the rates of the device at hand, from products, a convolution and copies."""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from importlib.metadata import version

import torch
from torch import Tensor

from kata.plan.catalogue import gpu_of_device
from kata.plan.measuring.all_reduce import measured_link
from kata.plan.measuring.decoding import decode_s_per_pixel
from kata.plan.profiles import Profile
from kata.policies.device import set_switches
from kata.update.step import autocast

GEMM_SIZE, GEMM_SIZE_CUDA = 768, 4096
"""Rows and columns of a product of matrices."""

TIMES = 5
"""Number of measurements whose median a figure is."""

BYTES = 2**26
"""Size of the tensors that are copied and added: beyond any cache."""


def device_here(kind: str | None) -> torch.device:
    """Return the device of a kind, such as 'cpu'; None takes a GPU if there is one."""
    return torch.device(kind or ("cuda" if torch.cuda.is_available() else "cpu"))


def calibrate(kind: str | None, precision: str, name: str) -> Profile:
    """Measure the rates of a device, in less than a minute.

    Args:
        kind: 'cpu' or 'cuda'; None takes a GPU if there is one.
        precision: 'no', 'bf16' or 'fp16'.
        name: of a CPU; a GPU has its name in the catalogue.

    Returns:
        The profile, which is not stored yet.
    """
    device = device_here(kind)
    is_cuda = device.type == "cuda"
    set_switches(tf32=True, deterministic=False)
    context_bytes = 0
    memory_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    if is_cuda:
        found = torch.cuda.get_device_properties(device)
        gpu = gpu_of_device(found.name, found.total_memory)
        name = found.name if gpu is None else gpu.name
        memory_bytes = found.total_memory
        torch.empty(1, device=device)
        free, whole = torch.cuda.mem_get_info(device)
        context_bytes = whole - free - torch.cuda.memory_reserved(device)
    kernel_s, launch_s = _small_operation_s(device)
    gpus = torch.cuda.device_count() if is_cuda else 0
    link = measured_link(gpus, "cuda") if gpus > 1 else None
    return Profile(
        device=name,
        precision=precision,
        torch=version("torch"),
        driver=torch.version.cuda or "" if is_cuda else "",
        threads=torch.get_num_threads(),
        gemm_flop_s=_gemm_flop_s(device, precision),
        convolution_flop_s=_convolution_flop_s(device, precision),
        bytes_s=_bytes_s(device),
        kernel_s=kernel_s,
        launch_s=launch_s,
        memory_bytes=memory_bytes,
        context_bytes=context_bytes,
        s_per_pixel=decode_s_per_pixel(),
        bus_bytes_s=None if link is None else link.bus_bytes_s,
        all_reduce_s=None if link is None else link.latency_s,
    )


def _gemm_flop_s(device: torch.device, precision: str) -> float:
    """Return the rate of a linear layer, forward and backward."""
    size = GEMM_SIZE_CUDA if device.type == "cuda" else GEMM_SIZE
    layer = torch.nn.Linear(size, size, bias=False, device=device)
    x = torch.randn(size, size, device=device, requires_grad=True)
    seconds = _trained_s(layer, x, precision)
    return 3 * 2 * size**3 / seconds


def _convolution_flop_s(device: torch.device, precision: str) -> float:
    """Return the rate of convolutions as in the stages of a ResNet-18, forward and backward."""
    batch = 32 if device.type == "cuda" else 2
    flops, seconds = 0.0, 0.0
    for channels, side in ((64, 80), (128, 40), (256, 20), (512, 10)):
        layer = torch.nn.Conv2d(channels, channels, 3, padding=1, bias=False, device=device)
        x = torch.randn(batch, channels, side, side, device=device, requires_grad=True)
        seconds += _trained_s(layer, x, precision)
        flops += 3 * 2 * batch * side**2 * channels**2 * 9
    return flops / seconds


def _trained_s(layer: torch.nn.Module, x: Tensor, precision: str) -> float:
    grad: list[Tensor] = []

    def once() -> None:
        with autocast(precision, x.device):
            out = layer(x)
        if not grad:
            grad.append(torch.randn_like(out))
        out.backward(grad[0])

    return median_s(once, x.device)


def _bytes_s(device: torch.device) -> float:
    """Return the bytes per second that an addition into a new tensor reads and writes."""
    x = torch.randn(BYTES // 4, device=device)
    y = torch.randn_like(x)
    return 3 * BYTES / median_s(lambda: x + y, device)


def _small_operation_s(device: torch.device) -> tuple[float, float]:
    """Return the time of a small operation on the device, and that of the host to launch it."""
    x = torch.ones(16, device=device)
    count = 2000

    def many() -> None:
        for _ in range(count):
            x.add_(1.0)

    whole_s = median_s(many, device) / count
    return (3e-6, whole_s) if device.type == "cuda" else (whole_s, 0.0)


def median_s(work: Callable[[], object], device: torch.device) -> float:
    """Return the median time of some work on a device, after one run that is not counted."""
    return statistics.median(times_s(work, device, TIMES + 1)[1:])


def times_s(work: Callable[[], object], device: torch.device, count: int) -> list[float]:
    """Return the times of `count` runs of some work on a device.

    A single thread of the CPU is measured by its CPU time, which other programs hardly change.
    """
    is_cuda = device.type == "cuda"
    is_alone = not is_cuda and torch.get_num_threads() == 1
    clock = time.process_time if is_alone else time.perf_counter
    taken: list[float] = []
    for _ in range(count):
        if is_cuda:
            torch.cuda.synchronize(device)
        began_s = clock()
        work()
        if is_cuda:
            torch.cuda.synchronize(device)
        # A clock of CPU time may stand still for work of microseconds.
        taken.append(max(clock() - began_s, 1e-9))
    return taken
