import pytest

from kata.optim.config import (
    ConstantWithWarmupConfig,
    CosineAnnealingWithWarmupConfig,
    CosineDecayWithWarmupConfig,
    DiffuserSchedulerConfig,
    EmaConfig,
    VQBeTSchedulerConfig,
)
from kata.optim.ema import ema_decay
from kata.optim.schedule import lr_factor

# Values of LeRobot 0.6.1's lambdas of the same names.
KNOWN = [
    (CosineDecayWithWarmupConfig(), 0, 30_000, 1 / 1001),
    (CosineDecayWithWarmupConfig(), 500, 30_000, 0.5004995004995005),
    (CosineDecayWithWarmupConfig(), 1000, 30_000, 0.9973294239920333),
    (CosineDecayWithWarmupConfig(), 30_000, 30_000, 0.025),
    (CosineDecayWithWarmupConfig(), 90_000, 120_000, 0.025),
    (DiffuserSchedulerConfig(num_warmup_steps=500), 0, 10_000, 0.0),
    (DiffuserSchedulerConfig(num_warmup_steps=500), 250, 10_000, 0.5),
    (DiffuserSchedulerConfig(num_warmup_steps=500), 5250, 10_000, 0.5),
    (DiffuserSchedulerConfig(num_warmup_steps=500), 10_000, 10_000, 0.0),
    (DiffuserSchedulerConfig(name="linear"), 2500, 10_000, 0.75),
    (ConstantWithWarmupConfig(num_warmup_steps=10), 5, 100, 0.5),
    (ConstantWithWarmupConfig(num_warmup_steps=10), 99, 100, 1.0),
    (CosineAnnealingWithWarmupConfig(num_warmup_steps=0), 50, 100, 0.5),
    (None, 3, 10, 1.0),
    (VQBeTSchedulerConfig(), 19_999, 100_000, 1.0),
    (VQBeTSchedulerConfig(), 20_000, 100_000, 0.0),
    (VQBeTSchedulerConfig(), 20_250, 100_000, 0.5),
    (VQBeTSchedulerConfig(), 60_000, 100_000, 0.6590057681196191),
    (VQBeTSchedulerConfig(), 100_000, 100_000, 0.09642144811900738),
]


@pytest.mark.parametrize(("config", "step", "steps", "factor"), KNOWN)
def test_factors_are_lerobots(config, step, steps, factor):
    assert lr_factor(config, step, steps) == pytest.approx(factor, abs=1e-9)


def test_a_schedule_fitted_to_the_run_ends_at_its_floor():
    fitted, note = CosineDecayWithWarmupConfig().fitted(1000)
    assert lr_factor(fitted, 1000, 1000) == pytest.approx(0.025)
    assert "1000" in note


def test_vqbets_cosine_ends_at_zero_where_it_is_asked_to():
    config = VQBeTSchedulerConfig(
        num_warmup_steps=10, num_vqvae_training_steps=100, decay_to_zero=True
    )
    assert lr_factor(config, 110, 200) == 1.0
    assert lr_factor(config, 155, 200) == pytest.approx(0.5)
    assert lr_factor(config, 200, 200) == pytest.approx(0.0)


def test_the_averages_decay_follows_the_diffusers_curve():
    config = EmaConfig(enable=True)
    assert [ema_decay(config, step) for step in (1, 2)] == pytest.approx([0.0, 1 - 2**-0.75])
    assert ema_decay(config, 10**9) == 0.9999
    assert ema_decay(EmaConfig(enable=True, decay=0.5), 7) == 0.5
    assert ema_decay(EmaConfig(enable=True, update_after_step=10), 11) == 0.0
