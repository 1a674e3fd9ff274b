"""The options of `kata train`, named and meant as in LeRobot's trainer. Torch-free.

A step is one optimiser update (LeRobot counts micro-batches). Impossible values are refused here, before anything is
opened.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

from kata.errors import ConfigError, did_you_mean
from kata.optim.config import EmaConfig, OptimizerConfig, SchedulerConfig
from kata.policies.config import PolicyConfig
from kata.run.checks import refused_option
from kata.run.dataset import DatasetConfig
from kata.run.evaluation import EnvConfig, EvalConfig
from kata.run.parallel import (
    ENGINES,
    DdpConfig,
    DeepSpeedConfig,
    FsdpConfig,
    ParallelismConfig,
    check_format,
    check_scaling,
)
from kata.run.tracking import TensorboardConfig, TrackioConfig, WandbConfig
from kata.units import duration_s


@dataclass(frozen=True, kw_only=True)
class AccumulationConfig:
    """Micro-batches per step."""

    steps: int = 1

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise refused_option(
                "accelerator.gradient_accumulation.steps",
                self.steps,
                "at least 1",
                "use 1 for none",
            )


@dataclass(frozen=True, kw_only=True)
class AcceleratorConfig:
    """Precision and accumulation; LeRobot's names."""

    mixed_precision: str = "no"
    gradient_accumulation: AccumulationConfig = field(default_factory=AccumulationConfig)

    def __post_init__(self) -> None:
        if self.mixed_precision == "False":  # YAML reads an unquoted no as false
            object.__setattr__(self, "mixed_precision", "no")
        if self.mixed_precision not in PRECISIONS:
            raise refused_option(
                "accelerator.mixed_precision",
                self.mixed_precision,
                f"one of: {', '.join(PRECISIONS)}",
                did_you_mean(self.mixed_precision, PRECISIONS),
            )


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run. `batch_size` is what one rank puts through the model at once, `global_batch_size` the samples
    of a step over all ranks; one gives the other, and both are written down when the run begins. `scale_lr` multiplies
    the learning rate by `scale_lr_by`, or its root; left at 0 that is the number of ranks. `dist_timeout` is how long
    ranks wait for each other. `engine` makes their gradients one: 'native' PyTorch, or 'accelerate'; 'auto' is the
    latter where `accelerate launch` started the ranks. `compile` puts the policy's blocks through torch.compile.

    Every `env_eval_freq` steps (0: after the last alone) the policy is evaluated in `env`, in processes beside the
    training; `env_eval_at_start` evaluates the untrained policy too. `max_time` ('90s', '45m', '2h', '1d' or seconds)
    saves and stops the run when it is over. `keep_last` newest checkpoints and those of each `keep_every` steps stay on
    the disk (both 0: all), and `keep_best` of lowest validation error (0: all). checkpoint_format: LeRobot's
    'safetensors', 'dcp' in pieces, 'both' for LeRobot's weights beside pieces to continue from, or 'auto': 'both' where
    weights are in pieces. A step whose loss or gradient is not finite is skipped; `max_bad_steps` of them in a row stop
    the run. A loss `loss_spike` robust deviations above the
    recent ones is reported (0: never). on_bad_frame: 'stop' at a frame that cannot be decoded, or 'substitute' another
    sample for that one.
    """

    dataset: DatasetConfig
    policy: PolicyConfig
    env: EnvConfig | None = None
    eval: EvalConfig = field(default_factory=EvalConfig)
    output_dir: str | None = None
    job_name: str | None = None
    resume: bool = False
    seed: int = 1000
    cudnn_deterministic: bool = False
    tf32: bool = True
    compile: bool = False
    gradient_checkpointing: bool = False
    num_workers: int = 4
    prefetch_factor: int = 4
    batch_size: int = 8
    global_batch_size: int | None = None
    scale_lr: str = "none"
    scale_lr_by: float = 0.0
    dist_timeout: str = "10m"
    engine: str = "auto"
    ddp: DdpConfig = field(default_factory=DdpConfig)
    fsdp: FsdpConfig = field(default_factory=FsdpConfig)
    deepspeed: DeepSpeedConfig = field(default_factory=DeepSpeedConfig)
    parallelism: ParallelismConfig = field(default_factory=ParallelismConfig)
    steps: int = 100_000
    max_time: str | None = None
    log_freq: int = 200
    max_bad_steps: int = 10
    on_bad_frame: str = "stop"
    loss_spike: float = 20.0
    env_eval_freq: int = 20_000
    env_eval_at_start: bool = False
    eval_steps: int = 0
    max_eval_samples: int = 0
    save_checkpoint: bool = True
    checkpoint_format: str = "auto"
    save_freq: int = 20_000
    keep_last: int = 0
    keep_every: int = 0
    keep_best: int = 1
    use_policy_training_preset: bool = True
    optimizer: OptimizerConfig | None = None
    scheduler: SchedulerConfig | None = None
    ema: EmaConfig = field(default_factory=EmaConfig)
    accelerator: AcceleratorConfig = field(default_factory=AcceleratorConfig)
    rename_map: dict[str, str] = field(default_factory=dict)
    wandb: WandbConfig = field(default_factory=WandbConfig)
    tensorboard: TensorboardConfig = field(default_factory=TensorboardConfig)
    trackio: TrackioConfig = field(default_factory=TrackioConfig)

    def __post_init__(self) -> None:
        at_least = {
            "steps": 1,
            "batch_size": 1,
            "num_workers": 1,
            "prefetch_factor": 1,
            "log_freq": 1,
        }
        at_least |= {"max_bad_steps": 1, "loss_spike": 0}
        at_least |= {"seed": 0, "eval_steps": 0, "max_eval_samples": 0, "env_eval_freq": 0}
        at_least |= {"keep_last": 0, "keep_every": 0, "keep_best": 0}
        for name, least in at_least.items():
            value = getattr(self, name)
            if value < least:
                raise refused_option(
                    name,
                    value,
                    f"a whole number of at least {least}",
                    f"for example --{name}={max(1, least)}",
                )
        if self.on_bad_frame not in ON_BAD_FRAME:
            raise refused_option(
                "on_bad_frame",
                self.on_bad_frame,
                f"one of: {', '.join(ON_BAD_FRAME)}",
                did_you_mean(self.on_bad_frame, ON_BAD_FRAME),
            )
        for name, time in (("max_time", self.max_time), ("dist_timeout", self.dist_timeout)):
            if time is not None and not duration_s(time) > 0:
                raise refused_option(
                    name, time, "seconds, or a number with s, m, h or d", f"for example --{name}=2h"
                )
        if self.global_batch_size is not None and self.global_batch_size < 1:
            raise refused_option(
                "global_batch_size", self.global_batch_size, "at least 1", "for example 64"
            )
        check_scaling(self.scale_lr, self.scale_lr_by)
        _check_engine(self)
        check_format(
            self.checkpoint_format,
            uploaded=self.policy.push_to_hub and self.policy.repo_id is not None,
        )
        if self.env is None and (self.env_eval_freq not in (0, 20_000) or self.env_eval_at_start):
            raise refused_option(
                "env_eval_at_start" if self.env_eval_at_start else "env_eval_freq",
                self.env_eval_at_start or self.env_eval_freq,
                "evaluating while training needs an environment",
                "add --env.type=kata (or pusht, aloha, gym with --env.id)",
            )
        if self.dataset.mix is not None and self.rename_map:
            raise refused_option(
                "rename_map",
                self.rename_map,
                "the datasets of a mixture are renamed one by one",
                "move it into the entries of dataset.mix",
            )
        if self.dataset.eval_split == 0 and (self.eval_steps or self.max_eval_samples):
            raise refused_option(
                "eval_steps" if self.eval_steps else "max_eval_samples",
                self.eval_steps or self.max_eval_samples,
                "validation needs held-out episodes",
                "add --dataset.eval_split=0.1",
            )

    @property
    def max_time_s(self) -> float | None:
        """`max_time` in seconds."""
        return None if self.max_time is None else duration_s(self.max_time)

    @property
    def accumulation(self) -> int:
        """Micro-batches per step."""
        return self.accelerator.gradient_accumulation.steps

    @property
    def effective_batch(self) -> int:
        """Samples per step: batch x ranks x accumulation."""
        return self.global_batch_size or self.batch_size * self.accumulation

    @property
    def ranks(self) -> int:
        """Ranks that the samples of a step are shared out among."""
        return self.effective_batch // (self.batch_size * self.accumulation)

    @property
    def mesh(self) -> tuple[int, int]:
        """Copies of the policy, and ranks that share one."""
        return self.parallelism.mesh(self.ranks)

    @property
    def stored_as(self) -> str:
        """'safetensors', 'dcp' or 'both': what a checkpoint holds the state as."""
        chosen = "safetensors" if self.mesh[1] == 1 else "both"
        return chosen if self.checkpoint_format == "auto" else self.checkpoint_format

    @property
    def lr_scale(self) -> float:
        """What the learning rate is multiplied by for a batch `scale_lr_by` times as large."""
        by = self.scale_lr_by or 1.0
        return {"none": 1.0, "linear": by, "sqrt": math.sqrt(by)}[self.scale_lr]

    @property
    def precision(self) -> str:
        """'no', 'bf16' or 'fp16'. LeRobot's `policy.use_amp` asks for bf16 where nothing else is said."""
        stated = self.accelerator.mixed_precision
        return "bf16" if stated == "no" and self.policy.use_amp else stated

    @property
    def name(self) -> str:
        """The run's name in logs and trackers."""
        return self.job_name or self.policy.type


def _check_engine(run: Run) -> None:
    """ConfigError for an engine that there is not, and for options of another one."""
    if run.engine not in ENGINES:
        raise ConfigError(
            f"engine={run.engine}",
            rule=f"one of: {', '.join(ENGINES)}",
            remedy=did_you_mean(run.engine, ENGINES),
        )
    stage = run.deepspeed.zero_stage
    asked = {"deepspeed.zero_stage": stage > 0, "fsdp": run.fsdp != FsdpConfig()}
    for name, is_asked in asked.items():
        if is_asked and run.engine != "accelerate":
            raise ConfigError(
                f"{name} with engine={run.engine}",
                rule="these are options of Accelerate's engine",
                remedy="add --engine=accelerate",
            )
    pieces = run.parallelism.dp_shard != 1
    if run.fsdp != FsdpConfig() and not pieces:
        raise ConfigError(
            f"{run.fsdp} with parallelism.dp_shard=1",
            rule="these options say how weights are cut into pieces",
            remedy="add --parallelism.dp_shard=-1",
        )
    if stage:
        _check_deepspeed(run, stage, pieces=pieces)


def _check_deepspeed(run: Run, stage: int, *, pieces: bool) -> None:
    if pieces:
        raise ConfigError(
            f"parallelism.dp_shard={run.parallelism.dp_shard} with deepspeed.zero_stage={stage}",
            rule="one of them shares out the weights",
            remedy="leave out one of the two",
        )
    if run.checkpoint_format in ("dcp", "both"):
        raise ConfigError(
            f"checkpoint_format={run.checkpoint_format} with deepspeed.zero_stage={stage}",
            rule="what DeepSpeed shares out is saved whole",
            remedy="--checkpoint_format=safetensors",
        )
    if run.precision == "fp16":
        raise ConfigError(
            f"accelerator.mixed_precision=fp16 with deepspeed.zero_stage={stage}",
            rule="kata scales no losses for DeepSpeed",
            remedy="bf16, or no",
        )
    if run.ema.enable and stage == 3:
        raise ConfigError(
            "ema.enable=true with deepspeed.zero_stage=3",
            rule="an average needs the whole weights on each rank, which stage 3 takes apart",
            remedy="--deepspeed.zero_stage=2, or FSDP2 (--parallelism.dp_shard)",
        )
    if run.policy.loss_changes_after() > 0:
        raise ConfigError(
            f"policy {run.policy.type} with deepspeed.zero_stage={stage}",
            rule="DeepSpeed takes a missing gradient for zero, and this policy trains other parameters in each phase",
            remedy="launch it without DeepSpeed",
        )


PRECISIONS = ("no", "bf16", "fp16")


ON_BAD_FRAME = ("stop", "substitute")
