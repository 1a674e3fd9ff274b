"""report.html of a run: success over minutes, with interventions beneath as in HIL-SERL."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from kata.html import Tile, card, document, section, tiles
from kata.train.metrics.meter import read_metrics
from kata.train.report.charts import (
    ACCENT,
    COLOURS,
    FAINT,
    SECOND,
    ChartPanel,
    Series,
    minute_chart,
)
from kata.train.report.page import figure_table
from kata.units import count_text, seconds_text

PAGE = "report.html"
LOSSES = {
    "loss_critic": "Critics' loss",
    "q_mean": "Value of recorded actions",
    "alpha": "Temperature",
    "entropy": "Entropy of actions",
}

Line = dict[str, Any]


def write_rl_report(folder: Path, title: str, recent: int, command: str) -> Path:
    """Draw the page of a run from its metrics.jsonl.

    Args:
        folder: of the run.
        title: of the page.
        recent: episodes over which shares are taken.
        command: that repeats the run.

    Returns:
        The page, which is whole or absent.
    """
    metrics = folder / "metrics.jsonl"
    lines = read_metrics(metrics) if metrics.exists() else []  # stopped before the first line
    minutes = _minutes(lines)
    played = [(m, x) for m, x in zip(minutes, lines, strict=True) if x["kind"] == "episode"]
    tested = [(m, x) for m, x in zip(minutes, lines, strict=True) if x["kind"] == "evaluation"]
    trained = [(m, x) for m, x in zip(minutes, lines, strict=True) if x["kind"] == "train"]
    head = "Success and interventions" if _knows_success(played) else "Returns and interventions"
    sections = [
        f"<header><h1>{escape(title)}</h1></header>",
        tiles(_tiles(played, tested, lines, minutes)),
        section(head, _progress(played, tested, recent)),
        section("Learning", _curves(trained)),
        section("Evaluations", figure_table([x for _, x in tested], ["success", "return"]))
        if tested
        else "",
        section("Run it again", f'<pre class="card">{escape(command)}</pre>'),
    ]
    path = folder / PAGE
    beside = path.with_name(path.name + ".new")
    try:
        beside.write_text(document(title, "\n".join(filter(None, sections))), encoding="utf-8")
        os.replace(beside, path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise
    return path


Timed = Sequence[tuple[float, Line]]


def _minutes(lines: Sequence[Mapping[str, Any]]) -> list[float]:
    """Return the minutes that the run had worked at each line, without the breaks between its
    processes.
    """
    found: list[float] = []
    before_s = last_s = 0.0
    for line in lines:
        now_s = float(line["run_s"])
        if now_s < last_s:  # another process
            before_s += last_s
        last_s = now_s
        found.append((before_s + now_s) / 60)
    return found


def _knows_success(played: Timed) -> bool:
    return any(line["success"] is not None for _, line in played)


def _tiles(
    played: Timed, tested: Timed, lines: Sequence[Line], minutes: Sequence[float]
) -> list[Tile]:
    if not played:
        return []
    made: list[Tile] = []
    if tested:
        best = max(line["success"] for _, line in tested)
        last = tested[-1][1]
        made.append(Tile("evaluated success", f"{last['success']:.0%}", f"best {best:.0%}"))
    own = played[-1][1]["own_success"]
    if own is not None:
        made.append(Tile("own success", f"{own:.0%}", "last episodes that nobody helped in"))
    steps = sum(line["length"] for _, line in played)
    human = sum(line["human_steps"] for _, line in played)
    made.append(Tile("human steps", count_text(human), f"{human / steps:.0%} of all"))
    made.append(Tile("steps", count_text(steps), f"{count_text(len(played))} episodes"))
    updates = max((line.get("updates", 0) for line in lines), default=0)
    made.append(Tile("time", seconds_text(60 * minutes[-1]), f"{count_text(updates)} updates"))
    return made


def _progress(played: Timed, tested: Timed, recent: int) -> str:
    """Return success, or the return where nobody tells success, above the share of steps that a
    human took.
    """
    if not played:
        return '<p class="remark">No episode was played yet.</p>'
    at = np.array([minute for minute, _ in played])
    length = np.array([line["length"] for _, line in played], float)
    human = np.array([line["human_steps"] for _, line in played], float)
    shown = [Series(at, _share(human, length, recent), "human", SECOND)]
    beneath = ChartPanel("Steps of a human, share", shown, is_share=True)
    if not _knows_success(played):
        earned = np.array([line["return"] for _, line in played], float)
        mean = _share(earned, np.ones(len(earned)), recent)
        raw = Series(at, earned, "episode", FAINT, width=0.8)
        upper = [raw, Series(at, mean, f"last {recent}", ACCENT)]
        return _card([ChartPanel("Return", upper), beneath], upper)
    won = np.array([bool(line["success"]) for _, line in played], float)
    upper = [Series(at, _share(won, np.ones(len(won)), recent), f"last {recent} episodes", FAINT)]
    alone = human == 0
    if alone.any() and not alone.all():
        mean = _share(won[alone], np.ones(alone.sum()), recent)
        upper.append(Series(at[alone], mean, f"last {recent} without help", SECOND))
    if tested:
        when = np.array([minute for minute, _ in tested])
        share = np.array([line["success"] for _, line in tested], float)
        upper.append(Series(when, share, "evaluated", ACCENT, marks=True))
    return _card([ChartPanel("Success", upper, is_share=True), beneath], [*upper, *shown])


def _share(values: np.ndarray, of: np.ndarray, recent: int) -> np.ndarray:
    """Return the sum of values over the sum of `of`, each over the last `recent`."""
    sums, whole = np.cumsum(values), np.cumsum(of)
    before = np.maximum(np.arange(len(values)) - recent, -1)
    is_cut = before >= 0
    part = sums - np.where(is_cut, sums[before], 0)
    return part / np.maximum(whole - np.where(is_cut, whole[before], 0), 1e-12)


def _card(panels: Sequence[ChartPanel], keyed: Sequence[Series]) -> str:
    keys = "".join(
        f'<span><i style="background:{COLOURS[each.colour]}"></i>{escape(each.label)}</span>'
        for each in keyed
    )
    return card(f'<h3>Over minutes</h3><div class="keys">{keys}</div>', minute_chart(panels))


def _curves(trained: Timed) -> str:
    cards = ""
    for name, title in LOSSES.items():
        rows = [(minute, line[name]) for minute, line in trained if line.get(name) is not None]
        if rows:
            at, values = np.array(rows, float).T
            drawn = minute_chart([ChartPanel("", [Series(at, values, title)])])
            cards += card(f"<h3>{escape(title)}</h3>", drawn)
    return f'<div class="pair">{cards}</div>' if cards else ""
