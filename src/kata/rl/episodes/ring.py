"""The buffer: episodes one behind the other in arrays of a fixed size. NumPy only."""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kata.errors import ConfigError
from kata.rl.episodes.episode import PlayedEpisode, Schema
from kata.units import bytes_text, count_text

Rows = NDArray[np.int64]


class Ring:
    """A buffer of `capacity` observations that drops its oldest episodes when it is full.

    An episode of T steps takes T + 1 rows, which may go over the end of the arrays to their
    beginning. The next observation of a step is always in the row behind it, and in the same
    episode.

    Args:
        schema: of the episodes.
        capacity: rows.
        name: of the option that sets the capacity, for messages.
    """

    def __init__(self, schema: Schema, capacity: int, name: str) -> None:
        self.schema = schema
        self.capacity = capacity
        self._name = name
        self.observations: dict[str, NDArray[Any]] = {}
        for key, shape in schema.observations.items():
            self.observations[key] = np.zeros((capacity, *shape), schema.dtype(key))
        self.action = np.zeros((capacity, schema.action_size), np.float32)
        self.reward = np.zeros(capacity, np.float32)
        self.penalty = np.zeros(capacity, np.float32)
        self.done = np.zeros(capacity, np.bool_)
        self.intervention = np.zeros(capacity, np.bool_)
        self.success = np.zeros(capacity, np.bool_)  # of the episode
        self._held: deque[tuple[int, int]] = deque()  # first row and steps, the oldest first
        self._free = capacity
        self._head = 0
        self._index()

    @property
    def nbytes(self) -> int:
        """Return the bytes of all arrays."""
        arrays = [*self.observations.values(), self.action, self.reward, self.penalty]
        marks = (self.done, self.intervention, self.success)
        return sum(values.nbytes for values in (*arrays, *marks))

    @property
    def transitions(self) -> int:
        """Return the number of steps that can be drawn."""
        return int(self._ends[-1]) if len(self._ends) else 0

    @property
    def episodes(self) -> int:
        """Return the number of episodes that are held."""
        return len(self._held)

    def add(self, episode: PlayedEpisode) -> None:
        """Copy an episode into the buffer, in the place of the oldest ones if it is full.

        Raises:
            ConfigError: the episode is longer than the whole buffer.
        """
        rows = episode.steps + 1
        if rows > self.capacity:
            raise ConfigError(
                f"{self._name}={self.capacity}: an episode has {count_text(rows)} observations",
                rule="the buffer holds at least one whole episode",
                remedy=f"--{self._name}={4 * rows}, or shorter episodes (--env.max_steps)",
            )
        while self._free < rows:
            self._free += self._held.popleft()[1] + 1
        where = (self._head + np.arange(rows)) % self.capacity
        for key, values in episode.observations.items():
            self.observations[key][where] = values
        steps = where[:-1]
        self.action[steps] = episode.action
        self.reward[steps] = episode.reward
        self.penalty[steps] = episode.penalty
        self.intervention[steps] = episode.intervention
        self.success[steps] = bool(episode.success)
        self.done[steps] = False
        self.done[steps[-1]] = episode.terminated
        self._held.append((self._head, episode.steps))
        self._free -= rows
        self._head = int(self._head + rows) % self.capacity
        self._index()

    def rows(self, numbers: Rows) -> tuple[Rows, Rows]:
        """Return the rows of steps by their number, and those of the observations after them.

        Args:
            numbers: (B,) in [0, transitions), the oldest step first.
        """
        which = np.searchsorted(self._ends, numbers, side="right")
        before = np.where(which > 0, self._ends[which - 1], 0)
        first = (self._firsts[which] + numbers - before) % self.capacity
        return first, (first + 1) % self.capacity

    def _index(self) -> None:
        held = np.array(self._held, np.int64).reshape(-1, 2)
        self._firsts, self._ends = held[:, 0], np.cumsum(held[:, 1])


def buffer_text(name: str, schema: Schema, capacity: int) -> str:
    """Return what a buffer takes in words."""
    size = bytes_text(schema.row_bytes * capacity)
    return f"{name}: {count_text(capacity)} observations, {size}"
