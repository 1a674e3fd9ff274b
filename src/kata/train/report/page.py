"""The page: sections of HTML around the charts. Everything that comes from outside is escaped."""

from __future__ import annotations

import base64
import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path

from kata.html import Tile, card, document, section, tiles
from kata.train.metrics.bottleneck import Diagnosis, diagnose, spent_of
from kata.train.report.charts import COLOURS
from kata.train.report.curves import (
    Chart,
    Line,
    TimeSpent,
    best_of,
    charts,
    column,
    figure_names,
    figures,
    of_kind,
    smoothed_ends,
    time_spent,
    validation_figure,
    words,
)
from kata.train.report.parts import PlanView, ReportContent
from kata.train.report.views import samples_html, strips_html
from kata.units import count_text, rate_text, seconds_text

ROWS_MAX = 12  # of a table of evaluations
TIME_COLOURS = ("--second", "--faint", "--accent", "--third", "--rule")


def write_report(path: Path, report: ReportContent) -> None:
    """Writes the report as one HTML file without scripts or links; the file is whole or absent."""
    train, validation = of_kind(report.metrics, "train"), of_kind(report.metrics, "validation")
    judged_by = validation_figure(validation, [*figures(report.best or {}), *report.baseline])
    spent = time_spent(train, report.metrics)
    sections = [
        f"<header><h1>{escape(report.title)}</h1></header>",
        tiles([*_validation_tiles(report, validation, judged_by), *_training_tiles(train, spent)]),
        _list(report.warnings, "warnings card"),
        section("Curves", _curves(charts(train, validation, judged_by, report.baseline))),
        "" if report.metrics else '<p class="remark">Nothing was logged yet.</p>',
        section("Where the time went", _time(spent, diagnose(spent_of(train)))) if spent else "",
        section("Planned and measured", _plan(report.plan)),
        section("Datasets", _details(train, "Training")),
        section("Where the error is", _details(validation, "Validation")),
        section("Predicted against recorded", samples_html(report.samples)),
        _evaluations(report.metrics),
        section("Episodes", strips_html(report.strips)),
        section("Notes", _list(report.notes, "notes card")),
        section("The run", _facts(report)),
        section("Run it again", _command(report.command)),
    ]
    beside = path.with_name(path.name + ".new")
    beside.write_text(document(report.title, "\n".join(filter(None, sections))), encoding="utf-8")
    os.replace(beside, path)


def _training_tiles(train: Sequence[Line], spent: TimeSpent | None) -> list[Tile]:
    tiles: list[Tile] = []
    if train:
        first, last = smoothed_ends(column(train, "loss")[1])
        tiles.append(Tile("training loss", f"{last:.4g}", f"from {first:.4g}"))
        tiles.append(
            Tile("steps", count_text(train[-1]["step"]), f"{train[-1]['epoch']:.1f} epochs")
        )
    if spent is not None:
        speed = train[-1]["samples"] / spent.steps_s
        tiles.append(
            Tile(
                "training time",
                seconds_text(spent.total_s),
                f"{rate_text(speed)} samples/s in its steps",
            )
        )
        tiles.append(
            Tile("waiting for data", f"{spent.shares['waiting for data']:.0%}", "of that time")
        )
    return tiles


def _validation_tiles(
    report: ReportContent, validation: Sequence[Line], name: str | None
) -> list[Tile]:
    if name is None:
        return []
    best = best_of(validation, name)
    if report.best is not None and name in report.best:
        best = int(report.best["step"]), float(report.best[name])
    if best is None:
        return []
    step, value = best
    tiles = [Tile(f"best validation {words(name)}", f"{value:.4g}", f"at step {count_text(step)}")]
    mean = report.baseline.get(name, 0.0)
    if mean > 0:
        tiles.append(Tile("of the mean action's", f"{value / mean:.0%}", f"which is {mean:.4g}"))
    return tiles


def _list(lines: Sequence[str], kind: str) -> str:
    items = "".join(f"<li>{escape(line)}</li>" for line in lines)
    return f'<ul class="{kind}">{items}</ul>' if items else ""


def _curves(made: Sequence[Chart]) -> str:
    cards = ""
    for chart in made:
        keys = "".join(
            f'<span><i style="background:{COLOURS[colour]}"></i>{escape(word)}</span>'
            for colour, word in chart.keys
        )
        cards += card(f'<h3>{escape(chart.title)}</h3><div class="keys">{keys}</div>', chart.svg)
    return f'<div class="pair">{cards}</div>' if cards else ""


def _command(command: str) -> str:
    return f'<pre class="card">{escape(command)}</pre>' if command else ""


def _time(spent: TimeSpent, found: Diagnosis | None) -> str:
    """One stacked bar, its legend in numbers, and the diagnosis."""
    bar = shares = ""
    for colour, (word, share) in zip(TIME_COLOURS, spent.shares.items(), strict=True):
        bar += (
            f'<i style="flex:{share:.4f};background:var({colour})"></i>' if share > 0.0005 else ""
        )
        shares += (
            f'<span><i style="background:var({colour})"></i>{word}<b>{share:.1%}</b> '
            f'<span class="muted">{seconds_text(share * spent.total_s)}</span></span>'
        )
    said = "" if found is None else f"<p>{escape(found.text)}</p>"
    return (
        f'<div class="card">{said}<div class="bar">{bar}</div><div '
        f'class="shares">{shares}</div></div>'
    )


def _plan(plan: PlanView | None) -> str:
    """Memory and time by part as a picture, below what the plan said and what was measured."""
    if plan is None:
        return ""
    said = "".join(f"<p>{escape(line)}</p>" for line in plan.lines)
    data = base64.b64encode(plan.picture).decode()
    image = f'<img alt="memory and time by part" src="data:image/png;base64,{data}">'
    return f'<div class="card">{said}<figure>{image}</figure></div>'


def _details(lines: Sequence[Line], title: str) -> str:
    """The figures per task, per action, per dataset and so on of the last line, as bars."""
    if not lines:
        return ""
    cards: list[str] = []
    for name, values in lines[-1].items():
        if isinstance(values, Mapping) and values and name != "spent":  # shown as shares of time
            cards.append(card(f"<h3>{escape(title)} {escape(words(name))}</h3>", _bars(values)))
    return f'<div class="pair">{"".join(cards)}</div>' if cards else ""


def _bars(values: Mapping[str, float]) -> str:
    most = max((value for value in values.values() if value < float("inf")), default=0.0) or 1.0
    rows = "".join(
        f'<tr><td>{escape(name)}</td><td class="num">{value:.4g}</td>'
        '<td class="level"><i '
        f'style="width:{100 * min(max(value / most, 0.0), 1.0):.1f}%"></i></td></tr>'
        for name, value in values.items()
    )
    return f"<table>{rows}</table>"


def _evaluations(metrics: Sequence[Line]) -> str:
    """A table for each kind of line that has no chart: evaluations in an environment, for
    instance.
    """
    kinds = dict.fromkeys(line["kind"] for line in metrics)
    sections = ""
    for kind in kinds:
        if kind in {"train", "validation", "checkpoint", "saved"}:
            continue
        lines = of_kind(metrics, kind)
        names = figure_names(lines)
        if names:
            sections += section(words(kind).capitalize(), figure_table(lines, names))
    return sections


def figure_table(lines: Sequence[Line], names: Sequence[str]) -> str:
    """Return a table of these figures, a row per line; the last rows of many.

    Args:
        lines: of metrics.jsonl, with their steps.
        names: of the figures.
    """
    head = "".join(f'<th class="num">{escape(words(name))}</th>' for name in ["step", *names])
    rows = ""
    for line in lines[-ROWS_MAX:]:
        cells = [
            count_text(line["step"]),
            *(f"{line[name]:.4g}" if name in line else "" for name in names),
        ]
        rows += "<tr>" + "".join(f'<td class="num">{cell}</td>' for cell in cells) + "</tr>"
    cut = (
        f'<p class="muted">The last {ROWS_MAX} of {len(lines)}.</p>'
        if len(lines) > ROWS_MAX
        else ""
    )
    return f'<div class="card scroll"><table><tr>{head}</tr>{rows}</table>{cut}</div>'


def _facts(report: ReportContent) -> str:
    facts = list(report.facts)
    if report.best is not None and "checkpoint" in report.best:
        facts.append(("Best checkpoint", str(report.best["checkpoint"])))
    rows = "".join(
        f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts
    )
    return f'<div class="card"><table class="facts">{rows}</table></div>' if rows else ""
