"""The options of `kata train`, named and meant as in LeRobot's trainer. Torch-free.

A step is one optimizer update (LeRobot counts micro-batches). Impossible values are refused here,
before anything is opened.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from kata.config import BYTES, DURATION, REQUIRED, Options, option
from kata.errors import ConfigError
from kata.optim.config import AdamW8bitConfig, EmaConfig, OptimizerConfig, SchedulerConfig
from kata.policies.config import PolicyConfig
from kata.run.dataset import DatasetConfig
from kata.run.evaluation import EnvConfig, EvalConfig
from kata.run.parallel import (
    ENGINES,
    FORMATS,
    SCALINGS,
    DdpConfig,
    DeepSpeedConfig,
    FsdpConfig,
    ParallelismConfig,
    check_format,
    check_scaling,
)
from kata.run.peft import PeftConfig
from kata.run.tracking import TensorboardConfig, TrackioConfig, WandbConfig
from kata.units import duration_s

PRECISIONS = ("no", "bf16", "fp16")
ON_BAD_FRAME = ("stop", "substitute")
SEED_MAX = 2**64 - 1
"""The largest seed that torch takes."""


@dataclass(frozen=True, kw_only=True)
class AccumulationConfig(Options):
    """Micro-batches per step."""

    at: ClassVar[str] = "accelerator.gradient_accumulation."

    steps: int = option(1, "Micro-batches per step on each rank.", least=1)


@dataclass(frozen=True, kw_only=True)
class AcceleratorConfig(Options):
    """Precision and accumulation; LeRobot's names."""

    at: ClassVar[str] = "accelerator."

    mixed_precision: str = option(
        "no",
        "Precision of the forward pass; weights stay float32.",
        choices=PRECISIONS,
        is_common=True,
    )
    gradient_accumulation: AccumulationConfig = option(AccumulationConfig, "", may_change=True)


@dataclass(frozen=True, kw_only=True)
class Run(Options):
    """One training run.

    `batch_size` gives `global_batch_size` or the other way round, and both are written down when
    the run begins.
    """

    beside: ClassVar[dict[str, str]] = {
        "config": (
            "YAML or JSON file with any of these options, or a folder with train_config.json; "
            "flags win over it."
        )
    }

    dataset: DatasetConfig = option(REQUIRED, "", section="data")
    policy: PolicyConfig = option(
        REQUIRED, "Policy to train from the start.", section="policy", is_common=True
    )
    env: EnvConfig | None = option(
        None, "", section="evaluation in an environment", may_change=True
    )
    eval: EvalConfig = option(EvalConfig, "", may_change=True)
    output_dir: str | None = option(
        None,
        "Folder of the run; null makes one below outputs/train.",
        section="run",
        is_common=True,
        may_change=True,
    )
    job_name: str | None = option(
        None, "Name of the run in logs and trackers; null takes the policy's type.", may_change=True
    )
    resume: bool = option(
        False,
        "Continue the run in output_dir; start it where it has no checkpoint.",
        is_common=True,
        may_change=True,
    )
    seed: int = option(1000, "Seed of weights, order, noise and dropout.", least=0, most=SEED_MAX)
    cudnn_deterministic: bool = option(
        False,
        "Use cuDNN's deterministic kernels instead of searching for the fastest.",
        section="speed",
    )
    tf32: bool = option(True, "Allow TF32 tensor cores for float32 products on a GPU.")
    compile: bool = option(False, "Put the policy's blocks through torch.compile.", may_change=True)
    gradient_checkpointing: bool = option(
        False,
        "Recompute blocks in the backward pass (activation checkpointing): less memory, more time.",
        may_change=True,
    )
    num_workers: int = option(
        4, "Threads that read and decode, per rank.", least=1, is_common=True, may_change=True
    )
    prefetch_factor: int = option(4, "Batches that are read ahead.", least=1, may_change=True)
    batch_size: int = option(
        8,
        "Samples per rank in a micro-batch, which goes through the model at once. The flag takes "
        "auto for the largest that fits.",
        section="batch and ranks",
        least=1,
        is_common=True,
        may_change=True,
    )
    global_batch_size: int | None = option(
        None, "Samples of a step over all ranks; null follows from batch_size.", least=1
    )
    scale_lr: str = option(
        "none",
        "Multiply the learning rate by scale_lr_by, or by its root.",
        choices=SCALINGS,
    )
    scale_lr_by: float = option(
        0.0,
        "Ratio of the batch to the one that the learning rate was tuned for; 0 takes the number "
        "of ranks.",
        least=0,
    )
    dist_timeout: str = option(
        "10m", "Time that ranks wait for each other.", form=DURATION, may_change=True
    )
    engine: str = option(
        "auto",
        "Engine that combines the ranks' gradients; auto is accelerate where `accelerate launch` "
        "started them, else native PyTorch.",
        choices=ENGINES,
        may_change=True,
    )
    ddp: DdpConfig = option(DdpConfig, "")
    fsdp: FsdpConfig = option(FsdpConfig, "", may_change=True)
    deepspeed: DeepSpeedConfig = option(DeepSpeedConfig, "", may_change=True)
    parallelism: ParallelismConfig = option(ParallelismConfig, "", may_change=True)
    steps: int = option(
        100_000,
        "Optimizer updates of the run (LeRobot counts micro-batches).",
        section="training",
        least=1,
        is_common=True,
        may_change=True,
    )
    max_time: str | None = option(
        None,
        "Time after which this start saves and stops, such as 90s, 45m, 2h or 1d.",
        form=DURATION,
        may_change=True,
    )
    fit: str | None = option(
        None,
        "Memory, such as 24GB, that a step is made to fit by the least intrusive changes; options "
        "that are given stay.",
        form=BYTES,
        section="fine-tuning",
        may_change=True,
    )
    force: bool = option(
        False,
        "Start even if the plan says that a step does not fit the GPU.",
        section="training",
        may_change=True,
    )
    log_freq: int = option(
        200,
        "Steps between two lines of the log.",
        section="logging",
        least=1,
        is_common=True,
        may_change=True,
    )
    max_bad_steps: int = option(
        10,
        "Steps in a row with a loss or gradient that is not finite that stop the run; each is "
        "skipped.",
        section="training",
        least=1,
        may_change=True,
    )
    on_bad_frame: str = option(
        "stop",
        "Stop at a frame that cannot be decoded, or substitute another sample.",
        choices=ON_BAD_FRAME,
        may_change=True,
    )
    loss_spike: float = option(
        20.0,
        "Robust deviations above the recent losses from which a loss is reported; 0 reports none.",
        least=0,
        may_change=True,
    )
    env_eval_freq: int = option(
        20_000,
        "Steps between two evaluations in env; 0 evaluates after the last step alone.",
        section="evaluation in an environment",
        least=0,
        may_change=True,
    )
    env_eval_at_start: bool = option(False, "Evaluate the untrained policy too.", may_change=True)
    eval_steps: int = option(
        0,
        "Steps between two validations on the held-out episodes; 0 validates when saving.",
        section="validation",
        least=0,
        may_change=True,
    )
    max_eval_samples: int = option(
        0, "Frames of a validation, evenly spaced; 0 takes all.", least=0
    )
    save_checkpoint: bool = option(
        True, "Save checkpoints.", section="checkpoints", may_change=True
    )
    checkpoint_format: str = option(
        "auto",
        "Files of a checkpoint: LeRobot's safetensors, dcp in shards, or both; auto is both where "
        "weights are sharded, else safetensors.",
        choices=FORMATS,
        may_change=True,
    )
    checkpoint_frozen: str = option(
        "reference",
        "Write weights that stay as in policy.path as a reference to it, or whole. The last and "
        "the best checkpoint are whole.",
        choices=("reference", "whole"),
        may_change=True,
    )
    save_freq: int = option(
        20_000,
        "Steps between two checkpoints; 0 saves after the last step alone.",
        least=0,
        is_common=True,
        may_change=True,
    )
    keep_last: int = option(
        0,
        "Newest checkpoints that stay; with keep_every also 0, all stay.",
        least=0,
        may_change=True,
    )
    keep_every: int = option(
        0, "Checkpoints of each so many steps stay besides the newest.", least=0, may_change=True
    )
    keep_best: int = option(
        1,
        "Checkpoints of lowest validation error that stay; 0 keeps all.",
        least=0,
        may_change=True,
    )
    use_policy_training_preset: bool = option(
        True,
        "Take the optimizer and schedule of the policy's preset; --optimizer and --scheduler go "
        "over it.",
        section="optimizer",
    )
    optimizer: OptimizerConfig | None = option(None, "Optimizer; null takes the policy's preset.")
    scheduler: SchedulerConfig | None = option(
        None,
        "Learning-rate schedule; null takes the preset's, or a constant rate.",
        may_change=True,
    )
    ema: EmaConfig = option(EmaConfig, "")
    peft: PeftConfig | None = option(None, "", section="fine-tuning")
    missing_cameras: str = option(
        "refuse",
        "Refuse a camera of the base that the dataset lacks while it has others, or leave it out.",
        choices=("refuse", "leave_out"),
        may_change=True,
    )
    frozen_bits: int | None = option(
        None,
        "Bits in which the weights of frozen linear maps are held, 8 or 4 (NF4); null leaves them.",
        choices=(None, 8, 4),
    )
    accelerator: AcceleratorConfig = option(AcceleratorConfig, "", section="batch and ranks")
    rename_map: dict[str, str] = option(
        dict, "Keys of the dataset to keys of the policy, {old: new}.", section="data"
    )
    wandb: WandbConfig = option(WandbConfig, "", section="logging", may_change=True)
    tensorboard: TensorboardConfig = option(TensorboardConfig, "", may_change=True)
    trackio: TrackioConfig = option(TrackioConfig, "", may_change=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_scaling(self.scale_lr, self.scale_lr_by)
        _check_engine(self)
        uploads = self.policy.push_to_hub and self.policy.repo_id is not None
        check_format(self.checkpoint_format, uploaded=uploads)
        _check_adapters(self)
        _check_bits(self)
        if self.env is None and (self.env_eval_freq not in (0, 20_000) or self.env_eval_at_start):
            name = "env_eval_at_start" if self.env_eval_at_start else "env_eval_freq"
            raise ConfigError(
                f"{name}={self.env_eval_at_start or self.env_eval_freq}",
                rule="evaluating while training needs an environment",
                remedy="add --env.type=kata (or pusht, aloha, gym with --env.id)",
            )
        if self.dataset.mix is not None and self.rename_map:
            raise ConfigError(
                f"rename_map={self.rename_map}",
                rule="the datasets of a mixture are renamed one by one",
                remedy="move it into the entries of dataset.mix",
            )
        if self.dataset.eval_split == 0 and (self.eval_steps or self.max_eval_samples):
            name = "eval_steps" if self.eval_steps else "max_eval_samples"
            raise ConfigError(
                f"{name}={self.eval_steps or self.max_eval_samples}",
                rule="validation needs held-out episodes",
                remedy="add --dataset.eval_split=0.1",
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
        whole = self.mesh[1] == 1 or self.peft is not None
        chosen = "safetensors" if whole else "both"
        return chosen if self.checkpoint_format == "auto" else self.checkpoint_format

    @property
    def refers(self) -> bool:
        """True if checkpoints leave out what stays as in the base that the run started from."""
        is_chosen = self.checkpoint_frozen == "reference" or self.peft is not None
        has_base = self.policy.pretrained_path is not None
        return is_chosen and has_base and self.stored_as == "safetensors"

    @property
    def lr_scale(self) -> float:
        """The factor of the learning rate for a batch `scale_lr_by` times as large."""
        by = self.scale_lr_by or 1.0
        return {"none": 1.0, "linear": by, "sqrt": math.sqrt(by)}[self.scale_lr]

    @property
    def precision(self) -> str:
        """'no', 'bf16' or 'fp16'. The policy's own options decide unless stated otherwise."""
        stated = self.accelerator.mixed_precision
        return self.policy.own_precision() if stated == "no" else stated

    @property
    def name(self) -> str:
        """The run's name in logs and trackers."""
        return self.job_name or self.policy.type


def _check_adapters(run: Run) -> None:
    """Refuse an adapter that no checkpoint could hold, and the mark of one without options."""
    if run.policy.use_peft and run.peft is None:
        raise ConfigError(
            "policy.use_peft=true without options of peft",
            rule="the options of peft ask for an adapter",
            remedy="add --peft.r=16, or leave out --policy.use_peft",
        )
    if run.peft is not None and run.checkpoint_format in ("dcp", "both"):
        raise ConfigError(
            f"checkpoint_format={run.checkpoint_format} with peft",
            rule="an adapter is small, and is saved whole",
            remedy="--checkpoint_format=safetensors",
        )
    if run.peft is not None and run.deepspeed.zero_stage == 3:
        raise ConfigError(
            "deepspeed.zero_stage=3 with peft",
            rule="DeepSpeed's stage 3 takes the frozen base apart too, and cannot place adapters",
            remedy="--deepspeed.zero_stage=2, or FSDP2 (--parallelism.dp_shard)",
        )


def _check_bits(run: Run) -> None:
    """Refuse 8 and 4 bits where they cannot be held."""
    asked = {
        f"frozen_bits={run.frozen_bits}": run.frozen_bits is not None,
        "optimizer.type=adamw8bit": isinstance(run.optimizer, AdamW8bitConfig),
    }
    shared = run.parallelism.dp_shard != 1 or run.deepspeed.zero_stage > 0
    for name, is_asked in asked.items():
        if is_asked and shared:
            raise ConfigError(
                f"{name} with weights or states in shards",
                rule="numbers of 8 and 4 bits are held whole on each rank",
                remedy="leave out --parallelism.dp_shard and --deepspeed.zero_stage, or this",
            )
    if run.frozen_bits is not None and not run.refers:
        raise ConfigError(
            f"frozen_bits={run.frozen_bits} without a base that checkpoints refer to",
            rule="frozen weights in few bits are not saved: they are read from the base again",
            remedy="add --policy.path=<base>, and leave --checkpoint_frozen=reference and "
            "--checkpoint_format=safetensors",
        )


def _check_engine(run: Run) -> None:
    """Refuse options of an engine that is not used."""
    stage = run.deepspeed.zero_stage
    asked = {"deepspeed.zero_stage": stage > 0, "fsdp": run.fsdp != FsdpConfig()}
    for name, is_asked in asked.items():
        if is_asked and run.engine != "accelerate":
            raise ConfigError(
                f"{name} with engine={run.engine}",
                rule="these are options of Accelerate's engine",
                remedy="add --engine=accelerate",
            )
    is_sharded = run.parallelism.dp_shard != 1
    if run.fsdp != FsdpConfig() and not is_sharded:
        raise ConfigError(
            f"{run.fsdp} with parallelism.dp_shard=1",
            rule="these options say how weights are cut into shards",
            remedy="add --parallelism.dp_shard=-1",
        )
    if stage:
        _check_deepspeed(run, stage, is_sharded=is_sharded)


def _check_deepspeed(run: Run, stage: int, *, is_sharded: bool) -> None:
    if is_sharded:
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
            rule=(
                "DeepSpeed takes a missing gradient for zero, and this policy trains other "
                "parameters in each phase"
            ),
            remedy="launch it without DeepSpeed",
        )
