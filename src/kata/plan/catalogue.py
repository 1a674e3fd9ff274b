"""GPUs that a plan knows: memory, peaks, bandwidth and links, each figure with its source.

The letter behind a figure names its source in SOURCES. Peaks are those of dense matrices;
`kata.plan.device_rates` says what a step achieves of them. Torch-free.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, replace

from kata.errors import ConfigError, closest
from kata.plan.overheads import Overheads, overheads_of

MIB = 2**20
TERA, GIGA = 10**12, 10**9

SOURCES = {
    "w": "NVIDIA's whitepaper or data sheet of the GPU",
    "l": "Lightning, lightning/fabric/utilities/throughput.py",
    "s": "github.com/stas00/ml-engineering, compute/accelerator",
    "h": "Hugging Face, huggingface.js, packages/tasks/src/hardware.ts",
    "a": "AWS's figure for its A10G, below that of the A10",
    "r": "rule of GeForce GPUs: half precision is twice fp32, and TF32 is fp32",
    "p": "rule of professional GPUs: half precision is four times fp32, and TF32 twice",
    "n": "total that nvidia-smi shows; ECC takes a sixteenth of GDDR memory on L4, A10G, L40S, T4",
    "c": "Apple's figure of the M1 Max of 32 cores, of which github.com/tlkh/tf-metal-experiments "
    "reaches 8 in products; the others by cores and clock",
    "e": "exists on no such GPU, so it is the figure of fp32",
    "u": "no public source was found: calibrate",
    "m": "three quarters of the memory of the largest common model, which Metal lets a process use",
}

# GPU            memory MiB  GB/s   TFLOP/s fp32  TF32    half     bf16  capability  link
_TABLE = """
rtx3060          12288n    360u     12.74h  12.74r    25.5r    yes   8.6  pcie4
rtx3090          24268n    936w     35.6w   35.6w     71w      yes   8.6  pcie4
rtx4070          12282n    504u     29.15h  29.15r    58.3r    yes   8.9  pcie4
rtx4080          16376n    717u     48.7h   48.7r     97.5r    yes   8.9  pcie4
rtx4090          24564n   1008w     82.6w   82.6w     165.2w   yes   8.9  pcie4
rtx5090          32607n   1792w     104.8w  104.8w    209.5w   yes  12.0  pcie5
rtx-pro-6000     97887n   1792u     125u    250p      500p     yes  12.0  pcie5
t4               15109n    320w     8.1w    8.1e      65w      no    7.5  pcie4
l4               23034n    300w     30.3w   60w       121w     yes   8.9  pcie4
a10g             23028n    600w     35l     35a       70a      yes   8.6  pcie4
l40s             45488n    864w     91.6w   183w      362w     yes   8.9  pcie4
a100-40gb        40536n   1555w     19.5w   156w      312w     yes   8.0  nvlink3
a100-80gb        81251n   2039w     19.5w   156w      312w     yes   8.0  nvlink3
a100-80gb-pcie   81251n   1935w     19.5w   156w      312w     yes   8.0  pcie4
h100             81559n   3350w     67w     494.5w    989w     yes   9.0  nvlink4
h100-pcie        81559n   2000w     51w     378w      756w     yes   9.0  pcie5
h200            143771n   4800w     67w     494.5w    989w     yes   9.0  nvlink4
b200            183359s   8000s     80s     1125s     2250s    yes  10.0  nvlink5
m1-max           49152m    400u     10.4c   10.4e     10.4e    no    0.0  none
m2-max           73728m    400u     13.5c   13.5e     13.5e    no    0.0  none
m3-max           98304m    400u     14.2c   14.2e     14.2e    no    0.0  none
"""

_ALIASES = {
    "a100": "a100-80gb",
    "a100-large": "a100-80gb",
    "rtx-pro-6000-blackwell": "rtx-pro-6000",
    "h100-sxm": "h100",
    "3060": "rtx3060",
    "3090": "rtx3090",
    "4070": "rtx4070",
    "4080": "rtx4080",
    "4090": "rtx4090",
    "5090": "rtx5090",
}


@dataclass(frozen=True, slots=True)
class Link:
    """The connection of the GPUs of a node.

    Attributes:
        bus_bytes_s: bus bandwidth of a large all-reduce, as nccl-tests defines it.
        latency_s: of one small all-reduce.
        source: of both.
    """

    bus_bytes_s: float
    latency_s: float
    source: str


LINKS = {
    "nvlink3": Link(234.9 * GIGA, 40e-6, "8 A100, github.com/stas00/ml-engineering, network"),
    "nvlink4": Link(365.0 * GIGA, 20e-6, "4 and 8 H200 without NVLS, as nvlink3"),
    "nvlink5": Link(682.0 * GIGA, 20e-6, "8 B200, ring, as nvlink3"),
    "pcie4": Link(12.0 * GIGA, 40e-6, "RTX 4090 without P2P, from BERT-large in lambdal's table"),
    "pcie5": Link(28.0 * GIGA, 40e-6, "8 RTX 5090, github.com/NVIDIA/nccl issue 1639"),
    "none": Link(10.0 * GIGA, 40e-6, "such GPUs do not train together"),
    "nodes": Link(40.0 * GIGA, 60e-6, "400 Gbit/s per GPU at 80 %; no measurement was found"),
}


@dataclass(frozen=True, slots=True)
class Gpu:
    """A model of GPU.

    Attributes:
        name: as `--gpu` takes it.
        memory_bytes: memory that processes can use.
        bytes_s: peak of the memory's bandwidth.
        fp32_flop_s: peak without tensor cores.
        tf32_flop_s: peak with TF32; that of fp32 where there is none.
        half_flop_s: peak in bf16 or fp16 that accumulates in fp32.
        has_bf16: True if it computes in bf16.
        compute_capability: such as 8.9; 0 for GPUs that are not NVIDIA's.
        link: key of LINKS.
        context_bytes: measured size of a CUDA context; None takes a typical one.
    """

    name: str
    memory_bytes: int
    bytes_s: float
    fp32_flop_s: float
    tf32_flop_s: float
    half_flop_s: float
    has_bf16: bool
    compute_capability: float
    link: str
    context_bytes: int | None = None

    @property
    def is_cuda(self) -> bool:
        """Return True for NVIDIA's GPUs."""
        return self.compute_capability > 0

    @property
    def overheads(self) -> Overheads:
        """Return the memory that a process takes there beside its tensors."""
        if not self.is_cuda:
            return Overheads(0, 0, 0)
        typical = overheads_of(self.compute_capability)
        if self.context_bytes is None:
            return typical
        return replace(typical, context_bytes=self.context_bytes)


def _figure(text: str) -> float:
    """Return a figure without the letter of its source."""
    if text[-1] not in SOURCES:
        raise ValueError(f"{text}: no source")
    return float(text[:-1])


@functools.cache
def known_gpus() -> dict[str, Gpu]:
    """Return all GPUs by name."""
    found: dict[str, Gpu] = {}
    for line in _TABLE.strip().splitlines():
        name, memory, bandwidth, fp32, tf32, half, bf16, capability, link = line.split()
        found[name] = Gpu(
            name=name,
            memory_bytes=int(_figure(memory) * MIB),
            bytes_s=_figure(bandwidth) * GIGA,
            fp32_flop_s=_figure(fp32) * TERA,
            tf32_flop_s=_figure(tf32) * TERA,
            half_flop_s=_figure(half) * TERA,
            has_bf16=bf16 == "yes",
            compute_capability=float(capability),
            link=link,
        )
    return found


def gpu_named(name: str) -> Gpu:
    """Return the GPU of a name, in any spelling: 'RTX 4090', 'rtx4090' and '4090' are one.

    Raises:
        ConfigError: the catalogue has none; the message has the nearest names.
    """
    known = known_gpus()
    plain = {_plain(each): each for each in known}
    plain |= {_plain(alias): each for alias, each in _ALIASES.items()}
    if _plain(name) in plain:
        return known[plain[_plain(name)]]
    near = [plain[each] for each in closest(_plain(name), plain)]
    raise ConfigError(
        f"gpu={name}: not in the catalogue",
        rule=f"one of: {', '.join(known)}; or auto",
        remedy=f"nearest: {', '.join(dict.fromkeys(near)) or 'none'}; a GPU that is here is "
        "measured by `kata plan --calibrate`",
    )


def gpu_of_device(device: str, memory_bytes: int) -> Gpu | None:
    """Return the GPU that torch calls `device`, such as 'NVIDIA A100-SXM4-80GB'; None if unknown.

    Args:
        device: its name.
        memory_bytes: its whole memory, which tells models of one name apart.
    """
    words = _plain(device)
    fitting = [gpu for gpu in known_gpus().values() if _plain(gpu.name.split("-")[0]) in words]
    if not fitting:
        return None
    is_pcie = "pcie" in words
    return min(
        fitting,
        key=lambda gpu: (
            _plain(gpu.name) not in words,
            abs(gpu.memory_bytes - memory_bytes) > gpu.memory_bytes // 10,
            gpu.name.endswith("pcie") is not is_pcie,
        ),
    )


def _plain(name: str) -> str:
    """Return a name without the maker, and all but letters and digits."""
    text = re.sub(r"nvidia|geforce|tesla|apple|blackwell|server edition", "", name.lower())
    return re.sub(r"[^a-z0-9]", "", text)
