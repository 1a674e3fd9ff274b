"""The copy that a repair works on: it shares its files with the dataset until they change."""

from __future__ import annotations

import errno
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kata.data.format.source import refuse_outside

_UNLINKABLE = (errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOTSUP)
"""The two folders lie on two disks, or the disk knows no hard links."""


Counting = Callable[[str], AbstractContextManager[Callable[[int, int], None]]]


@dataclass(frozen=True)
class Change:
    """One thing that a repair has changed. kind: a word for what it is about."""

    kind: str
    what: str


@dataclass(frozen=True)
class Undecided:
    """A problem with more than one answer, which is left as it is. choices: one sentence each."""

    kind: str
    what: str
    choices: tuple[str, ...]


@dataclass(frozen=True)
class Answers:
    """Answers of the user, where a problem has more than one.

    fps: The rate of every table and video. encoding: That of texts that are not UTF-8.
    drop: Features to leave out. declare: Columns of the data files to add to info.json.
    exclude: Episodes to leave out. episodes: Those to keep; None for all.
    """

    fps: int | None = None
    encoding: str | None = None
    drop: tuple[str, ...] = ()
    declare: tuple[str, ...] = ()
    exclude: tuple[int, ...] = ()
    episodes: tuple[int, ...] | None = None


@dataclass
class WorkingCopy:
    """A linked copy of a dataset, with what was changed in it and what could not be decided.

    A file of the copy is never opened for writing: a new one takes its place, so the source keeps
    its content.

    Args:
        root: The folder of the copy.
        answers: The user's.
        counting: Shows how far something is, as `kata.log.counting` does.
        is_shortened: Episodes were left out.
        dry: Leave out what is costly, and only name it.
    """

    root: Path
    answers: Answers
    counting: Counting
    dry: bool = False
    changes: list[Change] = field(default_factory=list)
    undecided: list[Undecided] = field(default_factory=list)
    copied: int = 0
    is_shortened: bool = False

    def fill(self, source: Path) -> None:
        """Link every file of a dataset; hidden files and folders, such as .git, stay behind."""
        names = [str(path.relative_to(source)) for path in _visible_files(source)]
        refuse_outside(source, names)
        for name in names:
            target = self.root / name
            target.parent.mkdir(parents=True, exist_ok=True)
            self._link(os.path.realpath(source / name), target)

    def changed(self, kind: str, what: str) -> None:
        """Note a change."""
        self.changes.append(Change(kind, what))

    def leave(self, kind: str, what: str, *choices: str) -> None:
        """Note a problem that has several answers."""
        self.undecided.append(Undecided(kind, what, choices))

    def replace(self, name: str, write: Callable[[Path], None]) -> None:
        """Put a new file in the place of an old one, or of none."""
        target = self.root / name
        target.parent.mkdir(parents=True, exist_ok=True)
        beside = target.with_name(f".{target.name}.new{target.suffix}")
        write(beside)
        os.replace(beside, target)

    def write_text(self, name: str, text: str) -> None:
        """Write a text file in UTF-8."""

        def write(path: Path) -> None:
            path.write_bytes(text.encode("utf-8"))

        self.replace(name, write)

    def write_json(self, name: str, value: Mapping[str, Any]) -> None:
        """Write a JSON file in LeRobot's form."""
        self.write_text(name, json.dumps(value, indent=4, ensure_ascii=False))

    def write_lines(self, name: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Write a file of one JSON object a line."""
        self.write_text(name, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))

    def move(self, old: str, new: str) -> None:
        """Give a file of the copy another name."""
        target = self.root / new
        target.parent.mkdir(parents=True, exist_ok=True)
        os.replace(self.root / old, target)

    def remove(self, name: str) -> None:
        """Take a file out of the copy; one that is absent stays absent."""
        (self.root / name).unlink(missing_ok=True)

    def names(self, pattern: str) -> list[str]:
        """Return the files of the copy that a pattern matches, sorted."""
        return sorted(
            str(path.relative_to(self.root)) for path in self.root.glob(pattern) if path.is_file()
        )

    def _link(self, source: str, target: Path) -> None:
        try:
            os.link(source, target)
        except OSError as error:
            if error.errno not in _UNLINKABLE:
                raise
            shutil.copy2(source, target)
            self.copied += 1


def _visible_files(root: Path) -> Iterable[Path]:
    known: set[str] = set()
    for folder, folders, files in os.walk(root, followlinks=True):
        real = os.path.realpath(folder)
        if real in known:  # a link to a folder that was seen, perhaps above
            folders.clear()
            continue
        known.add(real)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        yield from (Path(folder) / name for name in sorted(files) if not name.startswith("."))
