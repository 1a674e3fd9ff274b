"""Errors that a user can act on: the wrong value, the rule that it breaks, and a remedy."""

from __future__ import annotations

import difflib
import errno
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


_MAY = (
    "you may read what is read, and write where the result goes",
    "change its owner or permissions, or name another place",
)
_ROOM = ("the disk has room", "make room, or name a folder on another disk")
_REFUSALS = {
    errno.EACCES: _MAY,
    errno.EPERM: _MAY,
    errno.EROFS: _MAY,
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.ENAMETOOLONG: ("names are at most as long as the file system takes", "name it shorter"),
}
_OTHER_REFUSAL = (
    "the file system does what is asked of it",
    "look at that path and its disk; --debug shows where it was used",
)


def refused_by_system(error: OSError) -> KataError | None:
    """Return what an error of the operating system means to the user; None where it names no file,
    as an error of the program itself, and is none of a full disk.
    """
    is_full = _REFUSALS.get(error.errno or 0) is _ROOM  # a write names no file
    if not error.filename and not is_full:
        return None
    rule, remedy = _REFUSALS.get(error.errno or 0, _OTHER_REFUSAL)
    name = error.filename or "a file that is written"
    return KataError(f"{name}: {error.strerror}", rule=rule, remedy=remedy)


def with_cause(error: KataError) -> KataError:
    """Return the error; where a dataset could not be read for want of permission, with a remedy
    for that: no other copy of the file would help.
    """
    if not isinstance(error, DataError) or not isinstance(error.__cause__, PermissionError):
        return error
    rule, remedy = _MAY
    return KataError(error.what, rule=rule, remedy=remedy)


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
