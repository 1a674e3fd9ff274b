"""Clipped joints: values that stop dead at the largest or smallest value of the dataset.

LeRobot bounds a motor's reading to its calibrated range, so a joint that moves further is recorded
as standing at the bound. A joint that rests at its end arrives slowly, a clipped one at speed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kata.data.check.faults import Curve, Fault, RecordingFaults, Rule
from kata.data.check.recording.signals import EpisodeSpan, Floats, Signal, runs

FRAMES_SHARE = 0.02
"""Of all frames, those that must stand at the bound."""
RUNS = 3
"""Stays that are met at speed, and a third of all stays; fewer may be chance."""
RUN_FRAMES = 3
SPEED_SHARE = 0.1
"""Speed at which a joint meets the bound, of the speed that 90 % of its frames stay below."""

_FRAMES_LEAST = 1000  # the extremes of fewer are chance
_EXACT = 1e-4  # of the joint's range
_ENDS_SHARE = 0.9  # of frames near either end: a gripper that is open or closed
_ENDS = 0.05
_END_EFFECTOR = re.compile(r"grip|hand|finger|thumb|jaw|claw|suction", re.IGNORECASE)

CLIPPED = Rule(
    "clipped joint",
    f"a joint does not stop dead at the bound of its values in {FRAMES_SHARE:.0%} of the frames",
    "calibrate the joint's range again, or lift the limit that the recorder applies",
)


@dataclass
class _Stays:
    """Stays of one dimension at one of its bounds."""

    frames: int = 0
    runs: int = 0
    hard: int = 0
    longest: tuple[int, EpisodeSpan | None, int] = (0, None, 0)


def find_clipping(signals: list[Signal], episodes: list[EpisodeSpan], fps: int) -> RecordingFaults:
    """Find dimensions of state and action that stand at a bound which they met at speed."""
    found = RecordingFaults()
    frames = sum(episode.length for episode in episodes)
    if frames < _FRAMES_LEAST:
        found.add(CLIPPED, f"not looked at: fewer than {_FRAMES_LEAST:,} frames", [])
        return found
    faults: list[Fault] = []
    dimensions = 0
    for signal in signals:
        judged = judged_dimensions(signal)
        dimensions += len(judged)
        for bound, word in ((signal.high, "largest"), (signal.low, "smallest")):
            stays = _stays(signal, bound, judged, episodes)
            for place, each in stays.items():
                if _is_clipped(each, frames):
                    faults.append(_fault(signal, place, float(bound[place]), word, each, fps))
    looked = (
        f"{dimensions} dimensions, every frame" if dimensions else "not looked at: nothing moves"
    )
    found.add(CLIPPED, looked, faults)
    return found


def judged_dimensions(signal: Signal) -> list[int]:
    """Return the dimensions that move, without grippers and hands, which close against things."""
    span = signal.high - signal.low
    places: list[int] = []
    for place in np.flatnonzero(signal.moves).tolist():
        if _END_EFFECTOR.search(signal.names[place]):
            continue
        values = signal.values[:, place]
        low = values < signal.low[place] + _ENDS * span[place]
        high = values > signal.high[place] - _ENDS * span[place]
        if float((low | high).mean()) < _ENDS_SHARE:
            places.append(place)
    return places


def _stays(
    signal: Signal, bound: Floats, judged: list[int], episodes: list[EpisodeSpan]
) -> dict[int, _Stays]:
    found = {place: _Stays() for place in judged}
    columns = np.array(judged, dtype=np.int64)
    tolerance = _EXACT * (signal.high - signal.low)
    for episode in episodes:
        part = episode.of(signal)[:, columns]
        at = np.abs(part - bound[columns]) <= tolerance[columns]
        for column in np.flatnonzero(at.sum(axis=0) >= RUN_FRAMES).tolist():
            place = judged[column]
            limit = SPEED_SHARE * float(signal.speed[place])
            _count(found[place], episode, part[:, column], at[:, column], limit)
    return found


def _count(
    stays: _Stays, episode: EpisodeSpan, values: Floats, at: NDArray[np.bool_], limit: float
) -> None:
    """Add one episode's stays of at least RUN_FRAMES frames."""
    for first, end in runs(at):
        if end - first < RUN_FRAMES:
            continue
        stays.frames += end - first
        stays.runs += 1
        # The bound cuts the last step short, so the step before it tells the speed.
        before = abs(values[first - 1] - values[first - 2]) if first >= 2 else 0.0
        after = abs(values[end + 1] - values[end]) if end + 1 < len(values) else 0.0
        stays.hard += max(before, after) >= limit
        if end - first > stays.longest[0]:
            stays.longest = (end - first, episode, first)


def _is_clipped(stays: _Stays, frames: int) -> bool:
    return stays.frames >= FRAMES_SHARE * frames and stays.hard >= max(RUNS, stays.runs / 3)


def _fault(signal: Signal, place: int, bound: float, word: str, stays: _Stays, fps: int) -> Fault:
    share = stays.frames / len(signal.values)
    what = (
        f"'{signal.names[place]}' of {signal.key} stands at its {word} value {bound:.4g} in "
        f"{share:.1%} of the frames, in {stays.runs} stays that it enters or leaves at speed"
    )
    length, episode, first = stays.longest
    assert episode is not None
    values = signal.values[episode.start : episode.end, place]
    title = f"{signal.names[place]} of {signal.key}, episode {episode.index}"
    shaded = (first / fps, (first + length - 1) / fps)
    word = "state" if signal.key.startswith("observation") else "action"
    curve = Curve(title, "s", np.arange(len(values)) / fps, ((word, values),), shaded)
    return Fault(CLIPPED, what, curves=(curve,))
