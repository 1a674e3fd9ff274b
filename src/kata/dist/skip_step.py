"""One optimiser step that may turn out not to be taken, without the host asking."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler
from torch.distributed.tensor import DTensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm
from torch.optim import Optimizer

CLIP_EPS = 1e-6
"""The number that `clip_grads_with_norm_` adds to a norm before it divides by it."""


def optimizer_parameters(optimizer: Optimizer) -> list[nn.Parameter]:
    """Return the parameters of all groups, in the order of their numbers in the state dict."""
    parameters: list[nn.Parameter] = []
    for group in optimizer.param_groups:
        parameters.extend(group["params"])
    return parameters


def step_unless(optimizer: Optimizer, bad: Tensor, scaler: GradScaler | None = None) -> None:
    """Step the optimizer unless `bad`, a bool scalar on the device, is true.

    A skipped step changes neither weights nor optimizer state nor its count of steps, bit for bit.
    Fused kernels decide on the device, so the host does not wait; on other devices the host
    decides. The fp16 scaler finds gradients that are not finite itself, and skips in the same way.
    """
    first = not optimizer.state
    if scaler is not None:
        scaler.step(optimizer)
        scaler.update()
    elif optimizer.defaults.get("fused"):
        vars(optimizer).update(
            found_inf=bad.float(), grad_scale=None
        )  # where the fused kernels look for them
        optimizer.step()
        del vars(optimizer)["found_inf"], vars(optimizer)["grad_scale"]
    elif not bool(bad):
        optimizer.step()
    if first:  # SGD's kernel leaves its state uninitialized when it skips the first step
        for state in optimizer.state.values():
            for value in state.values():
                if isinstance(value, Tensor):
                    value.masked_fill_(bad.to(value.device), 0)


def clip_gradients(
    parameters: Sequence[nn.Parameter], max_norm: float, *, may_ask: bool = False
) -> Tensor:
    """Clip to `max_norm` (0: only measure) and return the norm before clipping, a device scalar.

    For sharded parameters it is the norm over all shards. Collective: every rank calls it.

    Args:
        parameters: whose gradients are clipped.
        max_norm: the largest norm.
        may_ask: True if the host may read the norm, as it may where a CPU computes. Gradients that
            are small enough are then left alone, in place of a multiplication by 1.
    """
    held = [p.grad for p in parameters if p.grad is not None]
    norm = get_total_norm(held)
    whole = norm.full_tensor() if isinstance(norm, DTensor) else norm
    # torch divides by a norm that it makes a little larger.
    is_small = may_ask and bool(whole + CLIP_EPS <= max_norm)
    if max_norm > 0 and not is_small:
        clip_grads_with_norm_(parameters, max_norm, norm)
    return whole
