"""The desk between the server's thread and the learner's: episodes in, weights out. Torch-free."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Generator, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field

from kata.rl.episodes.episode import PlayedEpisode, Schema
from kata.rl.network.members import RunActors
from kata.rl.network.wire import AWAY, BUSY, SILENT_S, Greeting, NetworkError, RunFacts, Welcome


@dataclass(frozen=True)
class Submission:
    """An episode that waits for the learner.

    Attributes:
        actor: name of who played it.
        sequence: its number there.
        weights: updates that the acting policy had seen.
        episode: checked already.
        answer: set when the episode is in the journal, or to the refusal.
    """

    actor: str
    sequence: int
    weights: int
    episode: PlayedEpisode
    answer: Future[None] = field(default_factory=Future[None])


@dataclass(frozen=True)
class Published:
    """Weights for actors.

    Attributes:
        version: differs between any two of them, also before and after a restart.
        updates: done when they were taken.
        body: safetensors.
    """

    version: str
    updates: int
    body: bytes


class Desk:
    """The things that the learner and its server share.

    Args:
        facts: of the run.
        schema: of its episodes.
        max_steps: of an episode, so that every buffer can hold it.
        members: actors that the run knows.

    Attributes:
        published: the newest weights, or None before the first.
        updates: that the learner has done.
        is_over: True when actors need not play any more.
    """

    def __init__(self, facts: RunFacts, schema: Schema, max_steps: int, members: RunActors) -> None:
        self.facts = facts
        self.schema = schema
        self.max_steps = max_steps
        self.members = members
        self.published: Published | None = None
        self.updates = 0
        self.is_over = False
        self._waiting: queue.Queue[Submission] = queue.Queue()
        self._lock = threading.Lock()
        self._sending: set[str] = set()
        self._heard: dict[str, float] = {}
        self._began = time.monotonic()
        self._left: set[str] = set()
        self._is_closed = False

    # --- the server's side --------------------------------------------------------------------

    def hello(self, greeting: Greeting) -> Welcome:
        """Accept an actor, or refuse it."""
        with self._lock:
            welcome = self.members.greet(greeting, self.facts)
        self.hear(greeting.name)
        return welcome

    def identify(self, run_id: str, name: str, instance: str) -> str:
        """Return the name of an actor that has said hello, or refuse it."""
        with self._lock:
            self.members.refuse_stranger(run_id, name, instance)
        self.hear(name)
        return name

    def hear(self, name: str) -> None:
        """Note that an actor is there."""
        self._heard[name] = time.monotonic()
        self._left.discard(name)

    def leave(self, name: str) -> None:
        """Note that an actor leaves."""
        self._heard.pop(name, None)
        self._left.add(name)

    @contextmanager
    def sending(self, name: str) -> Generator[None]:
        """Admit one episode of an actor at a time: it bounds the memory that bodies take."""
        with self._lock:
            if name in self._sending:
                raise NetworkError(
                    BUSY,
                    f"actor {name}: an episode is being sent already",
                    rule="one episode of an actor at a time",
                    remedy="wait for its answer",
                )
            self._sending.add(name)
        try:
            yield
        finally:
            with self._lock:
                self._sending.discard(name)

    def submit(self, submission: Submission) -> None:
        """Leave an episode for the learner, or refuse it if the learner stops."""
        with self._lock:
            if self._is_closed:
                raise _stopping()
            self._waiting.put(submission)

    # --- the learner's side -------------------------------------------------------------------

    def publish(self, weights: Published) -> None:
        """Offer new weights to actors."""
        self.published = weights

    def waiting(self, wait_s: float = 0.0) -> Iterator[Submission]:
        """Yield the episodes that wait; wait for the first of them for a while."""
        while True:
            try:
                found = self._waiting.get(timeout=wait_s) if wait_s else self._waiting.get_nowait()
            except queue.Empty:
                return
            wait_s = 0.0
            if found.answer.set_running_or_notify_cancel():  # the server may have given up
                yield found

    def close(self) -> None:
        """Refuse the episodes that wait and those that come; actors keep them."""
        with self._lock:
            self._is_closed = True
        for found in self.waiting():
            found.answer.set_exception(_stopping())

    def present(self) -> list[str]:
        """Return the names of actors that were heard lately."""
        now = time.monotonic()
        return sorted(name for name, at in list(self._heard.items()) if now - at < SILENT_S)

    def expected(self) -> list[str]:
        """Return the names of actors that this process has not heard yet, while it is young: they
        may have episodes for the learner that was before it.
        """
        if time.monotonic() - self._began >= SILENT_S:
            return []
        with self._lock:
            known = self.members.names
        return sorted(known - self._left - set(self._heard))


def _stopping() -> NetworkError:
    return NetworkError(
        AWAY, "the learner stops", rule="episodes stay in the spool", remedy="send it again later"
    )
