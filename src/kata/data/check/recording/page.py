"""The page of a check: what was looked at, and each finding with its curves and its frames."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kata.data.check.faults import Fault, RecordingFaults, Shot
from kata.data.check.findings import Report
from kata.data.check.recording.plot import plot
from kata.data.dataset.dataset import Dataset
from kata.data.loader.reader import Reader
from kata.errors import FrameError
from kata.html import Tile, card, document, jpeg_url, section, tiles
from kata.units import count_text

SHOWN_MAX = 8
"""Findings of one kind with curves and frames; the others are listed."""
LISTED_MAX = 100

_FRAME_BYTES = 16_000
_FRAME_WIDTH = 320


def check_page(report: Report, data: Dataset | None, keep_ranges: Path | None) -> bytes:
    """Return the page of a check as HTML that needs no other file.

    Args:
        report: the check, with the findings of the rules over the recording.
        data: the episodes that these rules looked at, for their frames; None where none opens.
        keep_ranges: the file that the ranges without faults were written to.
    """
    recording = report.recording or RecordingFaults()
    by_kind: dict[str, list[Fault]] = {}
    for fault in recording.faults:
        by_kind.setdefault(fault.rule.kind, []).append(fault)
    shown: list[Fault] = []
    for faults in by_kind.values():
        shown += faults[:SHOWN_MAX]
    pictures = _pictures(shown, data)
    looked = ", ".join(f"{name} {count_text(number)}" for name, number in report.seen.items())
    body = [
        f"<header><h1>Check of {escape(report.name)}</h1></header>",
        f'<p class="remark">Looked at: {escape(looked)}.</p>',
        tiles(_numbers(report, recording)),
        section("Rules", _rules(recording, by_kind)),
    ]
    for kind, faults in by_kind.items():
        body.append(section(kind.capitalize(), _findings(faults, pictures)))
    body.append(section("Files, tables and statistics", _problems(report, set(by_kind))))
    if recording.keep_ranges():
        body.append(section("Leave them out", _remedy(report, recording, keep_ranges)))
    return document(f"Check of {report.name}", "\n".join(filter(None, body))).encode()


def _numbers(report: Report, recording: RecordingFaults) -> list[Tile]:
    faults = len(recording.faults)
    affected = set[int]().union(*(fault.episodes for fault in recording.faults))
    frames = 0
    for episode, ranges in recording.keep_ranges().items():
        frames += recording.lengths[int(episode)] - sum(end - first for first, end in ranges)
    return [
        Tile("faults of recording", count_text(faults), f"by {len(recording.looked)} rules"),
        Tile("episodes with a fault", count_text(len(affected)), "one may have several"),
        Tile("frames to leave out", count_text(frames), "by --write_ranges"),
        Tile("errors", count_text(report.errors), "of files, tables and statistics"),
    ]


def _rules(recording: RecordingFaults, by_kind: dict[str, list[Fault]]) -> str:
    rows = "<tr><th>rule</th><th>looked at</th><th class=num>found</th></tr>"
    for kind, looked in recording.looked.items():
        count = len(by_kind.get(kind, ()))
        number = f'<span class="found">{count_text(count)}</span>' if count else "0"
        if looked.startswith("not looked at"):
            number = "–"
        rows += f'<tr><td class="word">{escape(kind)}</td><td class="muted">{escape(looked)}</td>'
        rows += f'<td class="num">{number}</td></tr>'
    return f'<div class="card"><table>{rows}</table></div>' if recording.looked else ""


def _findings(faults: Sequence[Fault], pictures: dict[Shot, str]) -> str:
    """Return the rule, cards for the first findings, and a list of the others."""
    rule = faults[0].rule
    text = f'<p class="remark">Rule: {escape(rule.rule)}. Remedy: {escape(rule.remedy)}.</p>'
    cards = ""
    for fault in faults[:SHOWN_MAX]:
        body = ""
        if fault.curves:
            body += f'<div class="plots">{"".join(plot(curve) for curve in fault.curves)}</div>'
        frames = "".join(_figure(shot, pictures) for shot in fault.shots if shot in pictures)
        if frames:
            body += f'<div class="frames">{frames}</div>'
        shown = f'<div class="fault">{body}</div>' if body else ""
        cards += card(f"<h3>{escape(fault.what)}</h3>", shown)
    rest = faults[SHOWN_MAX:]
    items = "".join(f"<li>{escape(fault.what)}</li>" for fault in rest[:LISTED_MAX])
    if len(rest) > LISTED_MAX:
        items += f"<li>{count_text(len(rest) - LISTED_MAX)} more, all in --json</li>"
    listed = f'<ul class="card notes">{items}</ul>' if items else ""
    return f'{text}<div class="stack">{cards}{listed}</div>'


def _remedy(report: Report, recording: RecordingFaults, keep_ranges: Path | None) -> str:
    """Return the options that leave the faults out."""
    name = keep_ranges or "keep.json"
    lines = [f"kata train --dataset.keep_ranges={name} ..."]
    if keep_ranges is None:
        lines.insert(0, f"kata data check {report.name} --write_ranges={name}")
    if recording.spoiled():
        episodes = str(recording.spoiled()).replace(" ", "")
        lines.append("# or only the episodes of which nothing remains:")
        lines.append(f"kata train --dataset.exclude_episodes={episodes} ...")
    return f'<pre class="card">{escape(chr(10).join(lines))}</pre>'


def _figure(shot: Shot, pictures: dict[Shot, str]) -> str:
    caption = escape(shot.caption)
    image = f'<img alt="{caption}" src="{pictures[shot]}">'
    return f"<figure>{image}<figcaption>{caption}</figcaption></figure>"


def _problems(report: Report, kinds: set[str]) -> str:
    """Return a table of the other problems, one row per kind."""
    rows = ""
    for group in report.groups():
        first = group[0]
        if first.kind in kinds:
            continue
        level = '<span class="found">error</span>' if first.error else "warning"
        more = f" (and {count_text(len(group) - 1)} more)" if len(group) > 1 else ""
        kind = escape(first.kind)
        what = escape(first.what)
        remedy = escape(first.remedy)
        rows += f'<tr><td class="word">{level}</td><td class="word">{kind}</td>'
        rows += f'<td>{what}{more}<br><span class="muted">{remedy}</span></td></tr>'
    return f'<div class="card"><table>{rows}</table></div>' if rows else ""


def _pictures(faults: Sequence[Fault], data: Dataset | None) -> dict[Shot, str]:
    """Read the frames of findings one by one: few are shown, and large ones must not add up."""
    shots = set[Shot]().union(*(fault.shots for fault in faults))
    if data is None or not shots:
        return {}
    rows = np.array([shot.row for shot in shots])
    positions = np.unique(np.searchsorted(data.episodes.start, rows, side="right") - 1)
    part = data.subset(positions.tolist())
    shift = part.episodes.start - data.episodes.start[positions]
    found: dict[Shot, str] = {}
    with Reader(part, {}, keys=sorted({shot.camera for shot in shots})) as reader:
        for shot in sorted(shots):
            place = int(np.searchsorted(data.episodes.start[positions], shot.row, side="right")) - 1
            try:
                frame: NDArray[np.uint8] = reader.read(np.array([shot.row + shift[place]]))[
                    shot.camera
                ][0]
            except FrameError:
                continue  # noted as an error already
            found[shot] = jpeg_url(frame, width=_FRAME_WIDTH, bytes_max=_FRAME_BYTES)
    return found
