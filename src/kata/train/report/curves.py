"""Figures from the lines of metrics.jsonl: time shares, the best validation, and charts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np

from kata.train.report.charts import ACCENT, FAINT, INK, SECOND, Series, curve_chart, smoothed

Line = Mapping[str, Any]
_TIME_PARTS = {
    "waiting for data": "dataloading_s",
    "preprocessing": "preprocessing_s",
    "update": "update_s",
}
_AFTER_TERMS = ("grad_norm", "action_error")  # the figures that follow on the terms of a loss
HEAD = ("kind", "step", "epoch", "samples", "time")  # what each line carries beside its figures


@dataclass(frozen=True)
class Chart:
    """A titled chart; `keys` are (CSS colour, word) pairs of its legend."""

    title: str
    svg: str
    keys: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class TimeSpent:
    """Seconds from the first step to the last save, those of the steps among them, and shares of
    all: data, preprocessing, update, other work of a step, and what was done between steps.
    """

    total_s: float
    steps_s: float
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


def figure_names(lines: Sequence[Line]) -> list[str]:
    """Return the names of all figures, in the order of their first appearance."""
    return list(dict.fromkeys(chain.from_iterable(figures(line) for line in lines)))


def validation_figure(lines: Sequence[Line], wanted: Sequence[str]) -> str | None:
    """The figure that validation is judged by: the first wanted one that it has, else the loss,
    else any.
    """
    names = figure_names(lines)
    return next((name for name in [*wanted, "loss", *names] if name in names), None)


def best_of(lines: Sequence[Line], name: str) -> tuple[int, float] | None:
    """Step and value of the smallest finite figure of that name."""
    steps, values = column(lines, name)
    if not np.isfinite(values).any():
        return None
    row = int(np.argmin(np.where(np.isfinite(values), values, np.inf)))
    return int(steps[row]), float(values[row])


def time_spent(train: Sequence[Line], metrics: Sequence[Line] = ()) -> TimeSpent | None:
    """Return where the time went, or None when nothing was measured.

    Args:
        train: the lines of log intervals.
        metrics: all lines; those after the last interval tell how long the end took.
    """
    steps = np.array([line["step"] for line in train])
    counts = np.diff(steps, prepend=0)
    steps_s = float(sum(n * line["step_s"] for n, line in zip(counts, train, strict=True)))
    if steps_s <= 0:
        return None
    pauses_s = sum(line.get("spent", {}).get("pause_s", 0.0) for line in train)
    pauses_s += max([line["time"] for line in metrics], default=0.0) - train[-1]["time"]
    total_s = steps_s + max(0.0, pauses_s)
    shares: dict[str, float] = {}
    for word, name in _TIME_PARTS.items():
        part_s = sum(n * line[name] for n, line in zip(counts, train, strict=True))
        shares[word] = float(part_s) / total_s
    shares["other"] = max(0.0, steps_s / total_s - sum(shares.values()))
    shares["validating and saving"] = 1 - steps_s / total_s
    return TimeSpent(total_s, steps_s, shares)


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
        made += _loss_charts(train, validation)
    drawn = judged_by == "loss" and bool(train) and "loss" not in baseline
    if judged_by is not None and not drawn:
        made.append(_validation_chart(validation, judged_by, baseline.get(judged_by)))
    if train:
        steps, rate = column(train, "lr")
        made.append(Chart("Learning rate", curve_chart([Series(steps, rate, "lr")])))
        made.append(_with_raw("Gradient norm", train, "grad_norm"))
    return made


def _loss_charts(train: Sequence[Line], validation: Sequence[Line]) -> list[Chart]:
    """Return one chart of both losses where they are sums of the same terms, else one for each."""
    steps, values = column(validation, "loss")
    if not len(steps):
        return [_with_raw("Training loss", train, "loss")]
    judged = Series(steps, values, "validation", SECOND, marks=True)
    trained_on, judged_on = _terms(train[-1]), _terms(validation[-1])
    if trained_on == judged_on:
        return [_with_raw("Loss", train, "loss", judged)]
    return [
        _with_raw(f"Training loss{_of(trained_on)}", train, "loss"),
        Chart(f"Validation loss{_of(judged_on)}", curve_chart([judged])),
    ]


def _terms(line: Line) -> list[str]:
    """Return the terms of a loss; they stand between it and the other figures of a line."""
    names = list(figures(line))
    end = next((names.index(name) for name in _AFTER_TERMS if name in names), len(names))
    return [name for name in names[:end] if name != "loss"]


def _of(terms: Sequence[str]) -> str:
    return f" ({', '.join(words(term) for term in terms)})" if terms else ""


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
    svg = curve_chart([Series(steps, values, name, ACCENT, marks=True)], level=baseline)
    keys: tuple[tuple[str, str], ...] = ()
    if baseline is not None:
        keys = ((ACCENT, words(name)), (INK, f"of the mean action: {baseline:.4g}"))
    return Chart(f"Validation: {words(name)}", svg, keys)


def smoothed_ends(values: np.ndarray) -> tuple[float, float]:
    """The first value, and the last as the mean of the last fortieth of the run."""
    return float(values[0]), float(smoothed(values, 1)[-max(1, len(values) // 40) :].mean())


def words(name: str) -> str:
    """'action_error' -> 'action error'."""
    return name.replace("_", " ")
