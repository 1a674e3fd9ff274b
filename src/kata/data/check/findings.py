"""What a check finds: single problems, collected from any thread, told grouped."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from kata.data.check.faults import RecordingFaults
from kata.data.format.episode_table import EpisodeTable
from kata.data.format.text import REPAIR
from kata.errors import DataError

_TRIES = 64  # readings of one file that are spent on telling its good episodes from its bad ones
_NAMED = 20  # episodes named in a line


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong. error: training is refused or wrong with it; else it is only worth
    knowing.

    kind: a word for what was checked. episodes: those that have it, where it belongs to some.
    """

    kind: str
    error: bool
    what: str
    rule: str
    remedy: str
    episodes: tuple[int, ...] = ()


@dataclass
class Findings:
    """The problems so far, and what was looked at."""

    problems: list[Problem] = field(default_factory=list)
    seen: dict[str, int] = field(default_factory=dict)

    def error(
        self, kind: str, what: str, *, rule: str, remedy: str, episodes: Iterable[int] = ()
    ) -> None:
        """Note something with which training is refused or wrong."""
        self.problems.append(Problem(kind, True, what, rule, remedy, tuple(map(int, episodes))))

    def warning(
        self, kind: str, what: str, *, rule: str, remedy: str, episodes: Iterable[int] = ()
    ) -> None:
        """Note something worth knowing."""
        self.problems.append(Problem(kind, False, what, rule, remedy, tuple(map(int, episodes))))

    def faults(self, recording: RecordingFaults) -> None:
        """Note faults of recording: training runs with them, and the policy learns them."""
        for fault in recording.faults:
            rule = fault.rule
            self.warning(
                rule.kind, fault.what, rule=rule.rule, remedy=rule.remedy, episodes=fault.episodes
            )

    def caught(self, kind: str, error: DataError, episodes: Iterable[int] = ()) -> None:
        """Note what opening or reading the dataset would raise."""
        self.error(kind, error.what, rule=error.rule, remedy=error.remedy, episodes=episodes)

    def attempt(self, kind: str, part: EpisodeTable, act: Callable[[EpisodeTable], None]) -> bool:
        """Do something with the episodes of one file, and note which of them fail; True when all
        is well.
        """
        failed = _failures(part, act, [_TRIES])
        for error, episodes in failed:
            self.caught(kind, error, episodes)
        return not failed

    def count(self, name: str, number: int) -> None:
        """Add to what was looked at."""
        self.seen[name] = self.seen.get(name, 0) + number


def _failures(
    part: EpisodeTable, act: Callable[[EpisodeTable], None], tries: list[int]
) -> list[tuple[DataError, list[int]]]:
    """The errors of `act`, each with the smallest set of episodes that has it, found by halving."""
    error = _error(part, act, tries)
    if error is None:
        return []
    count = len(part.index)
    if count == 1 or tries[0] <= 0:
        return [(error, part.index.tolist())]
    halves = [part.take(np.arange(count // 2)), part.take(np.arange(count // 2, count))]
    errors = [_error(half, act, tries) for half in halves]
    if all(each is not None and each.what == error.what for each in errors):
        return [(error, part.index.tolist())]  # the file's fault, not an episode's
    found: list[tuple[DataError, list[int]]] = []
    for half, each in zip(halves, errors, strict=True):
        if each is not None:
            found += _failures(half, act, tries)
    return found or [(error, part.index.tolist())]


def _error(
    part: EpisodeTable, act: Callable[[EpisodeTable], None], tries: list[int]
) -> DataError | None:
    tries[0] -= 1
    try:
        act(part)
    except DataError as error:
        return error
    return None


def _place(problem: Problem) -> tuple[int, str]:
    return (problem.episodes[0] if problem.episodes else -1, problem.what)


def numbers_text(numbers: Sequence[int]) -> str:
    """[0, 1, 2, 7] -> '0-2, 7', cut after some."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    words = [str(a) if a == b else f"{a}-{b}" for a, b in runs]
    return ", ".join(words[:_NAMED]) + (", ..." if len(words) > _NAMED else "")


def episodes_text(numbers: Sequence[int]) -> str:
    """[3] -> 'episode 3', [0, 1, 2] -> 'episodes 0-2'."""
    return f"episode{'s' * (len(set(numbers)) > 1)} {numbers_text(numbers)}"


@dataclass(frozen=True)
class Report:
    """The outcome of a check."""

    name: str
    problems: tuple[Problem, ...]
    seen: dict[str, int]
    root: str = ""
    recording: RecordingFaults | None = None

    @property
    def errors(self) -> int:
        """How many errors there are."""
        return sum(problem.error for problem in self.problems)

    def groups(self) -> list[list[Problem]]:
        """Problems of one kind and rule together, errors first, each group by episode."""
        found: dict[tuple[bool, str, str], list[Problem]] = {}
        for problem in self.problems:
            found.setdefault((not problem.error, problem.kind, problem.rule), []).append(problem)
        # Threads finish in any order; a report reads the same every time.
        return [sorted(found[key], key=_place) for key in sorted(found)]

    def bad_episodes(self) -> list[int]:
        """Episodes that an error belongs to, or of which faults of recording leave nothing."""
        bad = set(self.recording.spoiled()) if self.recording else set[int]()
        for problem in self.problems:
            bad.update(problem.episodes if problem.error else ())
        return sorted(bad)

    def text(self, examples: int) -> str:
        """The report for a terminal, with so many examples of each group."""
        lines: list[str] = []
        for group in self.groups():
            first = group[0]
            level = "ERROR" if first.error else "warning"
            lines.append(
                f"{level}: {first.kind}" + (f" ({len(group)} times)" if len(group) > 1 else "")
            )
            lines += [f"  {problem.what}" for problem in group[:examples]]
            lines += [f"  ... and {len(group) - examples} more"] if len(group) > examples else []
            episodes = [episode for problem in group for episode in problem.episodes]
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
        if any(REPAIR in problem.remedy for problem in self.problems):
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
        """The report for JSON."""
        problems = [
            {
                "kind": each.kind,
                "level": "error" if each.error else "warning",
                "what": each.what,
                "rule": each.rule,
                "remedy": each.remedy,
                "episodes": list(each.episodes),
            }
            for group in self.groups()
            for each in group
        ]
        counts = {"errors": self.errors, "warnings": len(self.problems) - self.errors}
        return {
            "name": self.name,
            **counts,
            "looked_at": self.seen,
            "bad_episodes": self.bad_episodes(),
            "problems": problems,
            **({} if self.recording is None else {"recording": self.recording.plain()}),
        }
