"""What the lines of metrics.jsonl say: figures, time shares, the best validation, and charts of
them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kata.train.report.charts import ACCENT, FAINT, SECOND, Series, curve_chart, smoothed

Line = Mapping[str, Any]
_TIME_PARTS = {
    "waiting for data": "dataloading_s",
    "preprocessing": "preprocessing_s",
    "update": "update_s",
}
HEAD = ("kind", "step", "epoch", "samples", "time")  # what each line carries beside its figures


@dataclass(frozen=True)
class Chart:
    """A titled chart; `keys` are (CSS colour, word) pairs of its legend."""

    title: str
    svg: str
    keys: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class TimeSpent:
    """Seconds of all steps, and the shares of them: data, preprocessing, update, other."""

    total_s: float
    shares: dict[str, float]


def of_kind(metrics: Sequence[Line], kind: str) -> list[Line]:
    """The lines of one kind, in step order; of lines for the same step the last one counts."""
    by_step = {line["step"]: line for line in metrics if line["kind"] == kind}
    return [by_step[step] for step in sorted(by_step)]


def figures(line: Line) -> dict[str, float]:
    """The plain numbers of a line, without its head."""
    return {
        key: float(value)
        for key, value in line.items()
        if key not in HEAD and isinstance(value, int | float) and not isinstance(value, bool)
    }


def column(lines: Sequence[Line], name: str) -> tuple[np.ndarray, np.ndarray]:
    """Steps and values (N,) of the lines that have that figure."""
    found = [(line["step"], line[name]) for line in lines if name in line]
    steps_values = np.array(found, dtype=np.float64).reshape(len(found), 2)
    return steps_values[:, 0], steps_values[:, 1]


def validation_figure(lines: Sequence[Line], wanted: Sequence[str]) -> str | None:
    """The figure that validation is judged by: the first wanted one that it has, else the loss,
    else any.
    """
    names = list(dict.fromkeys(name for line in lines for name in figures(line)))
    return next((name for name in [*wanted, "loss", *names] if name in names), None)


def best_of(lines: Sequence[Line], name: str) -> tuple[int, float] | None:
    """Step and value of the smallest finite figure of that name."""
    steps, values = column(lines, name)
    if not np.isfinite(values).any():
        return None
    row = int(np.argmin(np.where(np.isfinite(values), values, np.inf)))
    return int(steps[row]), float(values[row])


def time_spent(train: Sequence[Line]) -> TimeSpent | None:
    """Where the time of the steps went; None when nothing was measured."""
    steps = np.array([line["step"] for line in train])
    counts = np.diff(steps, prepend=0)
    total_s = float(sum(n * line["step_s"] for n, line in zip(counts, train, strict=True)))
    if total_s <= 0:
        return None
    shares = {
        word: float(sum(n * line[name] for n, line in zip(counts, train, strict=True))) / total_s
        for word, name in _TIME_PARTS.items()
    }
    shares["other"] = max(0.0, 1 - sum(shares.values()))
    return TimeSpent(total_s, shares)


def charts(
    train: Sequence[Line],
    validation: Sequence[Line],
    judged_by: str | None,
    baseline: Mapping[str, float],
) -> list[Chart]:
    """Training loss, validation against the baseline, learning rate, gradient norm: those that
    there are.
    """
    made: list[Chart] = []
    if train:
        made.append(_loss_chart(train, validation))
    drawn = judged_by == "loss" and bool(train) and "loss" not in baseline
    if judged_by is not None and not drawn:
        made.append(_validation_chart(validation, judged_by, baseline.get(judged_by)))
    if train:
        steps, rate = column(train, "lr")
        made.append(Chart("Learning rate", curve_chart([Series(steps, rate, "lr")])))
        made.append(_with_raw("Gradient norm", train, "grad_norm"))
    return made


def _loss_chart(train: Sequence[Line], validation: Sequence[Line]) -> Chart:
    chart = _with_raw("Training loss", train, "loss")
    steps, values = column(validation, "loss")
    if not len(steps):
        return chart
    return _with_raw("Loss", train, "loss", Series(steps, values, "validation", SECOND, marks=True))


def _with_raw(title: str, train: Sequence[Line], name: str, *more: Series) -> Chart:
    """The raw curve, faint, under its running mean over a fortieth of the run."""
    steps, raw = column(train, name)
    width = max(1, len(raw) // 40)
    series = [Series(steps, raw, "each interval", FAINT, 0.9)] if width > 1 else []
    series.append(Series(steps, smoothed(raw, width), "smoothed" if width > 1 else "training"))
    series += more
    keys = tuple((s.colour, s.label) for s in series) if len(series) > 1 else ()
    return Chart(title, curve_chart(series), keys)


def _validation_chart(lines: Sequence[Line], name: str, baseline: float | None) -> Chart:
    steps, values = column(lines, name)
    level = None if baseline is None else (baseline, f"mean action: {baseline:.4g}")
    svg = curve_chart([Series(steps, values, name, ACCENT, marks=True)], level=level)
    return Chart(f"Validation: {words(name)}", svg)


def smoothed_ends(values: np.ndarray) -> tuple[float, float]:
    """The first value, and the last as the mean of the last fortieth of the run."""
    return float(values[0]), float(smoothed(values, 1)[-max(1, len(values) // 40) :].mean())


def words(name: str) -> str:
    """'action_error' -> 'action error'."""
    return name.replace("_", " ")
