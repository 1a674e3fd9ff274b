"""Flow matching: the path, both conventions, the integrators, and the times."""

import math

import pytest
import torch

from kata.nn.flow import beta_quantile, between, facing_data, integrate, velocity

CLEAN = torch.tensor([[1.0, -2.0], [0.5, 3.0]])
NOISE = torch.tensor([[0.3, 0.1], [-1.0, 2.0]])


@pytest.mark.parametrize("spread", [0.0, 0.2])
def test_the_velocity_is_the_slope_of_the_way_from_noise_to_data(spread):
    assert torch.equal(between(CLEAN, NOISE, torch.zeros(2), spread), NOISE)
    torch.testing.assert_close(between(CLEAN, NOISE, torch.ones(2), spread), CLEAN + spread * NOISE)
    time = torch.tensor([0.3, 0.8], dtype=torch.float64)
    clean, noise = CLEAN.double(), NOISE.double()
    slope = (
        between(clean, noise, time + 1e-4, spread) - between(clean, noise, time - 1e-4, spread)
    ) / 2e-4
    torch.testing.assert_close(slope, velocity(clean, noise, spread))


def test_a_network_of_the_other_convention_leads_to_the_data():
    def towards_noise(x, time):  # noise at 1: x = t * noise + (1 - t) * clean
        torch.testing.assert_close(x, time[:, None] * NOISE + (1 - time[:, None]) * CLEAN)
        return NOISE - CLEAN

    torch.testing.assert_close(integrate(facing_data(towards_noise), NOISE, 5, "euler"), CLEAN)


@pytest.mark.parametrize(("method", "order"), [("euler", 1), ("rk4", 4)])
def test_integrators_have_their_order(method, order):
    start = torch.ones(1, 1, dtype=torch.float64)

    def error(steps):
        return abs(
            integrate(lambda x, t: x * (1 + t[:, None]), start, steps, method).item()
            - math.exp(1.5)
        )

    assert math.log2(error(16) / error(32)) == pytest.approx(order, abs=0.2)


@pytest.mark.parametrize(
    ("alpha", "beta"), [(1.5, 1.0), (1.0, 3.0), (2.0, 2.0), (0.5, 0.5), (0.3, 4.0), (5.0, 1.5)]
)
def test_times_follow_the_beta_distribution(alpha, beta):
    share = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    drawn = beta_quantile(share, alpha, beta)
    assert (drawn.diff() >= 0).all()
    assert drawn.mean().item() == pytest.approx(alpha / (alpha + beta), abs=1e-4)
    spread = alpha * beta / ((alpha + beta) ** 2 * (alpha + beta + 1))
    assert drawn.var().item() == pytest.approx(spread, rel=1e-3)


def test_known_quantiles():
    share = torch.linspace(0, 0.999, 50, dtype=torch.float64)
    torch.testing.assert_close(
        beta_quantile(share, 0.5, 0.5), (share * math.pi / 2).sin() ** 2, rtol=0, atol=1e-6
    )
    torch.testing.assert_close(beta_quantile(share, 1.5, 1.0), share ** (1 / 1.5))
