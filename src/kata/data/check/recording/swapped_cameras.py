"""Cameras that changed places in some episodes.

Each frame is compared with the episodes of the most similar scene, whichever way their cameras
stand. A few of these may be swapped themselves, so the orientation of all episodes is found
together: the episode that contradicts its neighbors most is turned round, until none does.
"""

from __future__ import annotations

from itertools import combinations

import numpy as np

from kata.data.arrays import Int64
from kata.data.check.faults import Fault, FrameRange, RecordingFaults, Rule, Shot
from kata.data.check.recording.signals import Floats, runs
from kata.data.check.recording.thumbnails import Sampled, Thumbs

MARGIN = 0.1
"""Correlation by which two frames must look more like each other's camera than like their own."""
TELLING = 0.5
"""Median margin of all frames; two cameras with less cannot be distinguished."""

_NEIGHBORS = 5
_EPISODES = 2 * _NEIGHBORS
_LEAST = 2  # samples in a row

SWAPPED = Rule(
    "swapped cameras",
    "each camera looks more like itself in other episodes than like another camera",
    "exchange the two video files, or leave these frames out: "
    "--dataset.keep_ranges=<the file of --write_ranges>",
)


def find_swapped(sampled: list[Sampled]) -> RecordingFaults:
    """Find stretches in which two cameras show each other's view."""
    found = RecordingFaults()
    if len(sampled) < 2:
        found.add(SWAPPED, "not looked at: fewer than two cameras", [])
        return found
    views = {camera.key: list(map(_view, camera.thumbs)) for camera in sampled}
    faults: list[Fault] = []
    looked: list[str] = []
    for one, other in combinations(sampled, 2):
        usable = [number for number, view in enumerate(views[one.key]) if len(view)]
        names = f"'{one.key}' and '{other.key}'"
        if len(usable) < _EPISODES:
            looked.append(f"{names}: not looked at, fewer than {_EPISODES} episodes")
            continue
        first = [views[one.key][number] for number in usable]
        second = [views[other.key][number] for number in usable]
        margins = _margins(first, second)
        if np.median(np.abs(np.concatenate(margins))) < TELLING:
            looked.append(f"{names}: cannot be told apart")
            continue
        looked.append(f"{names} in {len(usable)} episodes")
        for number, margin in zip(usable, margins, strict=True):
            for begin, end in runs(margin < -MARGIN):
                if end - begin >= min(_LEAST, len(margin)):
                    faults.append(_fault(one, other, number, (begin, end)))
    found.add(SWAPPED, ", ".join(looked), faults)
    return found


def _view(thumbs: Thumbs) -> Floats:
    """Return grey thumbnails (n, pixels) of mean 0 and length 1: light and exposure drop out."""
    grey = thumbs.mean(axis=-1, dtype=np.float64).reshape(len(thumbs), -1)
    grey -= grey.mean(axis=1, keepdims=True)
    return grey / np.maximum(np.linalg.norm(grey, axis=1, keepdims=True), 1e-9)


def _margins(first: list[Floats], second: list[Floats]) -> list[Floats]:
    """Return per episode, (n,) how much more its frames look like their own cameras.

    Args:
        first, second: per episode, the views (n, pixels) of either camera.
    """
    owner = np.repeat(np.arange(len(first)), [len(view) for view in first])
    one = np.stack([view.mean(axis=0) for view in first])
    other = np.stack([view.mean(axis=0) for view in second])
    frames, others = np.concatenate(first), np.concatenate(second)
    straight = frames @ one.T + others @ other.T
    crossed = frames @ other.T + others @ one.T
    neighbors = _neighbors(np.maximum(straight, crossed), owner)
    votes = np.take_along_axis(straight - crossed, neighbors, axis=1)
    turned = np.ones(len(first))
    for _ in first:
        margin = (votes * turned[neighbors]).mean(axis=1)
        agree = np.bincount(owner, margin) / np.bincount(owner) * turned
        if agree.min() >= 0:
            break
        turned[agree.argmin()] *= -1
    if 2 * (turned < 0).sum() > len(turned):
        turned = -turned
    margin = (votes * turned[neighbors]).mean(axis=1)
    return [margin[owner == number] for number in range(len(first))]


def _neighbors(similarity: Floats, owner: Int64) -> Int64:
    """Return (frames, _NEIGHBORS) the most similar other episodes of each frame."""
    similarity[np.arange(len(owner)), owner] = -np.inf
    return np.argpartition(similarity, -_NEIGHBORS, axis=1)[:, -_NEIGHBORS:]


def _fault(one: Sampled, other: Sampled, number: int, run: tuple[int, int]) -> Fault:
    episode, frames = one.episodes[number], one.frames[number]
    first = int(frames[run[0] - 1]) + 1 if run[0] else 0
    end = int(frames[run[1]]) if run[1] < len(frames) else episode.length
    part = "" if (first, end) == (0, episode.length) else f" in frames {first} to {end - 1}"
    what = f"episode {episode.index}: '{one.key}' and '{other.key}' have changed places{part}"
    usual = one.episodes[0] if number else one.episodes[-1]
    places = (
        (episode.start + int(frames[run[0]]), f"episode {episode.index}"),
        (usual.start, f"episode {usual.index}"),
    )
    shots: list[Shot] = []
    for row, word in places:
        shots += [Shot(row, camera.key, f"'{camera.key}', {word}") for camera in (one, other)]
    cut = FrameRange(episode.index, first, end)
    return Fault(SWAPPED, what, (episode.index,), (cut,), shots=tuple(shots))
