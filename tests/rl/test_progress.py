"""Shares over the last episodes: with help, without, and the steps of a human."""

import pytest

from kata.rl.episodes.journal import JournalEntry
from kata.rl.episodes.progress import recent_shares


def entries(played):
    """Return entries of 10 steps for pairs of success and steps of a human."""
    return [
        JournalEntry(number, "a", number, 10, 0, 0, "", success, human, 0.0)
        for number, (success, human) in enumerate(played)
    ]


def test_own_success_counts_the_last_episodes_that_nobody_helped_in():
    # Help in most episodes, as at a high rate of takeovers: own successes are seen all the same.
    played = [(False, 0), (True, 8), (True, 0), (True, 8), (True, 0), (True, 8), (False, 6)]
    found = recent_shares(entries(played), 2)
    assert found.own_success == 1.0
    assert found.success == 0.5
    assert found.human == pytest.approx(14 / 20)
    assert recent_shares(entries(played), 3).own_success == pytest.approx(2 / 3)


def test_own_success_is_unknown_where_somebody_always_helps_or_nobody_tells():
    assert recent_shares([], 20).own_success is None
    helped = recent_shares(entries([(True, 3)] * 5), 20)
    assert (helped.success, helped.own_success) == (1.0, None)
    untold = recent_shares(entries([(None, 0)] * 5), 20)
    assert (untold.success, untold.own_success) == (None, None)
    # Episodes without help count only so far back.
    assert recent_shares(entries([(True, 0), *[(True, 3)] * 20]), 2).own_success is None
