"""Faults of recording that cost success: rules over state and action, and over sampled frames."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager

from kata.data.check.faults import RecordingFaults
from kata.data.check.findings import Findings
from kata.data.check.recording.clipping import find_clipping
from kata.data.check.recording.duplicate_episodes import find_duplicates
from kata.data.check.recording.idle import find_idle
from kata.data.check.recording.lag import find_lags
from kata.data.check.recording.same_video import find_same_video
from kata.data.check.recording.signals import episodes_of, read_signals
from kata.data.check.recording.still_video import find_still_video
from kata.data.check.recording.swapped_cameras import find_swapped
from kata.data.check.recording.thumbnails import choose_episodes, sample_cameras
from kata.data.dataset.dataset import Dataset

__all__ = ["check_recording"]


def check_recording(
    data: Dataset,
    found: Findings,
    *,
    sampled_frames: int,
    threads: int | None = None,
    counting: Callable[[str], AbstractContextManager[Callable[[int, int], None]]],
) -> RecordingFaults:
    """Look for faults of recording in a dataset; each becomes a warning in `found`.

    Args:
        data: the dataset; its files are only read.
        found: takes the faults, and an error for each frame that cannot be decoded.
        sampled_frames: frames of each camera to decode at most.
        threads: decoding threads; None for one per core.
        counting: shows the progress of decoding.
    """
    episodes = episodes_of(data)
    lengths = {each.index: each.length for each in episodes}
    result = RecordingFaults(lengths=lengths, fps=data.fps)
    state, action = read_signals(data)
    signals = [signal for signal in (state, action) if signal is not None]
    cameras = list(data.cameras)
    result.take(find_lags(state, action, episodes, data.fps))
    result.take(find_clipping(signals, episodes, data.fps))
    result.take(find_idle(signals, episodes, data.fps, cameras))
    result.take(find_duplicates(signals, episodes, data.fps))
    sampled = []
    if cameras:
        chosen = choose_episodes(episodes, data.fps, sampled_frames)
        with counting("frames sampled") as progress:
            sampled = sample_cameras(data, chosen, found, progress, threads or os.cpu_count() or 1)
        for camera in sampled:
            found.count("frames sampled", sum(map(len, camera.frames)))
    # Pictures show the state; the action runs ahead of it.
    result.take(find_still_video(sampled, signals[:1], data.fps))
    result.take(find_same_video(sampled, signals[:1], data.fps))
    result.take(find_swapped(sampled))
    found.faults(result)
    return result
