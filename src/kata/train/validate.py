"""Validation on held-out episodes: repeats bit-equal, and training does not notice it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kata.adapt import Normalize, Pipeline
from kata.policies.base import Policy, evaluating
from kata.spec import ACTION, Batch, FeatureType, Stats, pad_key
from kata.train.feed import Feed
from kata.train.step import autocast


@dataclass(frozen=True)
class Validator:
    """Judges a policy on `size` held-out samples, always the same, in order, with the same draws.

    mean_action: the normalised mean action (A,), the prediction of somebody who never looks.
    """

    feed: Feed
    size: int
    precision: str
    mean_action: Tensor
    action_names: tuple[str, ...]

    def __call__(self, policy: Policy) -> dict[str, Any]:
        """The loss and its terms; `action_error`, the mean |predicted - recorded| action in normalised units, also
        per dimension; and `mean_action_error`, the same for always predicting the mean action.
        """
        device = self.feed.device
        with evaluating(policy), torch.no_grad(), torch.random.fork_rng([device] if device.type == "cuda" else []):
            torch.manual_seed(0)  # for policies that draw as they predict
            return self._judge(policy)

    def _judge(self, policy: Policy) -> dict[str, Any]:
        sums: dict[str, float] = {}
        counts: dict[str, float] = {}
        scales: dict[str, float] = {}
        errors = _Errors(self.mean_action, self.feed.config.chunk_start())
        batch_size = self.feed.batches.batch_size
        for number, start in enumerate(range(0, self.size, batch_size)):
            micros, draws, weights = self._read(number, min(batch_size, self.size - start))
            for name, weight in weights.items():
                counts[name] = counts.get(name, 0.0) + weight
            for micro, drawn in zip(micros, draws, strict=True):
                with autocast(self.precision, self.feed.device):
                    loss = policy(micro, **drawn)
                    chunk = policy.predict_chunk(micro, noise=drawn.get("noise"))
                for name, term in loss.terms.items():
                    sums[name] = sums.get(name, 0.0) + float(term.total)
                    scales[name] = term.scale
                errors.add(micro, chunk.float())
        terms = {name: total / counts[name] for name, total in sums.items()}
        whole = sum(terms[name] * scales[name] for name in terms)
        return {"loss": whole, **terms, **errors.figures(self.action_names)}

    def _read(self, number: int, size: int) -> tuple[list[Batch], list[dict[str, Tensor]], dict[str, float]]:
        raw = self.feed.batches.at(number)
        # The last batch wraps round to the first samples; what does not belong to this pass is cut off.
        cut = {key: value[:size] for key, value in raw.items()}
        micros, draws, weights, _ = self.feed.ready(cut)
        return micros, draws, weights


class _Errors:
    """Sums of |predicted - recorded| per action dimension over unpadded steps."""

    def __init__(self, mean_action: Tensor, start: int) -> None:
        self.mean_action, self.start = mean_action, start
        # Summed on the host: not every device has float64.
        self.policy = torch.zeros(mean_action.shape, dtype=torch.float64)
        self.mean = torch.zeros_like(self.policy)
        self.steps = 0

    def add(self, batch: Batch, chunk_bta: Tensor) -> None:
        part = slice(self.start, self.start + chunk_bta.shape[1])
        recorded, pad = batch[ACTION][:, part], batch.get(pad_key(ACTION))
        valid = torch.ones(recorded.shape[:2], dtype=torch.bool) if pad is None else ~pad[:, part]
        valid = valid.to(recorded.device)
        self.policy += (chunk_bta - recorded).abs()[valid].sum(0).cpu()
        self.mean += (self.mean_action - recorded).abs()[valid].sum(0).cpu()
        self.steps += int(valid.sum())

    def figures(self, names: tuple[str, ...]) -> dict[str, Any]:
        per_dimension = (self.policy / self.steps).tolist()
        return {
            "action_error": float(np.mean(per_dimension)),
            "mean_action_error": float((self.mean / self.steps).mean()),
            "action_error_by_dimension": dict(zip(names, per_dimension, strict=True)),
        }


def spread_rows(rows: np.ndarray, most: int) -> np.ndarray:
    """At most `most` rows (0: all), evenly spaced."""
    if most == 0 or len(rows) <= most:
        return rows
    return rows[np.linspace(0, len(rows) - 1, most).round().astype(np.int64)]


def mean_action(before: Pipeline, stats: Stats, device: torch.device) -> Tensor:
    """The mean recorded action (A,), normalised as the policy sees it."""
    mean = torch.as_tensor(np.asarray(stats[ACTION]["mean"]), dtype=torch.float32).to(device)
    for step in before.steps:
        if isinstance(step, Normalize) and step.features[ACTION].type is FeatureType.ACTION:
            mean = step.apply(ACTION, mean)
    return mean
