"""Findings of a check: single problems, collected from any thread and reported in groups."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np

from kata.config.dataset import is_address
from kata.data.check.faults import RecordingFaults
from kata.data.format.episode_table import EpisodeTable
from kata.data.format.text import REPAIR
from kata.errors import DataError, refused_by_system, with_cause

Refusal: TypeAlias = DataError | PermissionError
"""An error that belongs to a file: the check records it, and continues with the others."""

_TRIES = 64  # attempts to read one file, to separate its good episodes from its bad ones
_NAMED = 20  # episodes named in a line


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with a dataset.

    Attributes:
        kind: a word for what was checked.
        error: True if training is refused or wrong with it, False if it is only worth knowing.
        what: one sentence with the values.
        rule: the rule that is broken.
        remedy: what the user can do.
        episodes: the episodes that have it, if it belongs to some.
    """

    kind: str
    error: bool
    what: str
    rule: str
    remedy: str
    episodes: tuple[int, ...] = ()

    def plain(self) -> dict[str, Any]:
        """Return the problem for JSON."""
        return {
            "kind": self.kind,
            "level": "error" if self.error else "warning",
            "what": self.what,
            "rule": self.rule,
            "remedy": self.remedy,
            "episodes": list(self.episodes),
        }


@dataclass
class Findings:
    """The problems so far, and counts of what was looked at."""

    problems: list[Problem] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)

    def error(
        self, kind: str, what: str, *, rule: str, remedy: str, episodes: Iterable[int] = ()
    ) -> None:
        """Record a problem with which training is refused or wrong."""
        self.problems.append(Problem(kind, True, what, rule, remedy, tuple(map(int, episodes))))

    def warning(
        self, kind: str, what: str, *, rule: str, remedy: str, episodes: Iterable[int] = ()
    ) -> None:
        """Record a problem that is worth knowing."""
        self.problems.append(Problem(kind, False, what, rule, remedy, tuple(map(int, episodes))))

    def faults(self, recording: RecordingFaults) -> None:
        """Record faults of recording: training runs with them, and the policy learns them."""
        for fault in recording.faults:
            rule = fault.rule
            self.warning(
                rule.kind, fault.what, rule=rule.rule, remedy=rule.remedy, episodes=fault.episodes
            )

    def caught(self, kind: str, error: Refusal, episodes: Iterable[int] = ()) -> None:
        """Record an error that opening or reading the dataset would raise."""
        if isinstance(error, PermissionError):
            said = refused_by_system(error)
            if said is None:
                raise error
        else:
            said = with_cause(error)
        self.error(kind, said.what, rule=said.rule, remedy=said.remedy, episodes=episodes)

    def attempt(self, kind: str, part: EpisodeTable, act: Callable[[EpisodeTable], None]) -> bool:
        """Call `act` with the episodes of one file, and record which of them fail; return True if
        none does.
        """
        failed = _failures(part, act, [_TRIES])
        for error, episodes in failed:
            self.caught(kind, error, episodes)
        return not failed

    def count(self, name: str, number: int) -> None:
        """Add to the count of something that was looked at."""
        self.seen[name] = self.seen.get(name, 0) + number


def _failures(
    part: EpisodeTable, act: Callable[[EpisodeTable], None], tries: list[int]
) -> list[tuple[Refusal, list[int]]]:
    """Return the errors of `act`, each with the smallest set of episodes that has it.

    The sets are found by bisection, with at most `tries` calls.
    """
    error = _error(part, act, tries)
    if error is None:
        return []
    count = len(part.index)
    if count == 1 or tries[0] <= 0:
        return [(error, part.index.tolist())]
    halves = [part.take(np.arange(count // 2)), part.take(np.arange(count // 2, count))]
    errors = [_error(half, act, tries) for half in halves]
    if all(each is not None and str(each) == str(error) for each in errors):
        return [(error, part.index.tolist())]  # a fault of the file, not of an episode
    found: list[tuple[Refusal, list[int]]] = []
    for half, each in zip(halves, errors, strict=True):
        if each is not None:
            found += _failures(half, act, tries)
    return found or [(error, part.index.tolist())]


def _error(
    part: EpisodeTable, act: Callable[[EpisodeTable], None], tries: list[int]
) -> Refusal | None:
    tries[0] -= 1
    try:
        act(part)
    except (DataError, PermissionError) as error:
        return error
    return None


def _place(problem: Problem) -> tuple[int, str]:
    return (problem.episodes[0] if problem.episodes else -1, problem.what)


def numbers_text(numbers: Sequence[int]) -> str:
    """Return numbers as text: [0, 1, 2, 7] -> '0-2, 7', cut after some."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    words = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    return ", ".join(words[:_NAMED]) + (", ..." if len(words) > _NAMED else "")


def episodes_text(numbers: Sequence[int]) -> str:
    """Return episodes as text: [3] -> 'episode 3', [0, 1, 2] -> 'episodes 0-2'."""
    return f"episode{'s' * (len(set(numbers)) > 1)} {numbers_text(numbers)}"


@dataclass(frozen=True)
class Report:
    """The outcome of a check.

    Attributes:
        name: of the dataset.
        problems: all of them, in any order.
        seen: counts of what was looked at, by name.
        root: the dataset's folder.
        recording: faults of recording, if they were sought.
    """

    name: str
    problems: tuple[Problem, ...]
    seen: dict[str, int]
    root: str = ""
    recording: RecordingFaults | None = None

    @property
    def errors(self) -> int:
        """Return the number of errors."""
        return sum(problem.error for problem in self.problems)

    def groups(self) -> list[list[Problem]]:
        """Return the problems of one kind and rule together, errors first, each group by
        episode.
        """
        found: dict[tuple[bool, str, str], list[Problem]] = {}
        for problem in self.problems:
            found.setdefault((not problem.error, problem.kind, problem.rule), []).append(problem)
        # Threads finish in any order; a report reads the same every time.
        return [sorted(found[key], key=_place) for key in sorted(found)]

    def bad_episodes(self) -> list[int]:
        """Return the episodes that an error belongs to, or of which faults of recording leave
        nothing.
        """
        bad = set(self.recording.spoiled()) if self.recording else set[int]()
        for problem in self.problems:
            bad.update(problem.episodes if problem.error else ())
        return sorted(bad)

    def text(self, examples: int) -> str:
        """Return the report for a terminal, with at most `examples` problems of each group."""
        lines: list[str] = []
        for group in self.groups():
            first = group[0]
            level = "ERROR" if first.error else "warning"
            lines.append(
                f"{level}: {first.kind}" + (f" ({len(group)} times)" if len(group) > 1 else "")
            )
            lines += [f"  {problem.what}" for problem in group[:examples]]
            lines += [f"  ... and {len(group) - examples} more"] if len(group) > examples else []
            episodes: list[int] = []
            for problem in group:
                episodes += problem.episodes
            if len(set(episodes)) > 1:
                lines.append(f"  episodes: {numbers_text(episodes)}")
            lines += [f"  rule:   {first.rule}", f"  remedy: {first.remedy}", ""]
        return "\n".join([*lines, *self._summary()])

    def _summary(self) -> list[str]:
        warnings = len(self.problems) - self.errors
        looked = ", ".join(f"{name} {number:,}" for name, number in self.seen.items())
        said = (
            "no problems" if not self.problems else f"errors: {self.errors}, warnings: {warnings}"
        )
        lines = [f"{self.name}: {said}", f"looked at: {looked}", *self._rules()]
        bad = self.bad_episodes()
        if 0 < len(bad) <= _NAMED and len(bad) < self.seen.get("episodes", 0):
            lines.append(
                f"to train without the {len(bad)} bad: --dataset.exclude_episodes={bad}".replace(
                    ", ", ","
                )
            )
        can_repair = any(REPAIR in problem.remedy for problem in self.problems)
        if can_repair and not is_address(self.root):
            lines.append(
                f"to correct what has one answer: kata data repair {self.root} --out=<folder>"
            )
        return lines

    def _rules(self) -> list[str]:
        """Say what the rules of recording looked at, rules with the same words together."""
        if self.recording is None:
            return []
        kinds: dict[str, list[str]] = {}
        for kind, looked in self.recording.looked.items():
            kinds.setdefault(looked, []).append(kind)
        return [f"  {', '.join(names)}: {looked}" for looked, names in kinds.items()]

    def plain(self) -> dict[str, Any]:
        """Return the report for JSON."""
        problems: list[dict[str, Any]] = []
        for group in self.groups():
            problems += [each.plain() for each in group]
        counts = {"errors": self.errors, "warnings": len(self.problems) - self.errors}
        return {
            "name": self.name,
            **counts,
            "looked_at": self.seen,
            "bad_episodes": self.bad_episodes(),
            "problems": problems,
            **({} if self.recording is None else {"recording": self.recording.plain()}),
        }
