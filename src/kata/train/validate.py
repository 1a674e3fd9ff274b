"""Validation on held-out episodes: repeats bit-equal, and training does not notice it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kata.adapt import Normalize, Pipeline
from kata.policies.base import Loss, Policy, evaluating
from kata.spec import ACTION, DATASET_INDEX, Batch, FeatureType, Stats, dim_pad_key, pad_key
from kata.train.feed import Feed
from kata.train.step import autocast


@dataclass(frozen=True)
class Validator:
    """Judges a policy on `size` held-out samples, always the same, in order, with the same draws.

    mean_actions: per dataset the normalised mean action (k, A), the prediction of somebody who never looks.
    """

    feed: Feed
    size: int
    precision: str
    mean_actions: Tensor
    action_names: tuple[str, ...]

    def __call__(self, policy: Policy) -> dict[str, Any]:
        """The loss and its terms; `action_error`, the mean |predicted - recorded| action in normalised units, also
        per dimension; and `mean_action_error`, the same for always predicting the mean action. Of a mixture also
        `loss_by_dataset` (where the policy tells samples apart) and `action_error_by_dataset`.
        """
        device = self.feed.device
        with evaluating(policy), torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)  # for policies that draw as they predict
            return self._judge(policy)

    def _judge(self, policy: Policy) -> dict[str, Any]:
        whole, each = _Losses(), {name: _Losses() for name in self.feed.datasets}
        errors = _Errors(self.mean_actions, self.feed.config.chunk_start())
        batch_size = self.feed.batches.batch_size
        for number, start in enumerate(range(0, self.size, batch_size)):
            raw = self._read(number, min(batch_size, self.size - start))
            micros, draws, weights, _ = self.feed.ready(raw)
            shares = self.feed.shares(raw)
            whole.count(weights)
            for share in shares:
                each[share.name].count(share.weights)
            for micro, drawn in zip(micros, draws, strict=True):
                with autocast(self.precision, self.feed.device):
                    loss = policy(micro, **drawn)
                    chunk = policy.predict_chunk(micro, noise=drawn.get("noise"))
                whole.add({name: float(term.total) for name, term in loss.terms.items()}, loss)
                for share in shares if set(loss.terms) <= set(loss.detail) else ():
                    mine = micro[DATASET_INDEX] == share.number
                    each[share.name].add({n: float(loss.detail[n][mine].sum()) for n in loss.terms}, loss)
                errors.add(micro, chunk.float())
        told = {name: losses.figures()["loss"] for name, losses in each.items() if losses.sums}
        return {
            **whole.figures(),
            **errors.figures(self.action_names),
            **({"loss_by_dataset": told} if told else {}),
            **errors.by_dataset(self.feed.datasets),
        }

    def _read(self, number: int, size: int) -> Batch:
        raw = self.feed.batches.at(number)
        # The last batch wraps round to the first samples; what does not belong to this pass is cut off.
        return {key: value[:size] for key, value in raw.items()}


@dataclass
class _Losses:
    """Sums of loss terms and their denominators."""

    sums: dict[str, float] = field(default_factory=dict)
    counts: dict[str, float] = field(default_factory=dict)
    scales: dict[str, float] = field(default_factory=dict)

    def count(self, weights: dict[str, float]) -> None:
        for name, weight in weights.items():
            self.counts[name] = self.counts.get(name, 0.0) + weight

    def add(self, sums: dict[str, float], loss: Loss) -> None:
        for name, total in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + total
            self.scales[name] = loss.terms[name].scale

    def figures(self) -> dict[str, float]:
        terms = {name: total / self.counts[name] for name, total in self.sums.items()}
        return {"loss": sum(terms[name] * self.scales[name] for name in terms), **terms}


class _Errors:
    """Sums of |predicted - recorded| per dataset and action dimension (k, A) over real steps and dimensions."""

    def __init__(self, mean_actions: Tensor, start: int) -> None:
        self.mean_actions, self.start = mean_actions, start
        # Summed on the host: not every device has float64.
        self.policy = torch.zeros(mean_actions.shape, dtype=torch.float64)
        self.mean = torch.zeros_like(self.policy)
        self.steps = torch.zeros_like(self.policy)

    def add(self, batch: Batch, chunk_bta: Tensor) -> None:
        part = slice(self.start, self.start + chunk_bta.shape[1])
        recorded, pad, lacks = batch[ACTION][:, part], batch.get(pad_key(ACTION)), batch.get(dim_pad_key(ACTION))
        valid = torch.ones(recorded.shape[:2], dtype=torch.bool) if pad is None else ~pad[:, part]
        valid = valid.to(recorded.device)
        index = batch.get(DATASET_INDEX, torch.zeros(len(recorded), dtype=torch.int64, device=recorded.device))
        for number in torch.unique(index).tolist():
            mine = valid & (index == number)[:, None]
            # Every sample of a dataset lacks the same dimensions.
            real = 1.0 if lacks is None else (~lacks[index == number][0]).double().cpu()
            self.policy[number] += (chunk_bta - recorded).abs()[mine].sum(0).cpu() * real
            self.mean[number] += (self.mean_actions[number] - recorded).abs()[mine].sum(0).cpu() * real
            self.steps[number] += int(mine.sum()) * real

    def figures(self, names: tuple[str, ...]) -> dict[str, Any]:
        seen = self.steps.sum(0)
        per_dimension, mean = (total.sum(0)[seen > 0] / seen[seen > 0] for total in (self.policy, self.mean))
        named = [name for name, steps in zip(names, seen.tolist(), strict=True) if steps]
        return {
            "action_error": float(np.mean(per_dimension.tolist())),
            "mean_action_error": float(mean.mean()),
            "action_error_by_dimension": dict(zip(named, per_dimension.tolist(), strict=True)),
        }

    def by_dataset(self, names: tuple[str, ...]) -> dict[str, dict[str, float]]:
        """`action_error_by_dataset` and `mean_action_error_by_dataset`; empty for one dataset."""
        if not names:
            return {}
        sums = {"action_error_by_dataset": self.policy, "mean_action_error_by_dataset": self.mean}
        real = self.steps > 0
        return {
            figure: {
                n: float((s[r] / c[r]).mean())
                for n, s, c, r in zip(names, total, self.steps, real, strict=True)
                if r.any()
            }
            for figure, total in sums.items()
        }


def spread_rows(rows: np.ndarray, most: int) -> np.ndarray:
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
