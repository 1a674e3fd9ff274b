"""The distance in steps up to which bytes are fetched along with their neighbours."""

from __future__ import annotations

_SHARE = 1.0
"""Fraction of the bytes for them that is filled at the present rate until the horizon is reached.
Bytes that are fetched along wait for half of the horizon on average, so they take at most half.
"""

_MEMORY = 0.98
"""Weight of what was counted before, per count."""


class FetchHorizon:
    """The number of steps within which bytes must be needed to be fetched along.

    A request that brings the neighbours of its bytes too saves later requests, and keeps their
    bytes until they are needed. So the horizon follows from the bytes that a step takes.
    """

    def __init__(self) -> None:
        self._steps = 0.0
        self._bytes = 0.0

    def count(self, steps: int, size: int) -> None:
        """Take note of the bytes that were asked for, for a number of steps."""
        self._steps = _MEMORY * self._steps + steps
        self._bytes = _MEMORY * self._bytes + size

    def steps(self, room_bytes: float) -> int:
        """Return the horizon for this many bytes; 0 before anything was counted."""
        return int(_SHARE * room_bytes * self._steps / self._bytes) if self._bytes else 0
