"""Learning rates as closed forms of the step: nothing to save, nothing to replay. Torch-free."""

from __future__ import annotations

import math

from kata.optim.config import (
    ConstantWithWarmupConfig,
    CosineDecayWithWarmupConfig,
    DiffuserSchedulerConfig,
    SchedulerConfig,
    VQBeTSchedulerConfig,
)


def lr_factor(config: SchedulerConfig | None, step: int, steps: int) -> float:
    """Return the factor of the base learning rate for update `step` (0 is the first) of `steps`.

    Equal to LeRobot's lambdas of the same names. No config means a constant rate.
    """
    if config is None:
        return 1.0
    if isinstance(config, CosineDecayWithWarmupConfig):
        return _cosine_decay(config, step)
    if isinstance(config, VQBeTSchedulerConfig):
        return _after_codes(config, step, steps)
    warmup = config.num_warmup_steps
    if isinstance(config, DiffuserSchedulerConfig) and config.name == "constant":
        return 1.0
    if step < warmup:
        return step / max(1, warmup)
    if isinstance(config, ConstantWithWarmupConfig):
        return 1.0
    progress = (step - warmup) / max(1, steps - warmup)
    if isinstance(config, DiffuserSchedulerConfig) and config.name != "cosine":
        return 1.0 if config.name == "constant_with_warmup" else max(0.0, 1.0 - progress)
    return max(0.0, 0.5 * (1.0 + math.cos(math.pi * progress)))


def _cosine_decay(config: CosineDecayWithWarmupConfig, step: int) -> float:
    warmup = config.num_warmup_steps
    if step < warmup:
        first = 1 / (warmup + 1)
        return first + (1 - first) * step / warmup
    floor = config.decay_lr / config.peak_lr
    progress = min(step, config.num_decay_steps) / config.num_decay_steps
    return floor + (1 - floor) * 0.5 * (1 + math.cos(math.pi * progress))


def _after_codes(config: VQBeTSchedulerConfig, step: int, steps: int) -> float:
    since, warmup = step - config.num_vqvae_training_steps, config.num_warmup_steps
    if since < 0:
        return 1.0
    if since < warmup:
        return since / max(1, warmup)
    length = steps - warmup - (config.num_vqvae_training_steps if config.decay_to_zero else 0)
    return max(
        0.0,
        0.5 * (1.0 + math.cos(2 * math.pi * config.num_cycles * (since - warmup) / max(1, length))),
    )
