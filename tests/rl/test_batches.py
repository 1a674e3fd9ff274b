"""Batches: what they are drawn from, how pictures move, what is normalized."""

import numpy as np
import pytest
import torch

from kata.config import decode
from kata.policies.gaussian_actor.config import Config
from kata.rl.batches import Buffers, Sampling, TransitionBatches
from kata.rl.episodes.ring import Ring
from kata.rl.setup import new_policy
from kata.spec import ACTION
from tests.rl.test_episodes import CAMERA, SCHEMA, STATE, episode

STATS = {
    CAMERA: {"mean": np.zeros((3, 1, 1)), "std": np.ones((3, 1, 1))},
    STATE: {"min": np.array([-1000.0, -1000.0]), "max": np.array([1000.0, 1000.0])},
    ACTION: {"min": np.array([-0.5, -0.5]), "max": np.array([1.5, 1.5])},
}


@pytest.fixture(scope="module")
def acting():
    features = {STATE: {"type": "STATE", "shape": [2]}}
    raw = {
        "input_features": features,
        "output_features": {ACTION: {"type": "ACTION", "shape": [2]}},
    }
    config = decode(Config, {**raw, "device": "cpu", "latent_dim": 4})
    return new_policy(config, {key: STATS[key] for key in (STATE, ACTION)}, 0)


def ring(*episodes):
    found = Ring(SCHEMA, 100, "capacity")
    for each in episodes:
        found.add(each)
    return found


def numbers(transitions):
    """The numbers of `episode` of each step of a batch, before and after."""
    before, after = (seen[STATE][:, 0] * 1000 for seen in (transitions.seen, transitions.seen_next))
    return before.round().int().tolist(), after.round().int().tolist()


def test_half_of_a_batch_is_shown_and_half_is_own(acting):
    online, demos, takeovers = ring(episode(1, 20)), ring(episode(2, 6)), ring(episode(3, 18))
    buffers = Buffers(online, [demos, takeovers])
    batches = TransitionBatches(buffers, acting, Sampling(8, 4, seed=3))
    origins = {1: 0, 2: 0, 3: 0}
    for number in range(40):
        before, after = numbers(batches.at(number))
        assert [b - a for a, b in zip(before, after, strict=True)] == [1] * 8
        assert sum(each // 100 == 1 for each in before) == 4
        for each in before:
            origins[each // 100] += 1
    assert 20 < origins[2] < 65  # a quarter of 160 in the mean, as its steps are of all shown ones
    assert origins[1] == 160


def test_a_batch_of_demonstrations_has_no_own_step(acting):
    buffers = Buffers(ring(episode(1, 20)), [ring(episode(2, 6)), ring()])
    batches = TransitionBatches(buffers, acting, Sampling(8, 4, seed=3))
    drawn = [numbers(batches.demonstrated(number))[0] for number in (5, 5, 6)]
    assert {each // 100 for each in drawn[0]} == {2}
    assert drawn[0] == drawn[1] != drawn[2]


def test_a_batch_follows_from_its_number_and_the_seed(acting):
    buffers = Buffers(ring(episode(1, 20)))
    first = TransitionBatches(buffers, acting, Sampling(8, 8, seed=3))
    again = TransitionBatches(buffers, acting, Sampling(8, 8, seed=3))
    other = TransitionBatches(buffers, acting, Sampling(8, 8, seed=4))
    assert numbers(first.at(5)) == numbers(again.at(5))
    assert numbers(first.at(5)) != numbers(first.at(6))
    assert numbers(first.at(5)) != numbers(other.at(5))
    noise = [batches.draws(7).normal((2, 2)) for batches in (first, again, other)]
    assert torch.equal(noise[0], noise[1])
    assert not torch.equal(noise[0], noise[2])


def test_without_enough_takeovers_all_steps_are_own(acting):
    buffers = Buffers(ring(episode(1, 20)), [ring(), ring(episode(3, 3))])
    before, _ = numbers(TransitionBatches(buffers, acting, Sampling(8, 4, seed=0)).at(0))
    assert {each // 100 for each in before} == {1}
    assert len(before) == 8


@pytest.mark.parametrize("normalizes", [True, False])
def test_actions_are_on_the_actors_scale_unless_as_in_lerobot(normalizes, acting):
    sampling = Sampling(8, 8, seed=0, normalize_actions=normalizes)
    found = TransitionBatches(Buffers(ring(episode(1, 20))), acting, sampling).at(0)
    before, _ = numbers(found)
    raw = torch.tensor(before) / 1000
    expected = raw - 0.5 if normalizes else raw
    assert torch.allclose(found.action[:, 0], expected, atol=1e-6)


def test_the_end_of_the_task_is_marked_and_the_end_of_time_is_not(acting):
    buffers = Buffers(ring(episode(1, 3), episode(2, 3, terminated=True)))
    found = TransitionBatches(buffers, acting, Sampling(64, 64, seed=0)).at(0)
    before, _ = numbers(found)
    assert {b for b, done in zip(before, found.done.tolist(), strict=True) if done} == {202}


def test_pictures_move_by_at_most_the_shift_and_edges_repeat():
    from kata.rl.batches import shifted_frames

    frames = np.arange(2 * 5 * 6).reshape(2, 5, 6, 1).repeat(3, -1).astype(np.uint8)
    rows, moves = np.array([1, 0]), np.array([[2, -1], [0, 0]])
    found = shifted_frames(frames, rows, moves)
    padded = np.pad(frames, ((0, 0), (4, 4), (4, 4), (0, 0)), mode="edge")
    assert np.array_equal(found[0], padded[1, 4 + 2 : 9 + 2, 4 - 1 : 10 - 1])
    assert np.array_equal(found[1], frames[0])


def test_steps_of_humans_are_told_from_others(acting):
    online, demos = ring(episode(1, 20)), ring(episode(2, 6, human=range(6)))
    given = TransitionBatches(Buffers(online, [demos]), acting, Sampling(8, 4, seed=3)).at(0)
    assert given.shown.tolist() == [0.0] * 4 + [1.0] * 4


def test_own_steps_of_episodes_that_succeeded_are_shown_where_asked_for(acting):
    online = ring(episode(1, 20), episode(2, 20, success=True), episode(3, 20, success=False))
    for asked in (False, True):
        sampling = Sampling(16, 16, seed=3, clone_successes=asked)
        given = TransitionBatches(Buffers(online), acting, sampling).at(0)
        before, _ = numbers(given)
        assert {each // 100 for each in before} == {1, 2, 3}
        assert given.shown.tolist() == [float(asked and each // 100 == 2) for each in before]


def test_dropout_sets_its_share_to_zero_and_keeps_the_mean(acting):
    values = torch.ones(100, 100)
    for share in (0.0, 0.1, 0.4):
        sampling = Sampling(8, 8, seed=3, dropped=share)
        dropped = TransitionBatches(Buffers(ring(episode(1, 20))), acting, sampling).draws(0)
        found = dropped.dropout(values)
        assert abs((found == 0).float().mean() - share) < 0.02
        assert abs(found.mean() - 1) < 0.03
