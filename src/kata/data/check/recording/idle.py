"""Idle heads and tails: time before the first and after the last movement of an episode.

A policy that learns from them stands still: OpenVLA (Kim et al., 2024) reports policies that freeze
after training on episodes that begin with idle actions, and openpi leaves idle frames of DROID out.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kata.data.check.faults import Curve, Fault, FrameRange, RecordingFaults, Rule, Shot
from kata.data.check.recording.signals import EpisodeSpan, Floats, Signal

IDLE_S = 1.5
"""People pause up to 1 s before they start, and rest on the target for as long."""
MARGIN_S = 0.25
"""Idle time that stays, so that a policy learns to begin and to end."""
MOVED_SHARE = 0.02
"""Distance from the pose at rest, of a joint's span, that is a movement."""

_NOISES = 4.0  # standard deviations of noise that are no movement

IDLE = Rule(
    "idle head or tail",
    f"an episode begins and ends with less than {IDLE_S:g} s of standing still",
    "leave these frames out: --dataset.keep_ranges=<the file of --write_ranges>",
)


def find_idle(
    signals: list[Signal], episodes: list[EpisodeSpan], fps: int, cameras: list[str]
) -> RecordingFaults:
    """Find the episodes in which neither state nor action moves for a while at either end."""
    found = RecordingFaults()
    signals = [signal for signal in signals if signal.moves.any()]
    if not signals:
        found.add(IDLE, "not looked at: nothing moves", [])
        return found
    faults: list[Fault] = []
    for episode in episodes:
        head, tail = _rests(signals, episode)
        if head >= IDLE_S * fps:
            end = max(0, head - round(MARGIN_S * fps))
            faults.append(_fault(signals, episode, (0, end), head, fps, cameras))
        if tail >= IDLE_S * fps and head < episode.length:
            first = min(episode.length, episode.length - tail + round(MARGIN_S * fps))
            faults.append(_fault(signals, episode, (first, episode.length), tail, fps, cameras))
    found.add(IDLE, f"{len(episodes)} episodes, every frame", faults)
    return found


def _rests(signals: list[Signal], episode: EpisodeSpan) -> tuple[int, int]:
    """Return the frames at rest at the beginning, and at the end."""
    head = tail = episode.length
    for signal in signals:
        part = episode.of(signal)[:, signal.moves]
        limit = np.maximum(MOVED_SHARE * signal.span, _NOISES * signal.noise)[signal.moves]
        head = min(head, _first(_away(part, part[0], limit)))
        tail = min(tail, _first(_away(part, part[-1], limit)[::-1]))
    return head, tail


def _away(part: Floats, pose: Floats, limit: Floats) -> NDArray[np.bool_]:
    """Return (T,) whether some joint is further than its limit from a pose."""
    return np.any(np.abs(part - pose) > limit, axis=1)


def _first(flags: NDArray[np.bool_]) -> int:
    return int(flags.argmax()) if flags.any() else len(flags)


def _fault(
    signals: list[Signal],
    episode: EpisodeSpan,
    cut: tuple[int, int],
    rest: int,
    fps: int,
    cameras: list[str],
) -> Fault:
    first, end = cut
    where = "begins" if first == 0 else "ends"
    whole = rest == episode.length
    what = (
        f"episode {episode.index} stands still throughout ({rest / fps:.1f} s)"
        if whole
        else f"episode {episode.index} {where} with {rest / fps:.1f} s ({rest} frames) at rest"
    )
    if whole:
        end = episode.length
    curves = tuple(
        _curve(signal, episode, (first / fps, max(first, end - 1) / fps), fps) for signal in signals
    )
    rows = np.unique(np.linspace(first, max(first, end - 1), 3).round().astype(int)).tolist()
    shots: list[Shot] = []
    for camera in cameras[:1]:
        shots += [Shot(episode.start + row, camera, f"{row / fps:.1f} s") for row in rows]
    return Fault(
        IDLE, what, (episode.index,), (FrameRange(episode.index, first, end),), curves, tuple(shots)
    )


def _curve(signal: Signal, episode: EpisodeSpan, shaded: tuple[float, float], fps: int) -> Curve:
    """Draw the joint that moves most in this episode."""
    part = episode.of(signal)
    share = np.where(signal.moves, np.ptp(part, axis=0) / np.maximum(signal.span, 1e-300), -1.0)
    place = int(share.argmax())
    word = "state" if signal.key.startswith("observation") else "action"
    title = f"{signal.names[place]} of {signal.key}, episode {episode.index}"
    return Curve(title, "s", np.arange(len(part)) / fps, ((word, part[:, place]),), shaded)
