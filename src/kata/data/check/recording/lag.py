"""Time between action and state: cross-correlation of their velocities, per dimension and episode.

The lag with the highest cross-correlation is the delay (Knapp and Carter, 1976).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kata.data.arrays import Int64
from kata.data.check.faults import Curve, Fault, FrameRange, RecordingFaults, Rule
from kata.data.check.recording.signals import EpisodeSpan, Floats, Signal

LATE_S = 0.5
"""Slow hands trail by up to 0.4 s in good recordings; a policy that sees older states is blind."""
EARLY_S = 0.04
"""A state cannot come before the action that causes it; timestamps jitter by less than this."""
APART_S = 0.1
"""Distance from the other episodes' lag, and at least two frames."""
CORRELATION = 0.5
"""Peak below which a dimension says nothing about time."""

_SEARCH_S = 1.5
_STRIDE_S = 0.1  # velocities are differences over this time, which noise disturbs less
_FAST = 0.98  # of the frames are at most as fast as a jump counts
_LEAST_S = 3.0
_LEAST_FRAMES = 20
_EPISODES = 4  # fewer have no usual lag
_EPISODES_LEAST = 3  # one or two may agree by chance
_FORM_EPISODES = 20  # episodes that decide whether actions are positions or velocities
_AGREE = 2 / 3  # share of the episodes that must show a joint's lag

STEADY = Rule(
    "lag",
    f"the state follows the action by 0 to {LATE_S:g} s in every joint",
    "check the delay between commands and encoders, and shift one of the two columns",
)
ALIKE = Rule(
    "lag of episodes",
    f"the lag of an episode is that of the others, within {APART_S:g} s or two frames",
    "leave the episode out, or shift its state against its action",
)


@dataclass(frozen=True)
class _Lags:
    """Lags of the measured episodes over paired dimensions.

    lag: (E, D) frames by which the state follows. peak: (E, D) its correlation. used: (D,) bool.
    """

    state: Signal
    action: Signal
    pairs: list[tuple[int, int]]
    fps: int
    cumulate: bool
    episodes: list[EpisodeSpan]
    lag: Int64
    peak: Floats

    @property
    def used(self) -> NDArray[np.bool_]:
        """Return which dimensions say something about time."""
        return np.median(self.peak, axis=0) >= CORRELATION

    @property
    def usual(self) -> Floats:
        """Return the median lag of each dimension over the episodes, in frames."""
        return np.median(self.lag, axis=0)


def find_lags(
    state: Signal | None, action: Signal | None, episodes: list[EpisodeSpan], fps: int
) -> RecordingFaults:
    """Compare the time of the state's velocity with that of the action's."""
    found = RecordingFaults()
    measured = _measure(state, action, episodes, fps)
    if isinstance(measured, str):
        found.add(STEADY, measured, [])
        found.add(ALIKE, measured, [])
        return found
    looked = f"{int(measured.used.sum())} joints in {len(measured.episodes)} episodes"
    found.add(STEADY, looked, _whole(measured))
    if len(measured.episodes) < _EPISODES:
        found.add(ALIKE, f"not looked at: fewer than {_EPISODES} episodes of {_LEAST_S:g} s", [])
    else:
        found.add(ALIKE, looked, _apart(measured))
    return found


def _measure(
    state: Signal | None, action: Signal | None, episodes: list[EpisodeSpan], fps: int
) -> _Lags | str:
    """Return the lags, or why there are none."""
    if state is None or action is None:
        return "not looked at: the dataset lacks state or action"
    pairs = _paired(state, action)
    long = [each for each in episodes if each.length >= max(_LEAST_S * fps, _LEAST_FRAMES)]
    if not pairs:
        return "not looked at: state and action have no joint in common that moves"
    if len(long) < _EPISODES_LEAST:
        return f"not looked at: fewer than {_EPISODES_LEAST} episodes last {_LEAST_S:g} s"
    # Actions may be positions or velocities; their sum over time is then the position.
    form = max((False, True), key=lambda sums: _strength(state, action, pairs, sums, long, fps))
    lags = _Lags(
        state, action, pairs, fps, form, long, *_peaks(state, action, pairs, form, long, fps)
    )
    return lags if lags.used.any() else "not looked at: no joint of the state follows the action"


def _paired(state: Signal, action: Signal) -> list[tuple[int, int]]:
    """Pair dimensions by name where both have the same names, else by place."""
    place = {name: number for number, name in enumerate(action.names)}
    if set(state.names) == set(place):
        pairs = [(number, place[name]) for number, name in enumerate(state.names)]
    elif len(state.names) == len(action.names):
        pairs = [(number, number) for number in range(len(state.names))]
    else:
        return []
    return [(s, a) for s, a in pairs if state.moves[s] and action.span[a] > 0]


def _strength(
    state: Signal,
    action: Signal,
    pairs: list[tuple[int, int]],
    cumulate: bool,
    episodes: list[EpisodeSpan],
    fps: int,
) -> float:
    some = episodes[:: max(1, len(episodes) // _FORM_EPISODES)]
    return float(np.median(_peaks(state, action, pairs, cumulate, some, fps)[1]))


def _peaks(
    state: Signal,
    action: Signal,
    pairs: list[tuple[int, int]],
    cumulate: bool,
    episodes: list[EpisodeSpan],
    fps: int,
) -> tuple[Int64, Floats]:
    """Return lag (E, D) and peak (E, D); a peak at the edge of the search is none."""
    lags = np.zeros((len(episodes), len(pairs)), dtype=np.int64)
    peaks = np.zeros((len(episodes), len(pairs)))
    for row, episode in enumerate(episodes):
        curve = _correlation(state, action, pairs, cumulate, episode, fps)
        reach = len(curve) // 2
        best = curve.argmax(axis=0)
        inside = (best > 0) & (best < 2 * reach)
        lags[row] = best - reach
        peaks[row] = np.where(inside, curve.max(axis=0), 0.0)
    return lags, peaks


def _correlation(
    state: Signal,
    action: Signal,
    pairs: list[tuple[int, int]],
    cumulate: bool,
    episode: EpisodeSpan,
    fps: int,
) -> Floats:
    """Return the cross-correlation of velocities at lags -reach to reach, (2 reach + 1, D)."""
    places = np.array(pairs)
    position = action.values[episode.start : episode.end, places[:, 1]].astype(np.float64)
    if cumulate:
        position = np.cumsum(position - position.mean(axis=0), axis=0)
    follows = state.values[episode.start : episode.end, places[:, 0]].astype(np.float64)
    stride = max(1, round(_STRIDE_S * fps))
    lead = _velocity(position, stride)
    trail = _velocity(follows, stride)
    reach = min(round(_SEARCH_S * fps), len(lead) // 3)
    # By Fourier transform: a product of spectra is a correlation at every lag at once.
    size = 1 << (len(lead) + reach).bit_length()
    spectrum = np.fft.rfft(lead, size, axis=0).conj() * np.fft.rfft(trail, size, axis=0)
    circular = np.fft.irfft(spectrum, size, axis=0)
    energy = np.sqrt((lead**2).sum(axis=0) * (trail**2).sum(axis=0))
    lags = np.concatenate([circular[-reach:], circular[: reach + 1]])
    return lags / np.where(energy > 0, energy, np.inf)


def _velocity(position: Floats, stride: int) -> Floats:
    """Return (T - stride, D) differences; jumps, such as a teleport, count as fast motion only."""
    found = position[stride:] - position[:-stride]
    fast = np.quantile(np.abs(found), _FAST, axis=0)
    return np.clip(found, -fast, fast)


def _whole(lags: _Lags) -> list[Fault]:
    """Find joints whose state is too late, or early, in most episodes."""
    slack = max(2.0, APART_S * lags.fps)
    agree = (np.abs(lags.lag - lags.usual) <= slack).mean(axis=0) >= _AGREE
    late = lags.used & agree & (lags.usual > LATE_S * lags.fps)
    early = lags.used & agree & (lags.usual < -max(1.0, EARLY_S * lags.fps) + 0.5)
    faults: list[Fault] = []
    for places, word in ((np.flatnonzero(late), "follows"), (np.flatnonzero(early), "precedes")):
        if not places.size:
            continue
        frames = float(np.median(np.abs(lags.usual[places])))
        names = [lags.state.names[lags.pairs[place][0]] for place in places.tolist()]
        shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
        what = (
            f"the state {word} the action by {frames / lags.fps:.2f} s ({frames:g} frames) "
            f"in {len(names)} of {int(lags.used.sum())} joints: {shown}"
        )
        worst = int(places[lags.peak.mean(axis=0)[places].argmax()])
        faults.append(Fault(STEADY, what, curves=_curves(lags, 0, worst)))
    return faults


def _apart(lags: _Lags) -> list[Fault]:
    """Find episodes whose lag is not that of the others."""
    limit = max(2.0, APART_S * lags.fps)
    faults: list[Fault] = []
    for row, episode in enumerate(lags.episodes):
        sure = lags.used & (lags.peak[row] >= CORRELATION)
        if not sure.any():
            continue
        off = float(np.median((lags.lag[row] - lags.usual)[sure]))
        if abs(off) < limit:
            continue
        usual = float(np.median(lags.usual[sure]))
        what = (
            f"episode {episode.index}: the state follows the action by "
            f"{(usual + off) / lags.fps:.2f} s, in the other episodes by {usual / lags.fps:.2f} s"
        )
        worst = int(np.where(sure, lags.peak[row], -1.0).argmax())
        faults.append(
            Fault(
                ALIKE,
                what,
                (episode.index,),
                (FrameRange(episode.index, 0, episode.length),),
                _curves(lags, row, worst),
            )
        )
    return faults


def _curves(lags: _Lags, row: int, place: int) -> tuple[Curve, ...]:
    """Show one joint over time, and its correlation over the lag."""
    episode = lags.episodes[row]
    own, its = lags.pairs[place]
    time_s = np.arange(episode.length) / lags.fps
    lines = (
        ("state", lags.state.values[episode.start : episode.end, own]),
        ("action", lags.action.values[episode.start : episode.end, its]),
    )
    curve = _correlation(lags.state, lags.action, [(own, its)], lags.cumulate, episode, lags.fps)
    reach = len(curve) // 2
    lag_s = np.arange(-reach, reach + 1) / lags.fps
    title = f"{lags.state.names[own]}, episode {episode.index}"
    return (
        Curve(title, "s", time_s, lines),
        Curve("correlation over the state's lag", "s", lag_s, (("correlation", curve[:, 0]),)),
    )
