"""The journal: every episode of a run on the disk, in the order in which it was learned from.

    <run>/journal/000000.safetensors   an episode
    <run>/journal/journal.jsonl        a line per episode, written after it

An episode counts once its line is whole. Buffers are rebuilt from the journal.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kata.errors import CheckpointError, DataError
from kata.files import write_durably
from kata.rl.episodes.episode import PlayedEpisode, Schema

FOLDER = "journal"
LINES = "journal.jsonl"

_EPISODE = re.compile(r"(\d{6,})\.safetensors")
"""Names of episodes; whatever else lies in the folder is left alone."""


@dataclass(frozen=True)
class JournalEntry:
    """One episode of the journal.

    Attributes:
        episode: its number, from 0 on.
        actor: who acted.
        sequence: number among the episodes of that actor, from 0 on.
        steps: of the episode.
        weights: updates that the acting policy had seen.
        updates: updates that the learner had done when it took the episode.
        sha256: of the file.
        success: as in `PlayedEpisode`.
        human_steps: as in `PlayedEpisode`.
        total_reward: sum of rewards.
    """

    episode: int
    actor: str
    sequence: int
    steps: int
    weights: int
    updates: int
    sha256: str
    success: bool | None
    human_steps: int
    total_reward: float


class Journal:
    """The journal of a run. Reading changes nothing; appending begins with `recover`.

    Args:
        folder: may be absent.
        schema: of the run's episodes.

    Raises:
        CheckpointError: a line cannot be read, or an episode's file is gone.
    """

    def __init__(self, folder: Path, schema: Schema) -> None:
        self.folder = folder
        self.schema = schema
        self._lines = folder / LINES
        self._is_recovered = False
        raw = self._lines.read_bytes() if self._lines.exists() else b""
        self._whole = raw.rfind(b"\n") + 1  # behind it is what a killed process left of a line
        whole = raw[: self._whole].splitlines()
        self.entries = [self._entry(number, line) for number, line in enumerate(whole)]
        absent = [entry.episode for entry in self.entries if not self.path(entry.episode).is_file()]
        if absent:
            raise CheckpointError(
                f"{self.path(absent[0])}: no such file",
                rule=f"the journal has {len(self.entries)} episodes, and a file for each",
                remedy="copy the run's folder again from where it is whole",
            )

    @property
    def steps(self) -> int:
        """Return the steps of all episodes."""
        return sum(entry.steps for entry in self.entries)

    def refuse_shorter(self, episodes: int, checkpoint: str) -> None:
        """Refuse a journal that lacks episodes that a checkpoint has learned from.

        Args:
            episodes: that it has learned from.
            checkpoint: its name.

        Raises:
            CheckpointError: it lacks some.
        """
        if episodes > len(self.entries):
            raise CheckpointError(
                f"{self.folder}: {len(self.entries)} episodes, the checkpoint {checkpoint} has "
                f"learned from {episodes}",
                rule="the journal holds every episode of the run",
                remedy=f"copy {LINES} and its episodes again from where they are whole",
            )

    def recover(self) -> None:
        """Remove what a killed process left of the episode that it was writing, once, before the
        first episode is appended.

        Raises:
            CheckpointError: more episodes have no line than a killed process can leave. Nothing
                was removed.
        """
        if self._is_recovered:
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        unknown = self._without_line()
        following = self.path(len(self.entries))
        if unknown and unknown != [following]:
            raise CheckpointError(
                f"{self._lines}: {len(self.entries)} lines, and {len(unknown)} more episodes, from "
                f"{unknown[0].name} to {unknown[-1].name}",
                rule="a process that is killed leaves one episode without its line",
                remedy=f"copy {LINES} again from where it is whole; to go on without these "
                "episodes, move them elsewhere",
            )
        for path in (following, following.with_name(following.name + ".partial")):
            path.unlink(missing_ok=True)
        if self._lines.exists():
            os.truncate(self._lines, self._whole)
        self._is_recovered = True

    def _without_line(self) -> list[Path]:
        """Return the files of episodes that have no line, in their order."""
        found: dict[int, Path] = {}
        for path in self.folder.iterdir():
            name = _EPISODE.fullmatch(path.name)
            if name is not None and int(name[1]) >= len(self.entries):
                found[int(name[1])] = path
        return [found[number] for number in sorted(found)]

    def append(
        self,
        episode: PlayedEpisode,
        *,
        weights: int,
        updates: int,
        actor: str = "0",
        sequence: int = -1,
    ) -> JournalEntry:
        """Store an episode. When this returns, a power failure cannot undo it.

        Args:
            episode: of the journal's schema.
            weights: see `JournalEntry`.
            updates: see `JournalEntry`.
            actor: see `JournalEntry`.
            sequence: see `JournalEntry`; -1 for the next of this actor.

        Raises:
            DataError: it is none of the schema, a number is not finite, or an action is none that
                the environment takes. The journal is as it was.
            OSError: the disk refuses. The journal is as it was.
        """
        self.recover()
        raw = episode.to_bytes()
        PlayedEpisode.admitted(raw, self.schema, f"episode {len(self.entries)}")
        if sequence < 0:
            sequence = sum(entry.actor == actor for entry in self.entries)
        entry = JournalEntry(
            episode=len(self.entries),
            actor=actor,
            sequence=sequence,
            steps=episode.steps,
            weights=weights,
            updates=updates,
            sha256=hashlib.sha256(raw).hexdigest(),
            success=episode.success,
            human_steps=episode.human_steps,
            total_reward=float(episode.reward.sum(dtype="float64")),
        )
        # 1. The episode, under a name that does not count before its line is there.
        path = self.path(entry.episode)
        write_durably(path, raw)
        # 2. Its line. A line that was cut short is removed before another is added.
        size = self._lines.stat().st_size if self._lines.exists() else 0
        try:
            with self._lines.open("ab") as lines:
                lines.write((json.dumps(asdict(entry)) + "\n").encode())
                lines.flush()
                os.fsync(lines.fileno())
        except OSError:
            if self._lines.exists():
                os.truncate(self._lines, size)
            path.unlink()
            raise
        self.entries.append(entry)
        return entry

    def read(self, number: int) -> PlayedEpisode:
        """Return an episode.

        Raises:
            DataError: its file is not what was written.
        """
        path = self.path(number)
        raw = path.read_bytes()
        if hashlib.sha256(raw).hexdigest() != self.entries[number].sha256:
            raise DataError(
                f"{path}: content changed (sha256)",
                rule="an episode stays as it was written: all later weights follow from it",
                remedy="copy it again from where it is whole, or begin a new run in another folder",
            )
        return PlayedEpisode.from_bytes(raw, self.schema, str(path))

    def path(self, number: int) -> Path:
        """Return the file of an episode."""
        return self.folder / f"{number:06d}.safetensors"

    def _entry(self, number: int, line: bytes) -> JournalEntry:
        try:
            found: dict[str, Any] = json.loads(line)
            entry = JournalEntry(**found)
        except (ValueError, TypeError) as error:
            raise CheckpointError(
                f"{self._lines}, line {number + 1}: cannot be read ({error})",
                rule="a JSON object per episode",
                remedy="copy the run's folder again from where it is whole",
            ) from error
        if entry.episode != number:
            raise CheckpointError(
                f"{self._lines}, line {number + 1}: episode {entry.episode}",
                rule=f"episodes without a gap: {number}",
                remedy="copy the run's folder again from where it is whole",
            )
        return entry
