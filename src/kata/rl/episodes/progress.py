"""The progress of a run over its last episodes, as its log and its takeovers see it. Torch-free."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice

from kata.rl.episodes.journal import JournalEntry

LOOK_BACK = 10
"""Times the recent episodes in which those are looked for that nobody helped in."""


@dataclass(frozen=True)
class RecentShares:
    """Shares over the last episodes.

    Attributes:
        success: of the last episodes, helped or not, as HIL-SERL draws it; None if nobody tells.
        own_success: of the last ones that nobody helped in; None before there is one.
        human: share of steps that a human took.
    """

    success: float | None
    own_success: float | None
    human: float


def recent_shares(entries: Sequence[JournalEntry], recent: int) -> RecentShares:
    """Return the progress at the end of the entries.

    Args:
        entries: of the journal, up to now.
        recent: episodes in a share. Those that nobody helped in may lie further back.
    """
    last = entries[-recent:]
    steps = sum(each.steps for each in last)
    alone = (each for each in reversed(entries[-LOOK_BACK * recent :]) if not each.human_steps)
    return RecentShares(
        success=_successes(last),
        own_success=_successes(list(islice(alone, recent))),
        human=sum(each.human_steps for each in last) / max(1, steps),
    )


def _successes(entries: Sequence[JournalEntry]) -> float | None:
    told = [each.success for each in entries if each.success is not None]
    return sum(told) / len(told) if told else None
