"""Faults of recording: the rules by name, one finding of a rule, and the evidence that shows it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Rule(NamedTuple):
    """One rule: its kind, the sentence that it enforces, and the remedy where it is broken."""

    kind: str
    rule: str
    remedy: str


class FrameRange(NamedTuple):
    """Frames [first, end) of an episode, by LeRobot's episode_index."""

    episode: int
    first: int
    end: int


@dataclass(frozen=True)
class Curve:
    """Lines over a common x axis, with the faulty part of it shaded.

    Attributes:
        title: the caption, for example the name of a joint.
        unit: of the x axis.
        x: (N,) values along it.
        lines: (word, values (N,)) for each line.
        shaded: the faulty part of the x axis, or None.
    """

    title: str
    unit: str
    x: NDArray[Any]
    lines: tuple[tuple[str, NDArray[Any]], ...]
    shaded: tuple[float, float] | None = None


class Shot(NamedTuple):
    """One frame to show: its row in the dataset, its camera, and its caption."""

    row: int
    camera: str
    caption: str


@dataclass(frozen=True)
class Fault:
    """One finding of a rule.

    Attributes:
        rule: the rule that is broken.
        what: one sentence with the measured value.
        episodes: the episodes that have the fault, LeRobot's episode_index.
        cuts: frames that training should leave out; empty where the whole recording is affected.
        curves: lines that show the fault.
        shots: frames that show the fault.
    """

    rule: Rule
    what: str
    episodes: tuple[int, ...] = ()
    cuts: tuple[FrameRange, ...] = ()
    curves: tuple[Curve, ...] = ()
    shots: tuple[Shot, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return the fault for JSON; `cuts` are [episode, first frame, end]."""
        return {
            "kind": self.rule.kind,
            "what": self.what,
            "episodes": list(self.episodes),
            "cuts": [list(cut) for cut in self.cuts],
        }


@dataclass
class RecordingFaults:
    """The findings of all rules.

    Attributes:
        faults: the findings, rule by rule.
        looked: per rule kind, what it looked at, or why it could not.
        lengths: frames of each episode, by episode index.
        fps: frames per second.
    """

    faults: list[Fault] = field(default_factory=list)
    looked: dict[str, str] = field(default_factory=dict)
    lengths: dict[int, int] = field(default_factory=dict)
    fps: int = 1

    def add(self, rule: Rule, looked: str, faults: list[Fault]) -> None:
        """Take the outcome of one rule."""
        self.looked[rule.kind] = looked
        self.faults += faults

    def take(self, other: RecordingFaults) -> None:
        """Take the outcome of other rules."""
        self.looked |= other.looked
        self.faults += other.faults

    def plain(self) -> dict[str, Any]:
        """Return the faults for JSON, with what is left to train on."""
        return {
            "looked_at": self.looked,
            "faults": [fault.plain() for fault in self.faults],
            "keep_ranges": self.keep_ranges(),
        }

    def keep_ranges(self) -> dict[str, list[list[int]]]:
        """Return what remains of each episode that a fault cuts, as ranges [first, end).

        Ranges shorter than a second are left out: a policy learns nothing from them.
        """
        kept: dict[int, NDArray[np.bool_]] = {}
        for fault in self.faults:
            for cut in fault.cuts:
                good = kept.setdefault(cut.episode, np.ones(self.lengths[cut.episode], dtype=bool))
                good[cut.first : cut.end] = False
        return {str(episode): _ranges(kept[episode], self.fps) for episode in sorted(kept)}

    def spoiled(self) -> list[int]:
        """Return the episodes of which no range remains."""
        return [int(episode) for episode, ranges in self.keep_ranges().items() if not ranges]


def _ranges(good: NDArray[np.bool_], least: int) -> list[list[int]]:
    edges = np.flatnonzero(np.diff(good, prepend=False, append=False))
    pairs = zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
    return [[first, end] for first, end in pairs if end - first >= least]
