"""What the ranks other than the first do where rank 0 records: nothing."""

from __future__ import annotations

from typing import Any


class Unrecorded:
    """Stands in the loop for the meter and for the watch over bad steps; the figures are the same on every rank."""

    def add(self, step: int, *figures: Any, **named: Any) -> None:
        """Takes a step's figures."""

    def flush(self, step: int) -> None:
        """The log is rank 0's."""

    def settle(self) -> None:
        """Nothing is judged here."""

    def note(self, step: int, kind: str, figures: dict[str, Any]) -> None:
        """Takes a line of the log."""
