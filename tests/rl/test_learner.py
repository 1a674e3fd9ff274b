"""The learner: buffers that episodes go to, and updates that they allow."""

from types import SimpleNamespace

from kata.rl.batches import Buffers
from kata.rl.checkpoint import Counts
from kata.rl.episodes.journal import Journal
from kata.rl.episodes.ring import Ring
from kata.rl.learner import Learner
from kata.rl.trainer import refill
from tests.rl.test_episodes import SCHEMA, episode, pairs


def learner(capacity=30, *, takes_over=True, cloning=0):
    takeovers = Ring(SCHEMA, 30, "capacity") if takes_over else None
    buffers = Buffers(Ring(SCHEMA, capacity, "capacity"), [takeovers] if takeovers else [])
    sac = SimpleNamespace(updates=0, config=SimpleNamespace(bc_pretrain_updates=cloning))
    return Learner(sac, None, buffers, takeovers, before=5, update_every=2)


def test_steps_of_a_human_go_to_both_buffers():
    found = learner()
    found.admit(episode(1, 6, human=(2, 3)))
    assert len(pairs(found.buffers.online)) == 6
    assert pairs(found.takeovers) == [(102, 103, False), (103, 104, False)]
    without = learner(takes_over=False)
    without.admit(episode(1, 6, human=(2, 3)))
    assert len(pairs(without.buffers.online)) == 6


def test_updates_are_due_by_the_steps():
    found = learner()
    assert (found.due, found.is_behind) == (0, False)
    found.admit(episode(1, 6))
    assert (found.due, found.is_behind) == (0, False)
    found.admit(episode(2, 6))
    assert (found.due, found.is_behind) == (3, True)
    found.sac.updates = 3
    assert not found.is_behind


def test_cloning_is_due_before_the_first_step_and_costs_no_later_update():
    found = learner(cloning=4)
    assert (found.due, found.is_behind) == (4, True)
    found.sac.updates = 4
    assert not found.is_behind
    found.admit(episode(1, 12))
    assert found.due == 7


def test_buffers_are_rebuilt_as_they_were(tmp_path):
    """Old episodes come back for their takeovers alone."""
    journal, straight = Journal(tmp_path, SCHEMA), learner(20)
    for number in range(6):
        played = episode(number, 5 + number % 2, human=(1, 2) if number % 2 == 0 else ())
        journal.append(played, weights=0, updates=0)
        if number < 5:
            straight.admit(played)
    rebuilt = learner(20)
    refill(rebuilt, journal, Counts(step=27, episodes=5, updates=0))
    assert pairs(rebuilt.buffers.online) == pairs(straight.buffers.online)
    assert pairs(rebuilt.takeovers) == pairs(straight.takeovers)
    assert (rebuilt.steps, rebuilt.episodes) == (27, 5)
    assert len(pairs(rebuilt.buffers.online)) < 27
