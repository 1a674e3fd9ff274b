"""The horizon follows from the bytes that steps take."""

from kata.data.frames.fetch_horizon import FetchHorizon


def test_the_pool_is_full_at_the_horizon() -> None:
    horizon = FetchHorizon()
    assert horizon.steps(10**6) == 0
    for _ in range(50):
        horizon.count(16, 16_000)
    assert horizon.steps(10**6) in (999, 1000)
    for _ in range(400):
        horizon.count(16, 32_000)
    assert 499 <= horizon.steps(10**6) <= 501, "the latest counts weigh most"
