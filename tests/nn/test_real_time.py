"""Continuations of chunks: weights, bounds, and actions that are given.

`tests/policies/test_golden.py` compares whole chunks with LeRobot's.
"""

import math

import pytest
import torch

from kata.nn.real_time import Given, euler_from_noise, guidance_weight, prefix_weights

RAMP = torch.tensor([0.75, 0.5, 0.25])


@pytest.mark.parametrize(
    ("schedule", "between"),
    [
        ("ZEROS", torch.zeros(3)),
        ("ONES", torch.ones(3)),
        ("LINEAR", RAMP),
        ("EXP", RAMP * (RAMP.exp() - 1) / (math.e - 1)),
    ],
)
def test_actions_follow_fully_then_less_then_not_at_all(schedule, between):
    weights = prefix_weights(schedule, 2, 5, 7)
    torch.testing.assert_close(weights, torch.cat((torch.ones(2), between, torch.zeros(2))))
    assert prefix_weights(schedule, 9, 3, 4).tolist() == [1, 1, 1, 0]  # no longer than the horizon
    assert prefix_weights(schedule, 0, 9, 4).shape == (4,)  # no longer than the chunk


def test_guidance_is_bounded_at_the_noise_and_fades():
    found = [guidance_weight(time, 5.0) for time in (1.0, 0.99, 0.5, 0.1)]
    assert found[:2] == [5.0, 5.0]
    assert found[2] == pytest.approx(1 * (0.25 + 0.25) / 0.25)
    assert found[3] == 5.0  # the variance of the clean actions is small there


def test_given_actions_come_back_unchanged_and_hold_no_noise():
    actions, mask = torch.full((2, 4, 3), 7.0), torch.tensor([[True, True, False, False]] * 2)
    times = []

    def network(x, time):
        times.append(time)
        assert (x[mask] == 7).all()
        return torch.ones_like(x)

    noise = torch.zeros(2, 4, 3)
    found = euler_from_noise(network, noise, 4, given=Given(actions, mask))
    assert (found[mask] == 7).all()
    torch.testing.assert_close(found[~mask], torch.full((4, 3), -1.0))
    assert [time[0].tolist() for time in times] == [[0, 0, at, at] for at in (1.0, 0.75, 0.5, 0.25)]
