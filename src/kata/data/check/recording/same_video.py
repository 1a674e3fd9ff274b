"""Duplicated video: one recording's pictures stand in another episode, or under another camera."""

from __future__ import annotations

import numpy as np

from kata.data.check.faults import Fault, FrameRange, RecordingFaults, Rule, Shot
from kata.data.check.recording.signals import EpisodeSpan, Signal
from kata.data.check.recording.thumbnails import Sampled, Thumbs, blocks, changed_pixels, looked_at

SAME = 6
"""Changed pixels of a thumbnail up to which it is a copy, encoded again or not."""
SHARE = 0.7
"""Share of the sampled frames that agree."""
APART = 0.1
"""Distance of the robot's poses, of a joint's span, in at least a quarter of the frames that agree:
pictures of the same pose may well be alike."""

_LEAST = 4  # sampled frames in common
_CHUNK = 64
_NEAR = 4.0  # grey levels by which the mean of a block of a copy may differ

SAME_VIDEO = Rule(
    "duplicated video",
    "pictures of two episodes differ where their states differ, and two cameras show two views",
    "leave both out, or put the right video file in its place",
)


def find_same_video(sampled: list[Sampled], signals: list[Signal], fps: int) -> RecordingFaults:
    """Find episodes that show another episode's pictures, and cameras that show another's."""
    found = RecordingFaults()
    signals = [signal for signal in signals if signal.moves.any()]
    faults: list[Fault] = []
    for camera in sampled:
        if signals:
            faults += _episodes(camera, signals, fps)
    for number, camera in enumerate(sampled):
        for other in sampled[number + 1 :]:
            faults += _cameras(camera, other, fps)
    looked = looked_at(sampled)
    found.add(SAME_VIDEO, looked, faults)
    return found


def _episodes(camera: Sampled, signals: list[Signal], fps: int) -> list[Fault]:
    thumbs = camera.thumbs
    faults: list[Fault] = []
    told: set[int] = set()
    for one, other in _alike(thumbs):
        if other in told:
            continue
        count = min(len(thumbs[one]), len(thumbs[other]))
        agree = changed_pixels(thumbs[one][:count], thumbs[other][:count]) <= SAME
        if agree.mean() < SHARE or not _poses_differ(
            camera, one, other, np.flatnonzero(agree), signals
        ):
            continue
        told.add(other)
        first, second = camera.episodes[one], camera.episodes[other]
        what = (
            f"episode {second.index}: '{camera.key}' shows the pictures of episode {first.index} "
            f"({agree.mean():.0%} of {count} sampled frames), while the states differ"
        )
        shots = _pairs(camera, camera, one, other, fps)
        # Either may be the copy, so neither can be trusted.
        cuts = tuple(FrameRange(each.index, 0, each.length) for each in (first, second))
        faults.append(Fault(SAME_VIDEO, what, (first.index, second.index), cuts, shots=shots))
    return faults


def _alike(thumbs: list[Thumbs]) -> list[tuple[int, int]]:
    """Return pairs of episodes, one before the other, with two early frames that may agree.

    Means of blocks are quick to compare, and differ little between copies.
    """
    usable = [number for number, each in enumerate(thumbs) if len(each) >= _LEAST]
    if len(usable) < 2:
        return []
    early = np.stack([blocks(thumbs[number][1:_LEAST]) for number in usable]).astype(np.float32)
    pairs: list[tuple[int, int]] = []
    for start in range(0, len(usable), _CHUNK):
        part = early[start : start + _CHUNK]
        apart = np.abs(part[:, None] - early[None]).mean(axis=-1).max(axis=(-2, -1))
        agree = (apart < _NEAR).sum(axis=-1) >= 2
        rows, columns = np.nonzero(agree)
        pairs += [
            (usable[start + row], usable[column])
            for row, column in zip(rows.tolist(), columns.tolist(), strict=True)
            if start + row < column
        ]
    return pairs


def _poses_differ(
    camera: Sampled, one: int, other: int, places: np.ndarray, signals: list[Signal]
) -> bool:
    frames = camera.frames[one][places]
    apart = np.zeros(len(frames))
    for signal in signals:
        poses = [
            signal.values[camera.episodes[each].start + frames][:, signal.moves]
            for each in (one, other)
        ]
        off = np.abs(poses[0].astype(np.float64) - poses[1]) / signal.span[signal.moves]
        apart = np.maximum(apart, off.max(axis=1))
    return float((apart >= APART).mean()) >= 0.25


def _cameras(one: Sampled, other: Sampled, fps: int) -> list[Fault]:
    """Find the episodes in which two cameras show the same pictures."""
    same: list[int] = []
    for number in range(len(one.episodes)):
        pictures, others = one.thumbs[number], other.thumbs[number]
        if len(pictures) and (changed_pixels(pictures, others) <= SAME).mean() >= SHARE:
            same.append(number)
    if not same:
        return []
    episodes = [one.episodes[number] for number in same]
    what = (
        f"'{one.key}' and '{other.key}' show the same pictures in {len(same)} of "
        f"{len(one.episodes)} episodes, the first is episode {episodes[0].index}"
    )
    cuts = tuple(FrameRange(each.index, 0, each.length) for each in episodes)
    shots = _pairs(one, other, same[0], same[0], fps)
    return [Fault(SAME_VIDEO, what, tuple(each.index for each in episodes), cuts, shots=shots)]


def _pairs(one: Sampled, other: Sampled, first: int, second: int, fps: int) -> tuple[Shot, ...]:
    """Show three frames of both, side by side."""
    count = min(len(one.frames[first]), len(other.frames[second]))
    shots: list[Shot] = []
    for place in np.unique(np.linspace(0, count - 1, 3).round().astype(int)).tolist():
        for camera, number in ((one, first), (other, second)):
            episode: EpisodeSpan = camera.episodes[number]
            frame = int(camera.frames[number][place])
            name = f"'{camera.key}', " if one is not other else ""
            caption = f"{name}episode {episode.index}, {frame / fps:.1f} s"
            shots.append(Shot(episode.start + frame, camera.key, caption))
    return tuple(shots)
