"""Normalization of a mixture's batches: each dataset has separate statistics."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from kata.processors.steps import Normalize, Step
from kata.spec import DATASET_INDEX, Batch


@dataclass(frozen=True)
class PerDataset(Step):
    """A step that normalizes each sample by its dataset, given by `dataset_index` (B,).

    It serves training alone: a policy acts with the step of one dataset, and checkpoints hold each
    dataset's step separately.

    Args:
        steps: one per dataset; alike but for their statistics.
    """

    registry_name: ClassVar[str] = "per_dataset"
    steps: tuple[Normalize, ...]

    def __call__(self, batch: Batch) -> Batch:
        """Return the values that each dataset's step would give, in one pass over the batch."""
        out = dict(batch)
        for key in self.steps[0].keys(batch):
            value: Tensor = batch[key]
            pairs = [pair for step in self.steps if (pair := step.pair(key, value)) is not None]
            if pairs:
                chosen = (
                    torch.stack(same)[batch[DATASET_INDEX]] for same in zip(*pairs, strict=True)
                )
                out[key] = self.steps[0].scaled(
                    key, value, *(_beside(stat, value) for stat in chosen)
                )
        return out

    def config(self) -> dict[str, Any]:
        """Refuse: no file format has this step."""
        raise AssertionError("a checkpoint holds one dataset's steps")


def _beside(stat: Tensor, value: Tensor) -> Tensor:
    """Return (B, *S) with axes of length 1 that broadcast over the time axis of (B, T, *S)."""
    return stat.reshape(len(stat), *[1] * (value.dim() - stat.dim()), *stat.shape[1:])
