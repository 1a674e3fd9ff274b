"""`kata plan --calibrate` and `--verify`: measuring on this machine. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence

from kata.config import parse_flags
from kata.errors import ConfigError
from kata.launch.planning.subject import CPU, gpu_here, processor
from kata.plan.forecast import Forecast
from kata.plan.profiles import keep_line, keep_profile
from kata.plan.trace_store import trace_path
from kata.plan.verdict import compared_text
from kata.run import Run
from kata.run.config import PRECISIONS
from kata.units import seconds_text


def calibrated_text(train: Sequence[str]) -> str:
    """Measure this machine's device, keep its profile, and return what was measured.

    Args:
        train: arguments of `kata train`, which may name device and precision.
    """
    from kata.plan.measuring.calibration import calibrate

    flags = parse_flags(train)
    precision = str(flags.get("accelerator.mixed_precision", "no"))
    if precision not in PRECISIONS:
        raise ConfigError(
            f"accelerator.mixed_precision={precision}",
            rule=f"one of: {', '.join(PRECISIONS)}",
            remedy="leave it out for float32",
        )
    kind = flags.get("policy.device")
    profile = calibrate(None if kind is None else str(kind), precision, processor())
    path = keep_profile(profile)
    decoding = 0.0 if profile.s_per_pixel is None else profile.s_per_pixel * 640 * 480
    between = ""
    if profile.bus_bytes_s is not None:
        between = f", {profile.bus_bytes_s / 1e9:.3g} GB/s between the GPUs"
    return (
        f"{profile.device}, precision {precision}: "
        f"{profile.gemm_flop_s / 1e9:.3g} GFLOP/s in products, "
        f"{profile.convolution_flop_s / 1e9:.3g} in convolutions, "
        f"{profile.bytes_s / 1e9:.3g} GB/s, {profile.kernel_s * 1e6:.3g} us a small operation, "
        f"{seconds_text(decoding)} to decode a frame of 640x480{between}\n"
        f"profile: {path}\n"
    )


def calibrated_steps_text(run: Run, device: str) -> str:
    """Measure steps of two batch sizes here, keep their line, and return it in words."""
    from kata.plan.measuring.steps import measure_line

    line = measure_line(run)
    name = _name_here()
    keep_line(line, name, trace_path(run, device).stem)
    return (
        f"a step of {run.policy.type} here: {seconds_text(line.fixed_s)} and "
        f"{seconds_text(line.per_sample_s)} per sample\n"
    )


def _name_here() -> str:
    here = gpu_here()
    return processor() if here is None else here.name


def verified_text(found: Forecast) -> str:
    """Run three steps here, and return the planned figures beside the measured ones.

    Raises:
        ConfigError: the plan is for another device than this machine has.
    """
    from kata.plan.measuring.steps import measure_steps

    here = gpu_here()
    name = CPU if here is None else here.name
    if found.machine.gpu.name != name:
        raise ConfigError(
            f"verify with gpu={found.machine.gpu.name}: this machine has {name}",
            rule="a plan is verified on the device that it is for",
            remedy=f"leave out --verify, or --gpu={name}",
        )
    measured = measure_steps(found.run, CPU if here is None else "cuda")
    return compared_text(found, measured.step_s, measured.peak_bytes)
