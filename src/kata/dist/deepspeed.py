"""DeepSpeed's ZeRO (extra `deepspeed`): optimizer state, gradients and weights are sharded.

DeepSpeed shards the policy when the first step begins; until then a checkpoint fills it as on one
rank. Checkpoints hold whole tensors, so a run may continue without DeepSpeed, or with another stage
or number of ranks.
"""

from __future__ import annotations

import copy
import importlib
import logging
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed import HashStore  # pyright: ignore[reportPrivateImportUsage]: documented so
from torch.optim import Optimizer

from kata.dist.accelerate import tell_environment
from kata.dist.engine import Replicas
from kata.dist.process_group import ProcessGroup
from kata.errors import ConfigError


class Zero(Replicas):
    """ZeRO of stage 1, 2 or 3.

    DeepSpeed averages gradients over ranks, so losses are multiplied by the number of ranks.

    Weights stay in float32 and passes are autocast, as without DeepSpeed. A parameter without a
    gradient counts as one whose gradient is zero: its optimizer state and weight decay still apply.

    Args:
        accumulation: micro-batches per step.
        max_norm: the norm that gradients are clipped to; 0 turns clipping off.
        settings: DeepSpeed's group `zero_optimization`, including the stage.
    """

    sharded = True

    def __init__(
        self,
        group: ProcessGroup,
        device: torch.device,
        *,
        accumulation: int,
        max_norm: float,
        settings: Mapping[str, Any],
    ) -> None:
        super().__init__(group, device)
        tell_environment(group.world)
        self._deepspeed = _deepspeed()
        logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
        self._whole_weights = settings["stage"] < 3
        self._max_norm = max_norm
        self._config = {
            "train_micro_batch_size_per_gpu": 1,  # DeepSpeed sees no loader
            "gradient_accumulation_steps": accumulation,
            "gradient_clipping": max_norm,
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,
            "steps_per_print": None,
            "zero_optimization": dict(settings),
        }
        self._engine: Any = None
        if group.world.size == 1 and not dist.is_initialized():
            backend = "nccl" if device.type == "cuda" else "gloo"
            dist.init_process_group(backend, store=HashStore(), rank=0, world_size=1)

    def begin(self, policy: nn.Module, optimizer: Optimizer) -> Optimizer:
        """Set `model` and return the same optimizer, which gathers its state on demand."""
        self._policy, self._outer = policy, optimizer
        self.model = self._forward
        return optimizer

    def _forward(self, *args: Any, **draws: Any) -> Any:
        return self._engine(*args, **draws)

    @contextmanager
    def micro(self, *, last: bool) -> Generator[None]:
        """Wrap forward and backward of a micro-batch; the `last` one of a step sums gradients."""
        self._engine = self._engine or self._open()
        self._engine.set_gradient_accumulation_boundary(last)
        yield

    def backward(self, loss: Tensor) -> None:
        """Compute gradients, summed over ranks; a loss that is not finite makes all NaN."""
        share = torch.where(
            torch.isfinite(loss.detach()), float(self.group.world.size), float("nan")
        )
        self._engine.backward(loss * share, scale_wrt_gas=False)

    def step(
        self, optimizer: Optimizer, loss: Tensor, max_norm: float, scaler: GradScaler | None = None
    ) -> tuple[Tensor, Tensor]:
        """Step the optimizer if the gradient norm is finite; the host waits for the norm."""
        assert scaler is None, "refused in the options"
        assert max_norm == self._max_norm, "DeepSpeed was told another one"
        for its, mine in zip(self._inner.param_groups, optimizer.param_groups, strict=True):
            its["lr"] = mine["lr"]
        self._engine.step()
        norm = torch.as_tensor(
            self._engine.get_global_grad_norm(), dtype=torch.float32, device=self.device
        )
        return norm, torch.tensor(bool(self._zero.overflow), device=self.device)

    def _open(self) -> Any:
        """Hand policy and optimizer over to DeepSpeed, and return its engine."""
        restored = dict(self._outer.state)
        inner = copy.copy(self._outer)
        # With the fused kernels stage 3 corrupts memory (seen with AdamW on a CPU).
        inner.param_groups = [
            {**g, "params": list(g["params"]), "fused": False} for g in self._outer.param_groups
        ]
        inner.state = defaultdict(dict)
        self._inner = inner
        engine, self._zero, _, _ = self._deepspeed.initialize(
            model=self._policy, optimizer=inner, config=self._config
        )
        self._outer.state.clear()
        if restored:
            self._fill(restored)
        self._outer.register_state_dict_pre_hook(self._gather_optimizer_state)
        self._outer.register_state_dict_post_hook(self._drop_optimizer_state)
        if not self._whole_weights:
            self._policy.register_state_dict_post_hook(lambda *args: self._gather_weights(*args))
            self._gather_around()
        return engine

    def _flats(self) -> Sequence[Tensor]:
        """Return this rank's shards of all weights, as the optimizer sees them."""
        zero = self._zero
        return (
            zero.single_partition_of_fp32_groups
            if self._whole_weights
            else zero.fp32_partitioned_groups_flat
        )

    def _link(self) -> None:
        """Link each parameter's optimizer state; DeepSpeed looks too early with several groups."""
        if self._whole_weights:
            for group, flat in zip(self._zero.bit16_groups, self._flats(), strict=True):
                self._deepspeed.utils.lazy_init_hp_params_optimizer_state(
                    group, flat, self._inner.state
                )

    def _fill(self, restored: Mapping[Any, Mapping[str, Tensor]]) -> None:
        """Fill this rank's shards from the whole optimizer state."""
        some = next(iter(restored.values()))
        names = [name for name, value in some.items() if value.dim()]  # the others count steps
        for flat in self._flats():
            counts = {name: value.clone() for name, value in some.items() if name not in names}
            self._inner.state[flat] = {**counts, **{name: torch.zeros_like(flat) for name in names}}
        self._link()
        for parameter, tensors in restored.items():
            for name in names:
                self._set(parameter, tensors[name].to(self.device), name)

    def _set(self, parameter: Any, value: Tensor, name: str) -> None:
        if self._whole_weights:
            self._deepspeed.utils.safe_set_full_optimizer_state(parameter, value, name)
            return
        size, world = parameter.partition_numel(), self.group.world
        padded = nn.functional.pad(value.flatten(), (0, size * world.size - value.numel()))
        shard = padded.narrow(0, size * world.rank, size)
        self._deepspeed.utils.safe_set_local_optimizer_state(parameter, shard, name)

    def _gather_optimizer_state(self, optimizer: Optimizer) -> None:
        """Gather the optimizer state on rank 0 before it is read. Collective: all ranks call it."""
        self._link()
        flat = next((flat for flat in self._flats() if flat in self._inner.state), None)
        if flat is None:
            return
        held = self._inner.state[flat]
        get = self._deepspeed.utils.safe_get_full_optimizer_state
        for group in optimizer.param_groups:
            for parameter in group["params"]:
                found: dict[str, Tensor] = {}
                for name, value in held.items():
                    whole = get(parameter, name) if value.shape == flat.shape else value
                    if self.group.world.is_first:
                        found[name] = whole.cpu()
                if found:
                    optimizer.state[parameter] = found

    def _drop_optimizer_state(self, optimizer: Optimizer, _: Any) -> None:
        optimizer.state.clear()

    def _gather_weights(
        self, module: nn.Module, found: dict[str, Any], prefix: str, _: Any
    ) -> None:
        """Gather whole weights after the state is read. Collective: all ranks call it."""
        for name, parameter in module.named_parameters(remove_duplicate=False):
            with self._deepspeed.zero.GatheredParameters([parameter]):
                if self.keeps:
                    found[prefix + name] = parameter.detach().cpu().clone()

    def _gather_around(self) -> None:
        """Gather weights for methods other than forward; for that one DeepSpeed gathers."""
        policy, parameters = self._policy, list(self._policy.parameters())

        def gathered(name: str, changed_by: int | None) -> None:
            plain: Any = getattr(policy, name)

            def call(*args: Any, **named: Any) -> Any:
                with self._deepspeed.zero.GatheredParameters(parameters, modifier_rank=changed_by):
                    return plain(*args, **named)

            vars(policy)[name] = call

        gathered("predict_chunk", None)
        if "after_step" in vars(type(policy)):
            gathered("after_step", 0)


def _deepspeed() -> Any:
    try:
        return importlib.import_module("deepspeed")
    except ImportError as error:
        raise ConfigError(
            f"deepspeed was asked for, and cannot be imported ({error})",
            rule="it comes with kata's extra `deepspeed`",
            remedy="install kata[deepspeed] into this environment, or --engine=native",
        ) from error
