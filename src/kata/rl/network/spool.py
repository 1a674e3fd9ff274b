"""The spool: an actor's episodes on its disk, until the learner has them on its own. Torch-free.

<folder>/actor.json                                who the actor is, and whose run it serves
<folder>/spool/<number>.<weights>.<steps>.safetensors
"""

from __future__ import annotations

import json
import secrets
import threading
from dataclasses import dataclass
from pathlib import Path

from kata.errors import CheckpointError
from kata.files import fsync, write_durably, write_json
from kata.rl.episodes.episode import PlayedEpisode, Schema

IDENTITY = "actor.json"


@dataclass(frozen=True)
class Spooled:
    """An episode that the learner does not have yet.

    Attributes:
        sequence: its number among the actor's.
        weights: updates that the acting policy had seen.
        steps: of the episode.
        path: of its file.
    """

    sequence: int
    weights: int
    steps: int
    path: Path


class Spool:
    """The episodes that wait, the oldest first. Two threads use it: one adds, one removes.

    Args:
        folder: of the actor.

    Raises:
        CheckpointError: a file in it is none of an actor.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder / "spool"
        self._folder.mkdir(parents=True, exist_ok=True)
        self._changed = threading.Condition()
        for partial in self._folder.glob("*.partial"):  # of a process that was killed
            partial.unlink()
        found = [_named(path) for path in self._folder.iterdir()]
        self._episodes = sorted(found, key=lambda each: each.sequence)
        self._bytes = sum(each.path.stat().st_size for each in found)

    @property
    def episodes(self) -> list[Spooled]:
        """Return the episodes that wait."""
        with self._changed:
            return list(self._episodes)

    @property
    def nbytes(self) -> int:
        """Return their bytes."""
        with self._changed:
            return self._bytes

    def add(self, episode: PlayedEpisode, schema: Schema, sequence: int, weights: int) -> None:
        """Store an episode. When this returns, a power failure cannot undo it.

        Raises:
            DataError: it is none of the schema, a number is not finite, or an action is none that
                the environment takes.
            OSError: the disk refuses. The spool is as it was.
        """
        raw = episode.to_bytes()
        PlayedEpisode.admitted(raw, schema, f"episode {sequence}")
        path = self._folder / f"{sequence:08d}.{weights}.{episode.steps}.safetensors"
        write_durably(path, raw)
        with self._changed:
            self._episodes.append(Spooled(sequence, weights, episode.steps, path))
            self._bytes += len(raw)
            self._changed.notify_all()

    def oldest(self, wait_s: float) -> Spooled | None:
        """Return the oldest episode, waiting for one for a while."""
        with self._changed:
            if not self._episodes:
                self._changed.wait(wait_s)
            return self._episodes[0] if self._episodes else None

    def remove(self, spooled: Spooled) -> None:
        """Remove an episode that is on the learner's disk."""
        size = spooled.path.stat().st_size
        spooled.path.unlink()
        with self._changed:
            self._episodes.remove(spooled)
            self._bytes -= size
            self._changed.notify_all()

    def wait_for_fewer(self, limit: float, wait_s: float) -> bool:
        """Return True once no more than `limit` bytes wait, False if that takes too long."""
        with self._changed:
            return self._changed.wait_for(lambda: self._bytes <= limit, wait_s)


def _named(path: Path) -> Spooled:
    parts = path.name.removesuffix(".safetensors").split(".")
    if len(parts) != 3 or not all(part.isdecimal() for part in parts):
        raise CheckpointError(
            f"{path}: no episode of a spool",
            rule="a spool holds <number>.<weights>.<steps>.safetensors alone",
            remedy="move the file elsewhere",
        )
    sequence, weights, steps = map(int, parts)
    return Spooled(sequence, weights, steps, path)


@dataclass(frozen=True)
class ActorIdentity:
    """An actor's name, and a number drawn once for its folder.

    Attributes:
        name: of the actor.
        instance: drawn once.
        run_id: of the run that it serves.
    """

    name: str
    instance: str
    run_id: str


def identity(folder: Path, name: str, run_id: str) -> ActorIdentity:
    """Return who the actor of a folder is; a new folder gets an identity.

    Raises:
        CheckpointError: the folder's actor has another name or another run, or its file cannot be
            read.
    """
    path = folder / IDENTITY
    if not path.exists():
        found = ActorIdentity(name, secrets.token_hex(16), run_id)
        write_json(path, found.__dict__)
        fsync(path)
        fsync(folder)
        return found
    try:
        found = ActorIdentity(**json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError) as error:
        raise CheckpointError(
            f"{path}: cannot be read ({error})",
            rule="a JSON object with name, instance and run_id",
            remedy="begin with a new --output_dir and another --rl.name",
        ) from error
    for what, mine, asked in (("name", found.name, name), ("run", found.run_id, run_id)):
        if mine != asked:
            raise CheckpointError(
                f"{folder}: its actor's {what} is {mine}, not {asked}",
                rule="a folder belongs to one actor of one run",
                remedy="another --output_dir"
                + (f", or --rl.name={mine}" if what == "name" else ", or that run's learner"),
            )
    return found
