"""Profiles of devices: what was measured there, kept in the cache folder. Torch-free."""

from __future__ import annotations

import json
import logging
import re
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

from kata.data.storage.array_file import cache_folder
from kata.files import write_json
from kata.plan.catalogue import Link
from kata.plan.device_rates import DeviceRates

_log = logging.getLogger(__name__)

CALIBRATED_SPREAD = 0.10
OTHER_TORCH_SPREAD = 0.20
"""Half-width of the interval for a profile that another version of torch has measured."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Profile:
    """The rates of one device in one precision, as measured.

    Attributes:
        device: its name.
        precision: 'no', 'bf16' or 'fp16'.
        torch: version of torch.
        driver: version of the driver; '' on a CPU.
        threads: threads of torch.
        gemm_flop_s: floating-point operations per second in products of matrices.
        convolution_flop_s: those in convolutions.
        bytes_s: bytes per second of element-wise operations.
        kernel_s: time of a small operation.
        launch_s: time of the host for a launch; 0 on a CPU.
        memory_bytes: memory of the device.
        context_bytes: CUDA context; 0 on a CPU.
        s_per_pixel: time of a core to decode a pixel, or None.
        bus_bytes_s: bus bandwidth of a large all-reduce over the GPUs here; None for one GPU.
        all_reduce_s: time of a small one; None for one GPU.
    """

    device: str
    precision: str
    torch: str
    driver: str
    threads: int
    gemm_flop_s: float
    convolution_flop_s: float
    bytes_s: float
    kernel_s: float
    launch_s: float
    memory_bytes: int
    context_bytes: int
    s_per_pixel: float | None = None
    bus_bytes_s: float | None = None
    all_reduce_s: float | None = None

    @property
    def link(self) -> Link | None:
        """Return the measured connection of the GPUs, or None."""
        if self.bus_bytes_s is None or self.all_reduce_s is None:
            return None
        return Link(self.bus_bytes_s, self.all_reduce_s, f"measured on {self.device}")

    def rates(self) -> tuple[DeviceRates, str]:
        """Return the rates, and a warning if another version of torch has measured them."""
        here = version("torch")
        is_current = here == self.torch
        warning = ""
        if not is_current:
            warning = (
                f"the profile of {self.device} is of torch {self.torch}, and here is {here}: the "
                "interval is wider; `kata plan --calibrate` measures again"
            )
        return DeviceRates(
            name=self.device,
            gemm_flop_s=self.gemm_flop_s,
            convolution_flop_s=self.convolution_flop_s,
            attention_flop_s=self.gemm_flop_s,
            bytes_s=self.bytes_s,
            kernel_s=self.kernel_s,
            launch_s=self.launch_s,
            convolution_passes=1,
            spread=CALIBRATED_SPREAD if is_current else OTHER_TORCH_SPREAD,
            is_measured=True,
        ), warning


@dataclass(frozen=True, slots=True)
class StepLine:
    """The measured time of a policy's step as a line over its micro-batch.

    Attributes:
        fixed_s: time that does not depend on the batch.
        per_sample_s: time of each sample.
    """

    fixed_s: float
    per_sample_s: float

    def at(self, batch: int) -> float:
        """Return the seconds of a step with `batch` samples."""
        return self.fixed_s + self.per_sample_s * batch


def line_path(device: str, trace: str) -> Path:
    """Return the file that keeps the line of a step whose trace has the name `trace`."""
    path = profile_path(device, trace)
    return path.with_name(f"{path.stem}-step.json")


def keep_line(line: StepLine, device: str, trace: str) -> None:
    """Write the measured line of a step."""
    path = line_path(device, trace)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(line))


def kept_line(device: str, trace: str) -> StepLine | None:
    """Return the measured line of a step, or None."""
    try:
        return StepLine(**json.loads(line_path(device, trace).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return None


def profile_path(device: str, precision: str) -> Path:
    """Return the file of a device's profile."""
    plain = re.sub(r"[^a-z0-9]+", "-", device.lower()).strip("-")
    return cache_folder() / "plan" / "profiles" / f"{plain}-{precision}.json"


def keep_profile(profile: Profile) -> Path:
    """Write a profile, and return its file."""
    path = profile_path(profile.device, profile.precision)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_json(path, asdict(profile))
    return path


def kept_profile(device: str, precision: str) -> Profile | None:
    """Return the profile of a device; None if it was not measured.

    A damaged file is reported and left out.
    """
    path = profile_path(device, precision)
    try:
        return Profile(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        _log.warning(
            "%s is no profile (%s) and is not used; `kata plan --calibrate` writes a new one",
            path,
            error,
        )
        return None
