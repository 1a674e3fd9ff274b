"""The content of a report: plain values from training and evaluation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np


@dataclass(frozen=True)
class SampleView:
    """One held-out sample: what the policy saw, what was recorded, what it predicts.

    frames: uint8 (H, W, C) by camera. recorded, predicted: (T, A) in the dataset's units.
    is_pad: bool (T,), steps beyond the end of the episode, or None.
    """

    title: str
    frames: Mapping[str, np.ndarray]
    recorded: np.ndarray
    predicted: np.ndarray
    action_names: Sequence[str] = ()
    is_pad: np.ndarray | None = None


@dataclass(frozen=True)
class Filmstrip:
    """One evaluated episode as frames, uint8 (H, W, C) each, in order."""

    title: str
    frames: Sequence[np.ndarray]
    caption: str = ""


@dataclass(frozen=True)
class PlanView:
    """The plan of a run, its comparison with what was measured, and a picture as PNG."""

    lines: Sequence[str]
    picture: bytes


@dataclass(frozen=True)
class ReportContent:
    """All that a report shows; every part but the title may be empty.

    metrics: lines of metrics.jsonl. facts: (name, value) rows. warnings: what went wrong.
    notes: what else the user should know. command: what starts the run again.
    best: the best validation (`step`, `checkpoint`, and its figures).
    baseline: the figures of always predicting the mean action, under the names that validation
        lines use.
    plan: the plan of the run, where its device is known.
    """

    title: str
    facts: Sequence[tuple[str, str]] = ()
    metrics: Sequence[Mapping[str, Any]] = ()
    samples: Sequence[SampleView] = ()
    strips: Sequence[Filmstrip] = ()
    warnings: Sequence[str] = ()
    notes: Sequence[str] = ()
    command: str = ""
    best: Mapping[str, Any] | None = None
    baseline: Mapping[str, float] = field(default_factory=dict)
    plan: PlanView | None = None
