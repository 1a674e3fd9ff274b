"""The actors of a run: who they are, and how far each has come. Torch-free.

<run>/actors.json    run_id, and the instance of each name
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable
from pathlib import Path

from kata.errors import CheckpointError
from kata.files import FULL as FULL_DISK
from kata.files import fsync, write_json
from kata.rl.episodes.journal import JournalEntry
from kata.rl.network.env_record import env_differences
from kata.rl.network.options import NAME
from kata.rl.network.wire import (
    BAD,
    CONFLICT,
    FORBIDDEN,
    FULL,
    Greeting,
    NetworkError,
    RunFacts,
    Welcome,
)
from kata.rl.trainer import ACTORS

_INSTANCE = re.compile(r"[0-9a-f]{32}")


class RunActors:
    """The actors of a run. A name belongs to the folder that said hello with it first: its numbers
    of episodes mean something there alone.

    Args:
        folder: of the run.
        entries: of its journal.
        most: names that the run accepts.

    Raises:
        CheckpointError: actors.json cannot be read.
    """

    def __init__(self, folder: Path, entries: Iterable[JournalEntry], most: int) -> None:
        self._file = folder / ACTORS
        self._most = most
        self.run_id = secrets.token_hex(8)
        self._instances: dict[str, str] = {}
        self._episodes: dict[str, list[JournalEntry]] = {}
        if self._file.exists():
            self._read()
        else:
            self._write()
        for entry in entries:
            self.count(entry)

    def greet(self, greeting: Greeting, facts: RunFacts) -> Welcome:
        """Return how far an actor is, and remember it.

        Raises:
            NetworkError: the run, the environment, the schema or the name is not the run's.
        """
        name = greeting.name
        if not NAME.fits(name) or not _INSTANCE.fullmatch(greeting.instance):
            raise NetworkError(
                BAD,
                f"actor {name[:40]!r} of the instance {greeting.instance[:40]!r}",
                rule=f"a name has {NAME.rule}, and an instance 32 hex digits",
                remedy="another --rl.name",
            )
        self._refuse_other_run(greeting.run_id)
        differing = env_differences(facts.env, greeting.env)
        if differing:
            raise NetworkError(
                CONFLICT,
                f"actor {name}: another environment: {'; '.join(differing)}",
                rule="an actor plays in the environment that its learner learns for",
                remedy="give `kata rl act` the environment of `kata rl learn` (--env.*)",
            )
        if greeting.schema != facts.schema:
            raise NetworkError(
                CONFLICT,
                f"actor {name}: episodes of the schema {greeting.schema}",
                rule=f"this run's are of {facts.schema}: the same observations and actions",
                remedy="give `kata rl act` the environment of `kata rl learn` (--env.*)",
            )
        known = self._instances.get(name)
        if known is None:
            if len(self._instances) >= self._most:
                raise NetworkError(
                    CONFLICT,
                    f"actor {name}: the run has {len(self._instances)} actors",
                    rule=f"at most {self._most}",
                    remedy="a larger --rl.max_actors for `kata rl learn`",
                )
            self._remember(name, greeting.instance)
        elif known != greeting.instance:
            raise self._other_folder(name)
        mine = self._episodes.get(name, [])
        return Welcome(len(mine), sum(entry.steps for entry in mine))

    def _remember(self, name: str, instance: str) -> None:
        before = self._instances
        self._instances = {**before, name: instance}
        try:
            self._write()
        except OSError as error:
            self._instances = before
            if error.errno not in FULL_DISK:
                raise
            raise NetworkError(
                FULL,
                f"actor {name}: no room for {self._file} ({error.strerror})",
                rule="the learner remembers its actors",
                remedy="make room; the actor asks again",
            ) from error

    def refuse_stranger(self, run_id: str, name: str, instance: str) -> None:
        """Refuse who has not said hello.

        Raises:
            NetworkError: see there.
        """
        self._refuse_other_run(run_id)
        known = self._instances.get(name)
        if known is None:
            raise NetworkError(
                CONFLICT,
                f"actor {name}: unknown",
                rule="an actor says hello first",
                remedy="start the actor again",
            )
        if known != instance:
            raise self._other_folder(name)

    @property
    def names(self) -> set[str]:
        """Return the names of the actors that have said hello in this run."""
        return set(self._instances)

    def count(self, entry: JournalEntry) -> None:
        """Count an episode of the journal."""
        self._episodes.setdefault(entry.actor, []).append(entry)

    def episodes(self, name: str) -> list[JournalEntry]:
        """Return an actor's episodes, whose numbers are their places."""
        return self._episodes.get(name, [])

    def _other_folder(self, name: str) -> NetworkError:
        return NetworkError(
            CONFLICT,
            f"actor {name}: another actor of this run has that name",
            rule="a name belongs to one actor and its --output_dir, so that no episode counts "
            "twice",
            remedy="another --rl.name, or the --output_dir that it began with",
        )

    def _refuse_other_run(self, run_id: str) -> None:
        if run_id != self.run_id:
            raise NetworkError(
                FORBIDDEN,
                f"run {run_id!r}: the learner's run is {self.run_id!r}",
                rule="an actor's folder belongs to one run",
                remedy="another --output_dir for the actor, or the learner of that run",
            )

    def _read(self) -> None:
        try:
            found = json.loads(self._file.read_text(encoding="utf-8"))
            self.run_id = str(found["run_id"])
            self._instances = {str(k): str(v) for k, v in found["actors"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise CheckpointError(
                f"{self._file}: cannot be read ({error})",
                rule="a JSON object with run_id and actors",
                remedy="copy the run's folder again from where it is whole",
            ) from error

    def _write(self) -> None:
        write_json(self._file, {"run_id": self.run_id, "actors": self._instances})
        fsync(self._file)
        fsync(self._file.parent)
