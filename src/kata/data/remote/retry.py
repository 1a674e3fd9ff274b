"""Retries of requests: exponential back-off with jitter, bounded by attempts and by time."""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from threading import Event, Lock
from typing import TypeVar

from kata.data.remote.refusals import TransientError
from kata.errors import DataError
from kata.units import counted

T = TypeVar("T")

_log = logging.getLogger(__name__)

_SAID_AFTER_S = 3.0
"""Time that a request has failed for when a message says so. Shorter faults pass unseen."""

_SAID_EVERY_S = 60.0
"""Least time between two such messages of one store."""


@dataclass(frozen=True, kw_only=True)
class RetryLimits:
    """The bounds of retries.

    Attributes:
        attempts: the most requests for one thing. The default takes about ten minutes.
        first_attempts: the most as long as the store has never answered, about 45 seconds.
        limit_s: the most time for one thing, with all waits.
        first_s: the longest first wait; each later one may be twice as long.
        most_s: the longest wait, unless the store asks for more.
    """

    attempts: int = 50
    first_attempts: int = 10
    limit_s: float = 600.0
    first_s: float = 0.2
    most_s: float = 20.0


class Retry:
    """A sender of requests that repeats those that fail for a passing reason.

    A store that asks to be left alone (Retry-After) gets no request of any thread until then.

    Args:
        limits: of attempts and time.
    """

    def __init__(self, limits: RetryLimits | None = None) -> None:
        self._limits = limits or RetryLimits()
        self._lock = Lock()
        self._not_before_s = 0.0
        self._said_s = -_SAID_EVERY_S
        self._has_answered = False
        self._closed = Event()
        self.retries = 0

    def run(self, location: str, send: Callable[[], T]) -> T:
        """Return the result of `send`, which raises TransientError where it may be repeated.

        Args:
            location: of the object, for messages.
            send: makes one attempt.

        Raises:
            DataError: Every attempt failed; the message names the object and the last failure.
        """
        began_s = time.monotonic()
        number = 0
        while True:
            number += 1
            rest_s = self._not_before_s - time.monotonic()
            if rest_s > 0:
                self._closed.wait(rest_s)
            try:
                found = send()
                # None came without a request: that a web server has no listings is known.
                self._has_answered |= found is not None
                return found
            except TransientError as error:
                wait_s = self._wait_s(location, number, error)
                spent_s = time.monotonic() - began_s
                is_over = spent_s + wait_s > self._limits.limit_s or self._closed.is_set()
                if number >= self._attempts or is_over:
                    raise _given_up(location, number, spent_s, error) from error
                if spent_s >= _SAID_AFTER_S:
                    self._say_waiting(location, error)
            with self._lock:
                self.retries += 1
            self._closed.wait(wait_s)

    def close(self) -> None:
        """End all waits; requests that fail from now on are not repeated."""
        self._closed.set()

    @property
    def _attempts(self) -> int:
        """Return the most attempts: a store that has answered may be away for some minutes."""
        limits = self._limits
        if self._has_answered:
            return limits.attempts
        return min(limits.attempts, limits.first_attempts)

    def _say_waiting(self, location: str, error: TransientError) -> None:
        """Log that a store is waited for; requests of many threads make one message."""
        with self._lock:
            now_s = time.monotonic()
            if now_s - self._said_s < _SAID_EVERY_S:
                return
            self._said_s = now_s
        _log.warning("waiting for %s: %s", location, error.reason)

    def _wait_s(self, location: str, number: int, error: TransientError) -> float:
        """Return the wait before the next attempt."""
        # Drawn from the object and the attempt: no generator that a run uses moves on.
        drawn = random.Random(f"{location} {number}").uniform(0.5, 1.0)
        wait_s = drawn * min(self._limits.first_s * 2 ** (number - 1), self._limits.most_s)
        if error.retry_after_s > 0:
            with self._lock:
                until_s = time.monotonic() + error.retry_after_s
                self._not_before_s = max(self._not_before_s, until_s)
        return max(wait_s, error.retry_after_s)


def _given_up(location: str, attempts: int, spent_s: float, error: TransientError) -> DataError:
    asked = f"; it asks for {error.retry_after_s:.0f} s of rest" if error.retry_after_s else ""
    return DataError(
        f"{location} could not be read: {counted(attempts, 'attempt')} in {spent_s:.1f} s, the "
        f"last one ended with: {error.reason}{asked}",
        rule="the store answers within the attempts and the time of a request",
        remedy="check the network and the store, then start again: the run continues from its "
        "last checkpoint",
    )
