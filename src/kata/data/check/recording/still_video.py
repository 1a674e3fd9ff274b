"""Video that shows nothing: frozen while the robot moves, or black.

FFmpeg's `freezedetect` and `blackdetect` look for the same in films. Here the motion of the robot
tells a frozen camera from a robot that waits.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kata.data.arrays import Int64
from kata.data.check.faults import Curve, Fault, FrameRange, RecordingFaults, Rule, Shot
from kata.data.check.recording.signals import EpisodeSpan, Signal, moved, runs
from kata.data.check.recording.thumbnails import Sampled, Thumbs, changed_pixels, looked_at

SAME = 3
"""Changed pixels of a thumbnail below which a picture stands; a robot changes 14 or more."""
UNSEEN_SHARE = 0.25
"""Share of the episodes with a standing picture: the camera does not see the robot."""
STILL_S = 1.0
MOVED = 0.05
"""Movement of a joint, of its span, during which a live picture changes."""
DARK = 0.1
"""Brightness, of the largest, below which a pixel is black; as in FFmpeg's blackdetect."""
DARK_SHARE = 0.98
"""Share of a picture's pixels that are black; as in FFmpeg's blackdetect."""

FROZEN = Rule(
    "frozen video",
    f"a picture changes within {STILL_S:g} s in which a joint moves by {MOVED:.0%} of its span",
    "leave these frames out: --dataset.keep_ranges=<the file of --write_ranges>",
)
BLACK = Rule(
    "black video",
    f"less than {DARK_SHARE:.0%} of a picture is darker than {DARK:.0%}",
    "leave these frames out: --dataset.keep_ranges=<the file of --write_ranges>",
)


def find_still_video(sampled: list[Sampled], signals: list[Signal], fps: int) -> RecordingFaults:
    """Find stretches in which a camera shows black, or one picture while the robot moves."""
    found = RecordingFaults()
    frozen: list[Fault] = []
    black: list[Fault] = []
    unseen: list[str] = []
    signals = [signal for signal in signals if signal.moves.any()]
    for camera in sampled:
        faults: list[Fault] = []
        for number, episode in enumerate(camera.episodes):
            dark = is_black(camera.thumbs[number])
            cuts = [_between(camera.frames[number], run, episode) for run in runs(dark)]
            black += [_black(camera.key, episode, cut, fps) for cut in cuts]
            faults += _frozen_runs(camera, number, dark, signals, fps)
        partly = {fault.cuts[0] for fault in faults if not _is_whole(fault, camera)}
        if len({cut.episode for cut in partly}) > UNSEEN_SHARE * len(camera.episodes):
            unseen.append(f"'{camera.key}' does not always see the robot")
            faults = [fault for fault in faults if fault.cuts[0] not in partly]
        frozen += faults
    looked = looked_at(sampled)
    found.add(BLACK, looked, black)
    if sampled and not signals:
        looked = "not looked at: no joint moves"
    found.add(FROZEN, ", but ".join([looked, *unseen]), frozen)
    return found


def _is_whole(fault: Fault, camera: Sampled) -> bool:
    """Return True for an episode whose picture never changes."""
    cut = fault.cuts[0]
    length = next(each.length for each in camera.episodes if each.index == cut.episode)
    return cut.end - cut.first == length


def _frozen_runs(
    camera: Sampled, number: int, dark: NDArray[np.bool_], signals: list[Signal], fps: int
) -> list[Fault]:
    """Find the ranges of one episode in which the picture is still and a joint moves."""
    episode = camera.episodes[number]
    frames = camera.frames[number]
    thumbs = camera.thumbs[number]
    if not len(frames):
        return []
    change = changed_pixels(thumbs[1:], thumbs[:-1])
    faults: list[Fault] = []
    for first, end in runs((change < SAME) & ~dark[1:]):
        run = (int(frames[first]), int(frames[end]) + 1)
        if run[1] - run[0] > STILL_S * fps and _moved(signals, episode, run) >= MOVED:
            cut = _between(frames, (first, end + 1), episode)
            still = (episode, run)
            faults.append(_frozen(camera.key, cut, still, (frames, change), signals, fps))
    return faults


def is_black(thumbs: Thumbs) -> NDArray[np.bool_]:
    """Return (n,) whether a thumbnail is black."""
    return (thumbs.mean(axis=-1) < DARK * 255).mean(axis=(-2, -1)) >= DARK_SHARE


def _between(frames: Int64, run: tuple[int, int], episode: EpisodeSpan) -> FrameRange:
    """Return the frames between the good samples beside a run of bad ones."""
    first, end = run
    begin = int(frames[first - 1]) + 1 if first else 0
    stop = int(frames[end]) if end < len(frames) else episode.length
    return FrameRange(episode.index, begin, stop)


def _moved(signals: list[Signal], episode: EpisodeSpan, run: tuple[int, int]) -> float:
    return moved(signals, episode.start + run[0], episode.start + run[1])


def _black(key: str, episode: EpisodeSpan, cut: FrameRange, fps: int) -> Fault:
    first, end = cut.first, cut.end
    what = (
        f"episode {episode.index}: '{key}' is black in frames {first} to {end - 1} "
        f"({(end - first) / fps:.1f} s)"
    )
    shots = _shots(key, episode, (first, end), fps)
    return Fault(BLACK, what, (episode.index,), (cut,), shots=shots)


def _frozen(
    key: str,
    cut: FrameRange,
    still: tuple[EpisodeSpan, tuple[int, int]],
    changes: tuple[Int64, Int64],
    signals: list[Signal],
    fps: int,
) -> Fault:
    episode, run = still
    first, end = run
    share = _moved(signals, episode, run)
    what = (
        f"episode {episode.index}: '{key}' shows one picture from frame {first} to {end - 1} "
        f"({(end - first) / fps:.1f} s) while a joint moves by {share:.0%} of its span"
    )
    frames, change = changes
    shaded = (first / fps, (end - 1) / fps)
    signal = signals[0]
    part = episode.of(signal)
    place = int((np.ptp(part[first:end], axis=0) / np.maximum(signal.span, 1e-300)).argmax())
    word = "state" if signal.key.startswith("observation") else "action"
    joint = f"{signal.names[place]} of {signal.key}, episode {episode.index}"
    curves = (
        Curve(joint, "s", np.arange(len(part)) / fps, ((word, part[:, place]),), shaded),
        Curve(
            f"change of the picture of '{key}'",
            "s",
            frames[1:] / fps,
            (("pixels", change),),
            shaded,
        ),
    )
    return Fault(FROZEN, what, (episode.index,), (cut,), curves, _shots(key, episode, run, fps))


def _shots(key: str, episode: EpisodeSpan, run: tuple[int, int], fps: int) -> tuple[Shot, ...]:
    """Show frames before, in and after a stretch."""
    first, end = run
    rows = {
        max(0, first - fps),
        first,
        (first + end) // 2,
        end - 1,
        min(episode.length - 1, end + fps),
    }
    return tuple(Shot(episode.start + row, key, f"{row / fps:.1f} s") for row in sorted(rows))
