"""The engine of a run."""

from __future__ import annotations

import torch

from kata.dist.accelerate import AcceleratedDdp, AcceleratedShards
from kata.dist.deepspeed import Zero
from kata.dist.engine import Ddp, Engine
from kata.dist.process_group import ProcessGroup
from kata.dist.shard import Sharded
from kata.run import Run


def open_engine(run: Run, device: torch.device, group: ProcessGroup) -> Engine:
    """Return the engine that combines the gradients of this run's ranks. Collective."""
    copies, shards = run.mesh
    if run.deepspeed.zero_stage:
        assert run.optimizer is not None
        norm, settings = run.optimizer.grad_clip_norm, run.deepspeed.settings
        return Zero(group, device, accumulation=run.accumulation, max_norm=norm, settings=settings)
    accelerated = run.engine == "accelerate"
    if shards > 1:
        if accelerated:
            return AcceleratedShards(group, device, copies=copies, shards=shards, cut=run.fsdp)
        return Sharded(group, device, copies=copies, shards=shards)
    if copies == 1:
        return Engine(group, device)
    ddp = AcceleratedDdp if accelerated else Ddp
    return ddp(
        group,
        device,
        bucket_mb=run.ddp.bucket_mb,
        bf16=run.ddp.compression == "bf16",
        changes=run.policy.loss_changes_after() > 0,
    )
