"""The size of a run's data, and the time that reading them takes. Torch-free."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kata.policies.config import PolicyConfig
from kata.run import Run
from kata.run.dataset import FEATURE_CACHES
from kata.units import num_bytes

DECODE_S_PER_PIXEL = 14.6e-9
"""Time of a core for one pixel of a frame that is read at random: 4.5 ms for 640x480, AV1 with a
keyframe every second frame, on a 2.45 GHz core.
"""

READING_SHARE = {"clips": 0.5, "full": 1.0, "auto": 1.0}
"""Part of this time by order of the samples: clips decode each frame once."""

CACHED_SHARE = 0.05
"""Part of it for a frame that is copied from the frame cache."""

VIDEO_BYTES_PER_PIXEL = 0.061
"""Bytes on disk of a pixel of LeRobot's default video: 18.8 kB for 640x480."""


@dataclass(frozen=True, slots=True)
class DataSize:
    """The amount of data of a run.

    Attributes:
        samples: anchors of an epoch.
        episodes: number of episodes; 0 if unknown.
        fps: frames per second.
        disk_bytes: size on disk; None if unknown.
        is_described: True if there is no dataset yet.
        frames: frames of a camera over all episodes; None takes the samples for them.
    """

    samples: int
    episodes: int
    fps: float
    disk_bytes: int | None
    is_described: bool = False
    frames: int | None = None


def frames_per_sample(policy: PolicyConfig) -> int:
    """Return the frames of all cameras that one sample reads."""
    windows = policy.windows()
    return sum(len(windows.get(key, (0,))) for key in policy.cameras)


def pixels_per_sample(policy: PolicyConfig) -> int:
    """Return the pixels of these frames."""
    windows = policy.windows()
    total = 0
    for key, feature in policy.cameras.items():
        _, height, width = feature.shape
        total += len(windows.get(key, (0,))) * height * width
    return total


def reading_s(run: Run, cores: int | None, s_per_pixel: float | None) -> float:
    """Return the time in which one rank's threads read and decode its samples of a step.

    Args:
        run: the options, with the policy's features.
        cores: that a rank has; None takes one for each of `num_workers`.
        s_per_pixel: measured time of a core; None takes DECODE_S_PER_PIXEL.
    """
    samples = run.batch_size * run.accumulation
    threads = min(run.num_workers, cores or run.num_workers)
    share = CACHED_SHARE if run.dataset.cache != "none" else READING_SHARE[run.dataset.shuffle]
    one_core_s = pixels_per_sample(run.policy) * (s_per_pixel or DECODE_S_PER_PIXEL) * share
    return samples * one_core_s / threads


def cache_bytes(run: Run, data: DataSize, feature_bytes: int) -> int:
    """Return what the run's cache of frames or features takes when it is full.

    Args:
        run: the options, with the policy's features.
        data: the amount of data.
        feature_bytes: what the policy's frozen part makes of a sample, as the trace has it.
    """
    kept = run.dataset.cache
    if kept == "none":
        return 0
    if kept in FEATURE_CACHES:
        whole = data.samples * feature_bytes
    else:
        whole = (data.frames or data.samples) * _kept_frame_bytes(run)
    limit = run.dataset.cache_size
    return whole if limit is None else min(whole, int(num_bytes(limit)))


def _kept_frame_bytes(run: Run) -> int:
    """Return the bytes in which a cache keeps the frames of all cameras at one moment."""
    total = 0
    for channels, height, width in (each.shape for each in run.policy.cameras.values()):
        size = (height, width)
        if run.dataset.resize == "reader":
            size = run.policy.resized(size)
        rgb = channels * math.prod(size)
        planes = channels * height * width // 2  # 4:2:0, of the recorded size
        total += min(rgb, planes) if run.dataset.pixels == "yuv" else rgb
    return total
