"""The state that a resumed run needs. Everything else is rebuilt from the resolved config."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules.batchnorm import _BatchNorm  # pyright: ignore[reportPrivateUsage]: torch has no other name
from torch.optim import Optimizer

from kata.dist.engine import Engine
from kata.errors import PolicyError
from kata.finetune.base import read_reference, reference_to, refuse_missing_base
from kata.finetune.lora import adapt, adapted
from kata.finetune.quantize import quantize_frozen
from kata.finetune.weights import load_policy
from kata.optim.build import build_optimizer
from kata.optim.ema import ema_copy, share_constants
from kata.policies import build_policy, lerobot_type
from kata.policies.base import Policy, Reference
from kata.run import Run, policy_folder, read_policy_config
from kata.update.activation_checkpointing import recompute_activations


@dataclass(slots=True)
class TrainState:
    """The state of training.

    Attributes:
        step: updates done.
        ema: the EMA of the weights, or None.
        scaler: used in fp16 only, else None.
        statistics: buffers that a forward pass changes, those of batch norms.
        constant: names of the tensors that never change: parameters of frozen modules, or all
            beside an adapter.
    """

    step: int
    policy: Policy
    optimizer: Optimizer
    ema: Policy | None = None
    scaler: GradScaler | None = None
    statistics: tuple[Tensor, ...] = ()
    constant: frozenset[str] = frozenset()


def build_state(
    run: Run, engine: Engine, *, weights_follow: bool = False, with_base: bool = True
) -> TrainState:
    """Return the state before step 1, with new weights or those of `policy.pretrained_path`.

    Call `Engine.begin` before the first step.

    Args:
        run: gives policy, optimizer, EMA and seed.
        engine: places the policy.
        weights_follow: True if a checkpoint will fill the weights, so that none are fetched or
            loaded but those of a base that checkpoints refer to.
        with_base: False leaves out those as well, for a trace.
    """
    assert run.optimizer is not None
    torch.manual_seed(run.seed)
    pretrained = run.policy.pretrained_path if with_base else None
    ready_made = weights_follow or pretrained is not None
    policy = build_policy(run.policy.without_downloads() if ready_made else run.policy)
    if pretrained is not None and run.refers and weights_follow:
        refuse_missing_base(pretrained, run.policy.pretrained_revision)
    if pretrained is not None and (run.refers or not weights_follow):
        load_pretrained(policy, pretrained, run.policy.pretrained_revision)
    if run.peft is not None and not adapted(policy):
        adapt(policy, run.peft)
    policy.train()
    if run.frozen_bits is not None:
        _refuse_nothing_frozen(run, quantize_frozen(policy, run.frozen_bits))
    constant = _constant_names(policy, run)
    if run.refers and pretrained is not None and constant:
        policy.reference = _reference(run, pretrained, constant)
    ema = ema_copy(policy) if run.ema.enable else None
    if run.gradient_checkpointing:
        recompute_activations(policy)
    for module in (policy, ema):
        if module is not None:
            engine.place(module, module.shard_units())
            module.runs_together = engine.sharded
    if ema is not None:
        share_constants(ema, policy, constant)
    return TrainState(
        step=0,
        policy=policy,
        optimizer=build_optimizer(policy.param_groups(), run.optimizer),
        ema=ema,
        scaler=GradScaler(engine.device.type) if run.precision == "fp16" else None,
        statistics=tuple(_statistics(policy)),
        constant=constant,
    )


def _constant_names(policy: Policy, run: Run) -> frozenset[str]:
    """Return the names of the tensors that never change: all but the adapters, if there are any."""
    if run.peft is not None:
        return frozenset(
            name
            for name, tensor in policy.state_dict(keep_vars=True).items()
            if not tensor.requires_grad
        )
    kept: set[int] = set()
    for module in policy.frozen_modules():
        kept.update(id(parameter) for parameter in module.parameters())
    return frozenset(name for name, p in policy.named_parameters() if id(p) in kept)


def _refuse_nothing_frozen(run: Run, count: int) -> None:
    if count == 0:
        raise PolicyError(
            f"frozen_bits={run.frozen_bits}: nothing is frozen",
            rule="linear maps that are not trained are held in few bits",
            remedy="add --peft.r=16, or freeze a part with the policy's own options",
        )


def _reference(run: Run, pretrained: str, constant: frozenset[str]) -> Reference:
    """Return the base that checkpoints refer to: below an adapter, that of the adapter."""
    revision = run.policy.pretrained_revision
    base = read_reference(policy_folder(pretrained, revision)) if run.peft is not None else None
    if base is None:
        found = reference_to(pretrained, revision)
    else:
        found = reference_to(base.path, base.revision)
    return dataclasses.replace(found, names=constant)


def _statistics(policy: Policy) -> Iterator[Tensor]:
    for module in policy.modules():
        if isinstance(module, _BatchNorm):
            yield from module.buffers()


def load_pretrained(policy: Policy, path: str, revision: str | None) -> None:
    """Fill a policy from a checkpoint folder or Hub repository.

    Raises:
        PolicyError: it holds another kind of policy.
    """
    folder = policy_folder(path, revision)
    kind = read_policy_config(folder, [])["type"]
    if lerobot_type(kind) != lerobot_type(policy.config.type):
        raise PolicyError(
            f"{path}: holds a {kind} policy",
            rule=f"the run trains {policy.config.type}",
            remedy=f"use --policy.path={path} without --policy.type, or a checkpoint of "
            f"{policy.config.type}",
        )
    load_policy(policy, folder)
