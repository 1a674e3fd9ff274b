"""Options of optimisers and schedules, with LeRobot's names, types and defaults. Torch-free."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from kata.config import Chosen, Options, option


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Chosen):
    """Base of the optimizers."""

    at: ClassVar[str] = "optimizer."
    lr: float = option(
        1e-3, "Learning rate, where a schedule starts from or peaks.", least=0, is_common=True
    )
    weight_decay: float = option(0.0, "Weight decay.", least=0)
    grad_clip_norm: float = option(
        10.0, "Norm that gradients are clipped to; 0 leaves them as they are.", least=0
    )


@dataclass(frozen=True, kw_only=True)
class AdamConfig(OptimizerConfig):
    """torch.optim.Adam."""

    type_name: ClassVar[str] = "adam"
    betas: tuple[float, float] = option(
        (0.9, 0.999), "Decay of the running means of gradient and square.", least=0, below=1
    )
    eps: float = option(1e-8, "Added to the denominator.", above=0)


@dataclass(frozen=True, kw_only=True)
class AdamWConfig(AdamConfig):
    """torch.optim.AdamW."""

    type_name: ClassVar[str] = "adamw"
    weight_decay: float = 1e-2


@dataclass(frozen=True, kw_only=True)
class AdamW8bitConfig(AdamWConfig):
    """AdamW with its state in 8 bits, through the package bitsandbytes."""

    type_name: ClassVar[str] = "adamw8bit"


@dataclass(frozen=True, kw_only=True)
class SGDConfig(OptimizerConfig):
    """torch.optim.SGD."""

    type_name: ClassVar[str] = "sgd"
    momentum: float = option(0.0, "Momentum.", least=0)
    dampening: float = option(0.0, "Dampening of the momentum.")
    nesterov: bool = option(False, "Nesterov momentum.")


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig(Chosen):
    """Base of the learning-rate schedules."""

    at: ClassVar[str] = "scheduler."
    num_warmup_steps: int = option(0, "Steps in which the learning rate rises linearly.", least=0)

    def fitted(self, steps: int) -> tuple[SchedulerConfig, str]:
        """Return this schedule shortened to the run, and a sentence about it ('' if unchanged)."""
        if self.num_warmup_steps <= steps:
            return self, ""
        return dataclasses.replace(self, num_warmup_steps=steps), (
            f"warm-up shortened from {self.num_warmup_steps} to {steps} steps, the length of the "
            "run"
        )


@dataclass(frozen=True, kw_only=True)
class ConstantWithWarmupConfig(SchedulerConfig):
    """Linear warm-up, then constant."""

    type_name: ClassVar[str] = "constant_with_warmup"
    num_warmup_steps: int = 1000


@dataclass(frozen=True, kw_only=True)
class CosineAnnealingWithWarmupConfig(SchedulerConfig):
    """Linear warm-up, then cosine to zero at the last step of the run."""

    type_name: ClassVar[str] = "cosine_annealing_with_warmup"


@dataclass(frozen=True, kw_only=True)
class DiffuserSchedulerConfig(SchedulerConfig):
    """The schedules of diffusers: 'cosine', 'linear', 'constant' and 'constant_with_warmup'."""

    type_name: ClassVar[str] = "diffuser"
    name: str = option(
        "cosine",
        "Course of the learning rate after the warm-up.",
        choices=("cosine", "linear", "constant", "constant_with_warmup"),
    )


@dataclass(frozen=True, kw_only=True)
class CosineDecayWithWarmupConfig(SchedulerConfig):
    """Warm-up from 1/(w+1), then cosine from `peak_lr` to `decay_lr`, then constant.

    Progress counts from step 0, not from the end of the warm-up, as in LeRobot and openpi.
    """

    type_name: ClassVar[str] = "cosine_decay_with_warmup"
    num_warmup_steps: int = 1000
    num_decay_steps: int = option(
        30_000, "Step at which decay_lr is reached; shortened to a shorter run.", least=1
    )
    peak_lr: float = option(1e-4, "Learning rate at the end of the warm-up.", above=0)
    decay_lr: float = option(2.5e-6, "Learning rate from num_decay_steps on.", least=0)

    def fitted(self, steps: int) -> tuple[SchedulerConfig, str]:
        """Warm-up and decay scaled together when the decay would end after the last step."""
        if steps >= self.num_decay_steps:
            return self, ""
        warmup = int(self.num_warmup_steps * steps / self.num_decay_steps)
        return dataclasses.replace(self, num_warmup_steps=warmup, num_decay_steps=steps), (
            f"schedule shortened to the run: decay {self.num_decay_steps} -> {steps} steps, "
            f"warm-up {self.num_warmup_steps} -> {warmup}"
        )


@dataclass(frozen=True, kw_only=True)
class VQBeTSchedulerConfig(SchedulerConfig):
    """Constant while VQ-BeT learns its codes, then warm-up from zero, then cosine.

    As in LeRobot, the cosine spans all steps of the run although it begins late, and so never
    reaches zero. `decay_to_zero` lets it end with the run.
    """

    type_name: ClassVar[str] = "vqbet"
    num_warmup_steps: int = 500
    num_vqvae_training_steps: int = option(
        20_000, "Steps of constant rate, in which the codes are learnt.", least=0
    )
    num_cycles: float = option(0.5, "Waves of the cosine; 0.5 falls once.")
    decay_to_zero: bool = option(False, "Let the cosine end with the run.")

    def fitted(self, steps: int) -> tuple[SchedulerConfig, str]:
        """With a warm-up that ends by the last step."""
        room = max(0, steps - self.num_vqvae_training_steps)
        if self.num_warmup_steps <= room:
            return self, ""
        return dataclasses.replace(self, num_warmup_steps=room), (
            f"warm-up shortened from {self.num_warmup_steps} to {room} steps, those left after the "
            "codes are learnt"
        )


@dataclass(frozen=True, kw_only=True)
class EmaConfig(Options):
    """Exponential moving average of the weights; LeRobot's names.

    The decay at update k is `1 - (1 + k / inv_gamma) ** -power`, clamped to [min_decay, max_decay].
    `decay` fixes it.
    """

    at: ClassVar[str] = "ema."
    enable: bool = option(
        False, "Keep an exponential moving average (EMA) of the weights.", is_common=True
    )
    decay: float | None = option(
        None, "Decay of the average; null lets it rise by inv_gamma and power.", least=0, most=1
    )
    update_after_step: int = option(0, "Steps before the average begins.", least=0)
    inv_gamma: float = option(1.0, "Updates in which the rising decay gets going.", above=0)
    power: float = option(0.75, "Exponent of the rising decay.")
    min_decay: float = option(0.0, "Lower limit of the rising decay.", least=0, most=1)
    max_decay: float = option(0.9999, "Upper limit of the rising decay.", least=0, most=1)
    use_for_eval: bool = option(True, "Evaluate with the average instead of the weights.")
