"""Duplicated episodes: the same numbers recorded under two indices.

Each change from one frame to the next gets a 64-bit hash. Of very large datasets only hashes that a
fixed number divides are kept: equal frames are then kept or dropped together in every episode.
"""

from __future__ import annotations

from collections import Counter

import numpy as np

from kata.data.arrays import Int64
from kata.data.check.faults import Curve, Fault, FrameRange, RecordingFaults, Rule
from kata.data.check.recording.signals import EpisodeSpan, Floats, Signal

SHARE = 0.5
"""Fraction of equal frames in the shorter episode that makes a duplicate."""

_LEAST = 5  # equal frames
_HASHES_MAX = 4_000_000
_SHARED_MAX = 10  # episodes with the same change: a rest pose, which proves nothing

DUPLICATE = Rule(
    "duplicated episode",
    f"two episodes have less than {SHARE:.0%} of their states and actions in common",
    "leave one of the two out: --dataset.exclude_episodes, or --dataset.keep_ranges",
)


def find_duplicates(
    signals: list[Signal], episodes: list[EpisodeSpan], fps: int
) -> RecordingFaults:
    """Find episodes whose states and actions stand in an earlier episode."""
    found = RecordingFaults()
    if not signals:
        found.add(DUPLICATE, "not looked at: the dataset lacks state and action", [])
        return found
    keep = max(1, sum(each.length for each in episodes) // _HASHES_MAX)
    changes = [_changes(signals, episode, keep) for episode in episodes]
    counts = np.array([len(each) for each in changes])
    shared: Counter[tuple[int, int]] = Counter()
    for group in _groups(changes):
        for place, later in enumerate(group):
            shared.update((earlier, later) for earlier in group[:place])
    faults: list[Fault] = []
    told: set[int] = set()
    for (one, other), number in sorted(shared.items()):
        # The episode with fewer changes is the one that is contained.
        later = other if counts[other] <= counts[one] else one
        if number < max(_LEAST, SHARE * counts[later]) or later in told:
            continue
        told.add(later)
        earlier = one if later == other else other
        share = number / counts[later]
        faults.append(_fault(signals[0], episodes[earlier], episodes[later], share, fps))
    found.add(
        DUPLICATE,
        f"{len(episodes)} episodes, every {'' if keep == 1 else f'{keep}. '}frame",
        faults,
    )
    return found


def _changes(signals: list[Signal], episode: EpisodeSpan, keep: int) -> Int64:
    """Return the distinct hashes of the episode's changes; a frame that repeats is no change."""
    total = np.zeros(episode.length, dtype=np.uint64)
    for number, signal in enumerate(signals):
        part = np.ascontiguousarray(signal.values[episode.start : episode.end], dtype=np.float32)
        odd = np.random.default_rng(number).integers(
            1, 2**63, part.shape[1], dtype=np.uint64
        ) | np.uint64(1)
        # Adding zero makes -0.0 equal to 0.0; products wrap around, as a hash may.
        total += ((part + 0.0).view(np.uint32).astype(np.uint64) * odd).sum(axis=1, dtype=np.uint64)
    before, after = total[:-1], total[1:]
    hashes = (before * np.uint64(0x9E3779B97F4A7C15)) ^ after
    hashes ^= hashes >> np.uint64(29)
    hashes = hashes[(before != after) & (hashes % np.uint64(keep) == 0)]
    return np.unique(hashes).view(np.int64)


def _groups(changes: list[Int64]) -> list[list[int]]:
    """Return, for each hash that two to _SHARED_MAX episodes have, these episodes."""
    hashes = np.concatenate(changes)
    owner = np.repeat(np.arange(len(changes)), [len(each) for each in changes])
    order = np.argsort(hashes, kind="stable")
    hashes, owner = hashes[order], owner[order]
    starts = np.flatnonzero(np.diff(hashes, prepend=hashes[:1] - 1))
    sizes = np.diff(starts, append=len(hashes))
    several = np.flatnonzero((sizes > 1) & (sizes <= _SHARED_MAX))
    return [owner[starts[n] : starts[n] + sizes[n]].tolist() for n in several.tolist()]


def _fault(
    signal: Signal, earlier: EpisodeSpan, later: EpisodeSpan, share: float, fps: int
) -> Fault:
    what = f"episode {later.index} repeats {share:.0%} of its frames from episode {earlier.index}"
    first, second = earlier.of(signal), later.of(signal)
    moved = np.ptp(second, axis=0) / np.maximum(signal.span, 1e-300)
    place = int(np.where(signal.moves, moved, 0.0).argmax())
    length = max(len(first), len(second))
    lines = (
        (f"episode {earlier.index}", _padded(first[:, place], length)),
        (f"episode {later.index}", _padded(second[:, place], length)),
    )
    title = f"{signal.names[place]} of {signal.key}"
    curve = Curve(title, "s", np.arange(length) / fps, lines)
    cut = FrameRange(later.index, 0, later.length)
    return Fault(DUPLICATE, what, (earlier.index, later.index), (cut,), (curve,))


def _padded(values: Floats, length: int) -> Floats:
    return np.concatenate([values, np.full(length - len(values), np.nan)])
