"""Hugging Face Accelerate (extra `accelerate`) as an engine: it wraps the policy, and the loop stays kata's own.

Accelerate averages gradients over ranks, as what it wraps does; kata's losses are sums and are multiplied by the number
of ranks before. The order of samples, precision, random numbers and accumulation are kata's: no loader is handed over,
and Accelerate is told of no precision, since the loop casts by itself.
"""

from __future__ import annotations

import importlib
import os
from typing import Any

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from kata.dist.engine import Ddp
from kata.dist.team import Team
from kata.errors import ConfigError


def imported(name: str, extra: str) -> Any:
    """A package of one of kata's extras; ConfigError where it is not installed."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise ConfigError(
            f"{extra} was asked for, and {name} cannot be imported ({error})",
            rule=f"it comes with kata's extra `{extra}`",
            remedy=f"install kata[{extra}] into this environment, or --engine=native",
        ) from error


def accelerator(team: Team, device: torch.device, **options: Any) -> Any:
    """Accelerate's object for a rank of a team that has met already."""
    world = team.world
    # It asks the environment who it is: what srun sets is not enough. And it would change the number of threads.
    known = {"RANK": world.rank, "WORLD_SIZE": world.size, "LOCAL_RANK": world.local_rank}
    known["OMP_NUM_THREADS"] = torch.get_num_threads()
    for name, value in known.items():
        os.environ.setdefault(name, str(value))
    return imported("accelerate", "accelerate").Accelerator(
        cpu=device.type == "cpu",
        mixed_precision="no",
        device_placement=False,
        dynamo_backend="no",
        rng_types=[],
        **options,
    )


class AcceleratedDdp(Ddp):
    """DistributedDataParallel as Accelerate wraps it, with the settings of kata's own."""

    def _wrapped(self, policy: nn.Module, **options: Any) -> DistributedDataParallel:
        settings = imported("accelerate.utils", "accelerate").DistributedDataParallelKwargs(**options)
        return accelerator(self.team, self.device, kwargs_handlers=[settings]).prepare_model(policy)
