"""Errors that a user can act on: the wrong value, the rule that it breaks, and a remedy."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class KataError(Exception):
    """An error of one clear message. The command line prints it without a traceback, and exits with
    2.

    Args:
        what: the fault with its value (a path, a name, a number).
        rule: the rule that is broken.
        remedy: what the user can do.
    """

    def __init__(self, what: str, *, rule: str = "", remedy: str = "") -> None:
        self.what = what
        self.rule = rule
        self.remedy = remedy
        super().__init__(what, rule, remedy)

    def __str__(self) -> str:
        lines = [self.what]
        if self.rule:
            lines.append(f"  rule:   {self.rule}")
        if self.remedy:
            lines.append(f"  remedy: {self.remedy}")
        return "\n".join(lines)


class ConfigError(KataError):
    """A flag, a config file or a combination of options is wrong."""


class DataError(KataError):
    """A dataset is absent, damaged, or does not have what is requested."""


class FrameError(DataError):
    """One frame of a camera cannot be read; the rest of the dataset may be sound.

    Args:
        what: see KataError.
        rule: see KataError.
        remedy: see KataError.
        camera: the dataset's key.
        file: path of the video or table.
        frame: number in the file: presentation order of a video, row of a table.
        row: row in the dataset, as in `Dataset.column`.
    """

    def __init__(
        self, what: str, *, rule: str, remedy: str, camera: str, file: str, frame: int, row: int
    ) -> None:
        super().__init__(what, rule=rule, remedy=remedy)
        self.camera = camera
        self.file = file
        self.frame = frame
        self.row = row


class PolicyError(KataError):
    """A policy does not fit the data, its own options, or its weights."""


class CheckpointError(KataError):
    """A checkpoint or a run folder cannot be written, read or continued."""


class DivergedError(KataError):
    """Training cannot continue: the loss or gradient of too many steps in a row is not finite."""


class RankError(KataError):
    """Another rank of the run has failed or is gone, or the ranks cannot work together."""


def nearest(name: str, names: Iterable[str]) -> str:
    """Return the known name closest to `name`, or an empty string if none is close."""
    found = difflib.get_close_matches(name, list(names), n=1, cutoff=0.5)
    return found[0] if found else ""


def closest(name: str, names: Iterable[str], count: int = 3) -> list[str]:
    """Return the known dotted names closest to `name`, the closest first.

    Args:
        name: a misspelled name, with all of its groups, some or none.
        names: the known ones; their last part is compared as well.
        count: the most that are returned.
    """
    last = name.rpartition(".")[2]
    scores: dict[str, float] = {}
    for known in names:
        whole = difflib.SequenceMatcher(None, name, known).ratio()
        end = difflib.SequenceMatcher(None, last, known.rpartition(".")[2]).ratio()
        scores[known] = max(whole, 0.95 * end)
    best = max(scores.values(), default=0.0)
    near = [known for known in scores if scores[known] >= max(0.6, 0.9 * best)]
    return sorted(near, key=lambda known: -scores[known])[:count]


def did_you_mean(name: str, names: Iterable[str]) -> str:
    """Return a remedy for an unknown name: the nearest known one, or the list of all."""
    known = sorted(names)
    close = nearest(name, known)
    return f"did you mean '{close}'?" if close else f"one of: {', '.join(known)}"
