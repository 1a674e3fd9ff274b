"""Hugging Face Accelerate as an engine: it wraps the policy, and the loop stays kata's.

Accelerate averages gradients over ranks. kata's losses are sums, so they are multiplied by the
number of ranks first. The order of samples, precision, random numbers and accumulation are kata's:
Accelerate gets no loader and no precision, since the loop casts by itself.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, Protocol

import torch
from torch import nn
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn.parallel import DistributedDataParallel

from kata.dist.engine import Ddp
from kata.dist.process_group import ProcessGroup
from kata.dist.shard import Sharded
from kata.dist.world import World


class Cut(Protocol):
    """Options for sharding a policy (see kata.run.FsdpConfig)."""

    @property
    def wrap(self) -> str:
        """Return 'units', 'none', 'size', or names of classes."""
        ...

    @property
    def min_num_params(self) -> int:
        """Return the least number of parameters of a sharded module, for 'size'."""
        ...

    @property
    def reshard_after_forward(self) -> bool:
        """Return True if a module's weights are resharded after its forward pass."""
        ...


def tell_environment(world: World) -> None:
    """Set the variables in which Accelerate and DeepSpeed look for the rank; srun does not."""
    known = {"RANK": world.rank, "WORLD_SIZE": world.size, "LOCAL_RANK": world.local_rank}
    for name, value in known.items():
        os.environ.setdefault(name, str(value))
    # Each rank loads its weights; with this setting transformers would load those of rank 0 alone.
    os.environ["FSDP_CPU_RAM_EFFICIENT_LOADING"] = "false"


def accelerator(group: ProcessGroup, device: torch.device, **options: Any) -> Any:
    """Return Accelerate's object for a rank whose process group exists already."""
    tell_environment(group.world)
    os.environ.setdefault(
        "OMP_NUM_THREADS", str(torch.get_num_threads())
    )  # or it would change their number
    for name in ("ACCELERATE_USE_FSDP", "ACCELERATE_USE_PARALLELISM_CONFIG"):
        os.environ[name] = "false"  # what these ask for has become options of kata
    return importlib.import_module("accelerate").Accelerator(
        cpu=device.type == "cpu",
        mixed_precision="no",
        device_placement=False,
        dynamo_backend="no",
        rng_types=[],
        **options,
    )


class AcceleratedDdp(Ddp):
    """DistributedDataParallel as Accelerate wraps it, with the settings of kata's engine."""

    def _wrapped(self, policy: nn.Module, **options: Any) -> DistributedDataParallel:
        settings = importlib.import_module("accelerate.utils").DistributedDataParallelKwargs(
            **options
        )
        return accelerator(self.group, self.device, kwargs_handlers=[settings]).prepare_model(
            policy
        )


class AcceleratedShards(Sharded):
    """FSDP2 as Accelerate applies it.

    Args:
        cut: the modules that are sharded one by one, and whether they reshard after the forward.
    """

    def __init__(
        self, group: ProcessGroup, device: torch.device, *, copies: int, shards: int, cut: Cut
    ) -> None:
        super().__init__(group, device, copies=copies, shards=shards)
        self._accelerator = accelerator(group, device)
        self._wanted = cut

    def _cut(self, module: nn.Module, units: Sequence[nn.Module]) -> None:
        # Accelerate chooses by class, and would shard modules that are never called by themselves.
        for unit in units if self._wanted.wrap == "units" else ():
            reshard = self._wanted.reshard_after_forward
            fully_shard(unit, mesh=self._mesh, reshard_after_forward=reshard)
        # All shards use one mesh; Accelerate would make another, and would not shard on a CPU.
        state, names = (
            self._accelerator.state,
            SimpleNamespace(fsdp_dim_names=self._mesh.mesh_dim_names),
        )
        state.fsdp_plugin = _plugin(self._wanted)
        state.device_mesh, state.parallelism_config = self._mesh, names
        importlib.import_module("accelerate.utils").fsdp2_prepare_model(self._accelerator, module)
        state.device_mesh = state.parallelism_config = None


def _plugin(cut: Cut) -> Any:
    """State every option, since Accelerate reads those left out from the environment."""
    ways = {"units": "NO_WRAP", "none": "NO_WRAP", "size": "SIZE_BASED_WRAP"}
    return importlib.import_module("accelerate.utils").FullyShardedDataParallelPlugin(
        fsdp_version=2,
        reshard_after_forward=cut.reshard_after_forward,
        auto_wrap_policy=ways.get(cut.wrap, "TRANSFORMER_BASED_WRAP"),
        transformer_cls_names_to_wrap=cut.wrap.split(","),
        min_num_params=cut.min_num_params,
        mixed_precision_policy=MixedPrecisionPolicy(),
        backward_prefetch="NO_PREFETCH",
        state_dict_type="SHARDED_STATE_DICT",
        cpu_offload=False,
        cpu_ram_efficient_loading=False,
        activation_checkpointing=False,
        activation_checkpointing_offload=False,
    )
