"""Options of optimisers and schedules, with LeRobot's names, types and defaults. Torch-free."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any, ClassVar

from kata.errors import ConfigError, did_you_mean


@dataclass(frozen=True, kw_only=True)
class Choice:
    """A config chosen by its `type` key; speaks the flag parser's choice protocol without importing it.

    Each family adds `default_choice_name` itself: the parser takes the topmost class with the whole protocol for
    the family, and that must not be this one.
    """

    choices: ClassVar[dict[str, Any]]
    type_name: ClassVar[str] = ""
    what: ClassVar[str] = ""

    @property
    def type(self) -> str:
        """The name under which flags and files choose this class."""
        return self.type_name

    @classmethod
    def get_choice_class(cls, name: str) -> type[Choice]:
        """The class called `name`; ConfigError with the nearest name for an unknown one."""
        if name not in cls.choices:
            raise ConfigError(
                f"{cls.what}.type={name}: unknown",
                rule=f"one of: {', '.join(sorted(cls.choices))}",
                remedy=did_you_mean(name, cls.choices),
            )
        return cls.choices[name]

    @classmethod
    def get_known_choices(cls) -> dict[str, type[Choice]]:
        """Every class by name."""
        return cls.choices

    @classmethod
    def get_choice_name(cls, subcls: type[Choice]) -> str:
        """The name of a class; ValueError for the base itself, which has none."""
        if not subcls.type_name:
            raise ValueError(f"{subcls.__name__} is chosen by its type")
        return subcls.type_name


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig(Choice):
    """Base of the optimisers. Gradients are clipped to `grad_clip_norm` (0: not clipped)."""

    choices: ClassVar[dict[str, Any]] = {}
    what: ClassVar[str] = "optimizer"
    lr: float = 1e-3
    weight_decay: float = 0.0
    grad_clip_norm: float = 10.0

    @classmethod
    def default_choice_name(cls) -> str | None:
        """No default: a type is named, or the policy's preset gives it."""
        return None

    def __post_init__(self) -> None:
        for name in ("lr", "weight_decay", "grad_clip_norm"):
            value = getattr(self, name)
            if not 0 <= value < float("inf"):
                raise ConfigError(
                    f"optimizer.{name}={value}",
                    rule="a finite number of at least 0",
                    remedy="give one",
                )


@dataclass(frozen=True, kw_only=True)
class AdamConfig(OptimizerConfig):
    """torch.optim.Adam."""

    type_name: ClassVar[str] = "adam"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8


@dataclass(frozen=True, kw_only=True)
class AdamWConfig(OptimizerConfig):
    """torch.optim.AdamW."""

    type_name: ClassVar[str] = "adamw"
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 1e-2


@dataclass(frozen=True, kw_only=True)
class SGDConfig(OptimizerConfig):
    """torch.optim.SGD."""

    type_name: ClassVar[str] = "sgd"
    momentum: float = 0.0
    dampening: float = 0.0
    nesterov: bool = False


OptimizerConfig.choices.update({c.type_name: c for c in (AdamConfig, AdamWConfig, SGDConfig)})


@dataclass(frozen=True, kw_only=True)
class SchedulerConfig(Choice):
    """Base of the learning-rate schedules."""

    choices: ClassVar[dict[str, Any]] = {}
    what: ClassVar[str] = "scheduler"
    num_warmup_steps: int = 0

    @classmethod
    def default_choice_name(cls) -> str | None:
        """No default: without a type the learning rate is constant."""
        return None

    def fitted(self, steps: int) -> tuple[SchedulerConfig, str]:
        """This schedule shortened so that it ends by the last step, and a sentence saying so ('' when unchanged)."""
        if self.num_warmup_steps <= steps:
            return self, ""
        return dataclasses.replace(self, num_warmup_steps=steps), (
            f"warm-up shortened from {self.num_warmup_steps} to {steps} steps, the length of the run"
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
    """The schedules that the diffusers library calls 'cosine', 'linear', 'constant' and 'constant_with_warmup'."""

    type_name: ClassVar[str] = "diffuser"
    name: str = "cosine"

    def __post_init__(self) -> None:
        known = ("cosine", "linear", "constant", "constant_with_warmup")
        if self.name not in known:
            raise ConfigError(
                f"scheduler.name={self.name}",
                rule=f"one of: {', '.join(known)}",
                remedy=did_you_mean(self.name, known),
            )


@dataclass(frozen=True, kw_only=True)
class CosineDecayWithWarmupConfig(SchedulerConfig):
    """Warm-up from 1/(w+1), then cosine from `peak_lr` to `decay_lr` at `num_decay_steps`, constant after it.

    Progress counts from step 0, not from the end of the warm-up, as in LeRobot and openpi.
    """

    type_name: ClassVar[str] = "cosine_decay_with_warmup"
    num_warmup_steps: int = 1000
    num_decay_steps: int = 30_000
    peak_lr: float = 1e-4
    decay_lr: float = 2.5e-6

    def __post_init__(self) -> None:
        if self.num_decay_steps <= 0 or self.peak_lr <= 0:
            raise ConfigError(
                f"scheduler.num_decay_steps={self.num_decay_steps}, scheduler.peak_lr={self.peak_lr}",
                rule="both above 0",
                remedy="give positive values",
            )

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

    As in LeRobot the cosine is stretched over all steps of the run, although it begins late, and never quite reaches
    zero; `decay_to_zero` lets it end with the run.
    """

    type_name: ClassVar[str] = "vqbet"
    num_warmup_steps: int = 500
    num_vqvae_training_steps: int = 20_000
    num_cycles: float = 0.5
    decay_to_zero: bool = False

    def fitted(self, steps: int) -> tuple[SchedulerConfig, str]:
        """With a warm-up that ends by the last step."""
        room = max(0, steps - self.num_vqvae_training_steps)
        if self.num_warmup_steps <= room:
            return self, ""
        return dataclasses.replace(self, num_warmup_steps=room), (
            f"warm-up shortened from {self.num_warmup_steps} to {room} steps, those left after the codes are learnt"
        )


SchedulerConfig.choices.update(
    {
        c.type_name: c
        for c in (
            ConstantWithWarmupConfig,
            CosineAnnealingWithWarmupConfig,
            DiffuserSchedulerConfig,
            CosineDecayWithWarmupConfig,
            VQBeTSchedulerConfig,
        )
    }
)


@dataclass(frozen=True, kw_only=True)
class EmaConfig:
    """Exponential moving average of the weights; LeRobot's names.

    The decay at update k is `1 - (1 + k / inv_gamma) ** -power`, kept in [min_decay, max_decay]; `decay` fixes it.
    """

    enable: bool = False
    decay: float | None = None
    update_after_step: int = 0
    inv_gamma: float = 1.0
    power: float = 0.75
    min_decay: float = 0.0
    max_decay: float = 0.9999
    use_for_eval: bool = True

    def __post_init__(self) -> None:
        decays = [d for d in (self.decay, self.min_decay, self.max_decay) if d is not None]
        if (
            self.inv_gamma <= 0
            or self.update_after_step < 0
            or any(not 0 <= d <= 1 for d in decays)
        ):
            raise ConfigError(
                f"ema: decay={self.decay}, min_decay={self.min_decay}, max_decay={self.max_decay}, "
                f"inv_gamma={self.inv_gamma}, update_after_step={self.update_after_step}",
                rule="decays in [0, 1], inv_gamma above 0, update_after_step at least 0",
                remedy="leave the defaults unless a paper says otherwise",
            )
