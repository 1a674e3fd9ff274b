"""Which engine brings the gradients of several ranks together, and what goes with it. Torch-free."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kata.errors import ConfigError, did_you_mean
from kata.run.fsdp import FsdpConfig

if TYPE_CHECKING:
    from kata.run.options import Run

ENGINES = ("auto", "native", "accelerate")


def check_engine(run: Run) -> None:
    """ConfigError for an engine that there is not, and for options of another one."""
    if run.engine not in ENGINES:
        raise ConfigError(
            f"engine={run.engine}", rule=f"one of: {', '.join(ENGINES)}", remedy=did_you_mean(run.engine, ENGINES)
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
