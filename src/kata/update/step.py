"""One update: losses, gradients, the optimizer's step, EMA."""

from __future__ import annotations

import zlib
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from kata.optim.build import set_lr
from kata.optim.ema import ema_decay, ema_update
from kata.optim.schedule import lr_factor
from kata.policies.base import Loss
from kata.run import Run
from kata.spec import DATASET_INDEX, Batch
from kata.update.state import TrainState
from kata.update.statistics import kept_aside, put_back, put_back_if

if TYPE_CHECKING:
    from kata.dist.engine import Engine
    from kata.policies.config import PolicyConfig
    from kata.update.step_batch import Share, StepBatch, Weights


class GradientsOutOfMemory(torch.OutOfMemoryError):
    """The device ran out of memory before a step changed anything: it can be taken again."""


PRECISION_TYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}


def update(
    state: TrainState, batch: StepBatch, run: Run, engine: Engine
) -> tuple[dict[str, Tensor], Tensor, float]:
    """Update number `state.step` (0 is the first); the state counts one more after it.

    The loss terms are sums; each is divided by its count over the global batch, so that the result
    does not depend on how the batch is split, over micro-batches or ranks. A loss or gradient that
    is not finite changes neither weights, optimizer state, statistics nor EMA; the step counts as
    taken, since rate, order and draws are keyed by it. Nothing here waits for the device.

    Raises: GradientsOutOfMemory where the micro-batches do not fit, on all ranks that agree on it.
        The state is then as before.

    Returns: loss, its terms and the policy's own figures as device scalars; the gradient norm
        before clipping; the first group's rate.
    """
    assert run.optimizer is not None
    statistics = kept_aside(state.statistics)
    losses: dict[str, Tensor] = {}
    reason: str | None = None
    try:
        losses = _gradients(state, batch, run, engine)
    except torch.OutOfMemoryError as error:
        reason = str(error)
    # Outside of the handler, since the error holds the frames whose tensors fill the memory.
    if engine.out_of_memory(here=reason is not None):
        _forget_gradients(state, statistics)
        raise GradientsOutOfMemory(reason or "another rank is out of memory")
    engine.sum([*losses.values(), *state.policy.step_sums()])
    engine.average(state.statistics)
    lr = set_lr(state.optimizer, run.lr_scale * lr_factor(run.scheduler, state.step, run.steps))
    grad_norm, bad = engine.step(
        state.optimizer, losses["loss"], run.optimizer.grad_clip_norm, state.scaler
    )
    put_back_if(bad, state.statistics, statistics)
    state.step += 1
    losses |= state.policy.after_step(state.step, bad)
    if state.ema is not None:
        decay = ema_decay(run.ema, state.step)
        ema_update(state.ema, state.policy, decay, bad, state.constant)
    return losses, grad_norm, lr


def _gradients(state: TrainState, batch: StepBatch, run: Run, engine: Engine) -> dict[str, Tensor]:
    """Compute the gradients of all micro-batches, and return the sums of their losses."""
    losses: dict[str, Tensor] = {}
    weights, shares = denominators(state.policy.config, batch, engine)
    for number, (micro, draws) in enumerate(zip(batch.micros, batch.draws, strict=True)):
        _key_dropout(run.seed, state.step, batch.first_micro + number)
        with engine.micro(last=number + 1 == len(batch.micros)):
            with autocast(run.precision, engine.device):
                loss = engine.model(micro, **draws)
            total, terms = weighted(loss, weights)
            engine.backward(total if state.scaler is None else state.scaler.scale(total))
        for name, value in {
            "loss": total,
            **terms,
            **loss_by_dataset(loss, micro, shares),
        }.items():
            losses[name] = losses[name] + value.detach() if name in losses else value.detach()
    return losses


def _forget_gradients(state: TrainState, statistics: Sequence[Tensor]) -> None:
    """Return the state to that before the step, while only gradients have been computed."""
    state.optimizer.zero_grad(set_to_none=True)
    put_back(state.statistics, statistics)
    for total in state.policy.step_sums():
        total.zero_()


def denominators(
    config: PolicyConfig, batch: StepBatch, engine: Engine
) -> tuple[Weights, Sequence[Share]]:
    """The denominators of the loss terms over the global batch, and over each dataset's part.

    Ranks add up those that follow from values, for each knows its own samples alone.
    """
    each = [config.loss_counts(micro) for micro in batch.micros]
    if not each[0]:
        return batch.weights, batch.shares
    bins = batch.shares[-1].number + 1 if batch.shares else 1
    sums: dict[str, Tensor] = {}
    for name in each[0]:
        sums[name] = each[0][name].new_zeros(bins, dtype=torch.float32)
        for micro, counts in zip(batch.micros, each, strict=True):
            index = micro[DATASET_INDEX] if batch.shares else torch.zeros_like(counts[name])
            sums[name].index_add_(0, index, counts[name].float())
    engine.sum(list(sums.values()))
    whole = {name: total.sum().clamp(min=1) for name, total in sums.items()}
    shares: list[Share] = []
    for share in batch.shares:
        own = {name: total[share.number].clamp(min=1) for name, total in sums.items()}
        shares.append(share._replace(weights={**share.weights, **own}))
    return {**batch.weights, **whole}, shares


def weighted(loss: Loss, weights: Weights) -> tuple[Tensor, dict[str, Tensor]]:
    """The loss that is trained on, and its terms, each divided by its count over the global
    batch.
    """
    terms = {name: term.total / weights[name] for name, term in loss.terms.items()}
    parts = [value * loss.terms[name].scale for name, value in terms.items()]
    return torch.stack(parts).sum(), terms


def loss_by_dataset(loss: Loss, micro: Batch, shares: Sequence[Share]) -> dict[str, Tensor]:
    """`loss_by_dataset/<name>`: what this micro-batch adds to the loss that the samples of a
    dataset would have alone.

    Empty for one dataset, and for a policy that does not tell the samples of a term apart.
    """
    if not shares or not set(loss.terms) <= set(loss.detail):
        return {}
    index, bins = micro[DATASET_INDEX], shares[-1].number + 1
    sums = {
        n: loss.detail[n].new_zeros(bins).index_add_(0, index, loss.detail[n]) for n in loss.terms
    }
    losses: dict[str, Tensor] = {}
    for number, name, weights in shares:
        terms = [term.scale * sums[n][number] / weights[n] for n, term in loss.terms.items()]
        losses[f"loss_by_dataset/{name}"] = torch.stack(terms).sum()
    return losses


@contextmanager
def autocast(precision: str, device: torch.device) -> Generator[None]:
    """Mixed precision around a forward pass; nothing for 'no'."""
    if precision == "no":
        yield
        return
    with torch.autocast(device.type, PRECISION_TYPES[precision]):
        yield


def _key_dropout(seed: int, step: int, micro: int) -> None:
    """Dropout masks depend on (seed, step, micro-batch) alone, so that a resumed run draws the same
    ones.

    Micro-batches are counted over all ranks: as long as they are equally large, it does not matter
    who computes them.
    """
    torch.manual_seed(zlib.crc32(f"dropout/{seed}/{step}/{micro}".encode()))
