"""Validation on held-out episodes: repeats bit-equal, and training does not notice it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kata.data.arrays import Int64
from kata.data.dataset.anchors import AnchorRows
from kata.dist.process_group import ProcessGroup
from kata.policies.base import Policy, evaluating
from kata.processors import Normalize, Pipeline
from kata.spec import ACTION, DATASET_INDEX, Batch, FeatureType, Stats, dim_pad_key, pad_key
from kata.train.input.feed import Feed
from kata.update.step import autocast


@dataclass(frozen=True)
class Validator:
    """Judges a policy on `size` held-out samples, always the same, in order, with the same draws.

    mean_actions: per dataset the normalised mean action (k, A), the prediction of somebody who
        never looks.
    group: the ranks that take the batches in turn; what they find is added in order of batches,
        so that the figures are those of one rank.
    """

    feed: Feed
    size: int
    precision: str
    mean_actions: Tensor
    action_names: tuple[str, ...]
    group: ProcessGroup = field(default_factory=ProcessGroup)

    def __call__(self, policy: Policy) -> dict[str, Any]:
        """The loss and its terms; `action_error`, the mean |predicted - recorded| action in
        normalised units, also per dimension; and `mean_action_error`, the same for always
        predicting the mean action. Of a mixture also `loss_by_dataset` (where the policy tells
        samples apart) and `action_error_by_dataset`.
        """
        device = self.feed.device
        with (
            evaluating(policy),
            torch.no_grad(),
            torch.random.fork_rng([device] if device.type == "cuda" else []),
        ):
            return self._judge(policy)

    def _judge(self, policy: Policy) -> dict[str, Any]:
        part, size = self.feed.batches.rank_slice, self.feed.batches.slice_size
        batches = -(-self.size // size)
        # A policy in shards is run by all ranks together, so each runs it as often, once in vain
        # where it has no batch.
        last = -(-batches // part.of) * part.of
        mine = [self._batch(policy, number) for number in range(part.number, last, part.of)]
        by_number = {one.number: one for one in chain.from_iterable(self.group.gather(mine))}
        whole, each = _Losses(), {name: _Losses() for name in self.feed.datasets}
        errors = _Errors(self.mean_actions, self.feed.config.chunk_start())
        for number in range(batches):
            one = by_number[number]
            whole.add(one.losses)
            for name, losses in one.by_dataset.items():
                each[name].add(losses)
            errors.merge(*one.errors)
        told = {name: losses.figures()["loss"] for name, losses in each.items() if losses.sums}
        return {
            **whole.figures(),
            **errors.figures(self.action_names),
            **({"loss_by_dataset": told} if told else {}),
            **errors.by_dataset(self.feed.datasets),
        }

    def _batch(self, policy: Policy, number: int) -> _Judged:
        """Return one batch's contribution to the figures."""
        part, size = self.feed.batches.rank_slice, self.feed.batches.slice_size
        raw = self.feed.batches.at(number // part.of)
        # The last batch wraps round to the first samples; what does not belong to this pass is cut
        # off.
        left = self.size - number * size
        raw = {key: value[:left] if left > 0 else value for key, value in raw.items()}
        (micro,), (drawn,) = self.feed.ready(raw, number * size)
        torch.manual_seed(number)  # for a policy that draws what its config does not name
        with autocast(self.precision, self.feed.device):
            loss = policy(micro, **drawn)
            (act_drawn,) = self.feed.act_draws(raw)
            chunk = policy.predict_chunk(micro, **act_drawn)
        errors = _Errors(self.mean_actions, self.feed.config.chunk_start())
        errors.add(micro, chunk.float())
        scales = {name: term.scale for name, term in loss.terms.items()}
        counts = self.feed.config.loss_counts(micro)
        losses = _Losses(
            {name: float(term.total) for name, term in loss.terms.items()},
            {**self.feed.weights(raw, len(raw["position"])), **_counted(counts)},
            scales,
        )
        each: dict[str, _Losses] = {}
        for share in self.feed.shares(raw) if set(loss.terms) <= set(loss.detail) else ():
            own = micro[DATASET_INDEX] == share.number
            each[share.name] = _Losses(
                {n: float(loss.detail[n][own].sum()) for n in scales},
                {
                    **{n: float(count) for n, count in share.weights.items()},
                    **_counted({n: count[own] for n, count in counts.items()}),
                },
                scales,
            )
        return _Judged(
            number, losses, each, (errors.policy.numpy(), errors.mean.numpy(), errors.steps.numpy())
        )


def _counted(counts: dict[str, Tensor]) -> dict[str, float]:
    """Return the sums of the samples' parts of denominators, each at least 1."""
    return {name: max(float(each.sum()), 1.0) for name, each in counts.items()}


@dataclass
class _Losses:
    """Sums of loss terms, their denominators and factors."""

    sums: dict[str, float] = field(default_factory=dict[str, float])
    counts: dict[str, float] = field(default_factory=dict[str, float])
    scales: dict[str, float] = field(default_factory=dict[str, float])

    def add(self, more: _Losses) -> None:
        for mine, theirs in ((self.sums, more.sums), (self.counts, more.counts)):
            for name, value in theirs.items():
                mine[name] = mine.get(name, 0.0) + value
        self.scales |= more.scales

    def figures(self) -> dict[str, float]:
        terms = {name: total / self.counts[name] for name, total in self.sums.items()}
        return {"loss": sum(terms[name] * self.scales[name] for name in terms), **terms}


@dataclass(frozen=True)
class _Judged:
    """One batch's contribution: losses, losses by dataset of a mixture, and the sums of _Errors."""

    number: int
    losses: _Losses
    by_dataset: dict[str, _Losses]
    errors: tuple[np.ndarray, np.ndarray, np.ndarray]


class _Errors:
    """Sums of |predicted - recorded| per dataset and action dimension (k, A) over real steps and
    dimensions.
    """

    def __init__(self, mean_actions: Tensor, start: int) -> None:
        self.mean_actions, self.start = mean_actions, start
        # Summed on the host: not every device has float64.
        self.policy = torch.zeros(mean_actions.shape, dtype=torch.float64)
        self.mean = torch.zeros_like(self.policy)
        self.steps = torch.zeros_like(self.policy)

    def merge(self, policy: np.ndarray, mean: np.ndarray, steps: np.ndarray) -> None:
        """Add the sums of other samples."""
        for total, more in ((self.policy, policy), (self.mean, mean), (self.steps, steps)):
            total += torch.from_numpy(more)

    def add(self, batch: Batch, chunk_bta: Tensor) -> None:
        part = slice(self.start, self.start + chunk_bta.shape[1])
        # Some policies see actions that are filled up to a fixed width; the dataset's come first.
        width = self.policy.shape[-1]
        chunk_bta = chunk_bta[..., :width]
        recorded = batch[ACTION][:, part, :width]
        pad = batch.get(pad_key(ACTION))
        lacks = batch.get(dim_pad_key(ACTION))
        valid = torch.ones(recorded.shape[:2], dtype=torch.bool) if pad is None else ~pad[:, part]
        valid = valid.to(recorded.device)
        index = batch.get(
            DATASET_INDEX, torch.zeros(len(recorded), dtype=torch.int64, device=recorded.device)
        )
        for number in torch.unique(index).tolist():
            mine = valid & (index == number)[:, None]
            # Every sample of a dataset lacks the same dimensions.
            real = 1.0 if lacks is None else (~lacks[index == number][0]).double().cpu()
            self.policy[number] += (chunk_bta - recorded).abs()[mine].sum(0).cpu() * real
            self.mean[number] += (self.mean_actions[number] - recorded).abs()[mine].sum(
                0
            ).cpu() * real
            self.steps[number] += int(mine.sum()) * real

    def figures(self, names: tuple[str, ...]) -> dict[str, Any]:
        seen = self.steps.sum(0)
        per_dimension, mean = (
            total.sum(0)[seen > 0] / seen[seen > 0] for total in (self.policy, self.mean)
        )
        named = [name for name, steps in zip(names, seen.tolist(), strict=True) if steps]
        return {
            "action_error": float(np.mean(per_dimension.tolist())),
            "mean_action_error": float(mean.mean()),
            "action_error_by_dimension": dict(zip(named, per_dimension.tolist(), strict=True)),
        }

    def by_dataset(self, names: tuple[str, ...]) -> dict[str, dict[str, float]]:
        """Return `action_error_by_dataset` and `mean_action_error_by_dataset`.

        Nothing is returned for one dataset.
        """
        if not names:
            return {}
        sums = {"action_error_by_dataset": self.policy, "mean_action_error_by_dataset": self.mean}
        real = self.steps > 0
        found: dict[str, dict[str, float]] = {}
        for figure, total in sums.items():
            found[figure] = {}
            for name, errors, counts, is_real in zip(names, total, self.steps, real, strict=True):
                if is_real.any():
                    found[figure][name] = float((errors[is_real] / counts[is_real]).mean())
        return found


def spread_rows(rows: AnchorRows, most: int) -> Int64 | AnchorRows:
    """At most `most` rows (0: all), evenly spaced."""
    if most == 0 or len(rows) <= most:
        return rows
    return rows[np.linspace(0, len(rows) - 1, most).round().astype(np.int64)]


def mean_actions(by_itself: Sequence[tuple[Pipeline, Stats]], device: torch.device) -> Tensor:
    """Per dataset the mean recorded action (k, A), normalised as the policy sees it."""
    return torch.stack([_mean_action(before, stats, device) for before, stats in by_itself])


def _mean_action(before: Pipeline, stats: Stats, device: torch.device) -> Tensor:
    mean = torch.as_tensor(np.asarray(stats[ACTION]["mean"]), dtype=torch.float32).to(device)
    for step in before.steps:
        if isinstance(step, Normalize) and step.features[ACTION].type is FeatureType.ACTION:
            mean = step.apply(ACTION, mean)
    return mean
