"""The batch of one update, as values. Torch-free at run time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy as np
    from torch import Tensor

    from kata.spec import Batch


Weights: TypeAlias = "Mapping[str, float | Tensor]"
"""Denominators by loss term; device scalars where they follow from values."""


class Share(NamedTuple):
    """A dataset of a mixture in one batch, with the loss denominators over its samples there."""

    number: int
    name: str
    weights: Weights


@dataclass(frozen=True)
class StepBatch:
    """The input of one rank for one step.

    Attributes:
        micros: The batches that pass through the model one after the other.
        draws: The policy's random numbers, per micro-batch.
        weights: The denominators of the loss terms over the global batch.
        positions: The positions of the samples in the stream (N,).
        dataloading_s: Host seconds of reading.
        preprocessing_s: Host seconds of copying and preparing.
        first_micro: The number of the first micro-batch, counted over all ranks.
        shares: The part of each dataset of a mixture in the global batch; empty for one dataset.
    """

    micros: list[Batch]
    draws: list[dict[str, Tensor]]
    weights: dict[str, float]
    positions: np.ndarray
    dataloading_s: float
    preprocessing_s: float
    first_micro: int = 0
    shares: list[Share] = field(default_factory=list)
