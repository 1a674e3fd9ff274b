"""Curves as small inline SVG charts in the colors of the page."""

from __future__ import annotations

from html import escape
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kata.data.check.faults import Curve

_WIDTH, _HEIGHT = 460, 150
_LEFT, _RIGHT = 46, 6
_TOP, _BOTTOM = 8, 20
_POINTS_MAX = 500
_COLORS = ("--accent", "--second")


class _Scale:
    """A linear map from values to pixels."""

    def __init__(self, first: float, last: float, begin: float, end: float) -> None:
        self._first, self._begin = first, begin
        self._factor = (end - begin) / (last - first)

    def __call__(self, values: NDArray[Any]) -> NDArray[np.float64]:
        return self._begin + (values - self._first) * self._factor


def plot(curve: Curve) -> str:
    """Return the caption, the words of the lines, and the chart as HTML."""
    x = curve.x.astype(np.float64)
    values = np.concatenate([line for _, line in curve.lines]).astype(np.float64)
    values = values[np.isfinite(values)]
    low, high = (float(values.min()), float(values.max())) if values.size else (0.0, 1.0)
    if high - low <= 1e-9 * max(1.0, abs(high)):
        low, high = low - 1.0, high + 1.0
    across = _Scale(float(x[0]), float(max(x[-1], x[0] + 1e-9)), _LEFT, _WIDTH - _RIGHT)
    up = _Scale(low, high, _HEIGHT - _BOTTOM, _TOP)
    parts = [_shaded(curve, across), *_axes(x, (low, high), across, up, curve.unit)]
    keys = ""
    for number, (word, line) in enumerate(curve.lines):
        color = "--second" if word == "action" else _COLORS[number % len(_COLORS)]
        parts += _line(x, line.astype(np.float64), across, up, color)
        keys += f'<span><i style="background:var({color})"></i>{escape(word)}</span>'
    svg = f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}">{"".join(parts)}</svg>'
    return f'<div><p>{escape(curve.title)} <span class="keys">{keys}</span></p>{svg}</div>'


def _shaded(curve: Curve, across: _Scale) -> str:
    if curve.shaded is None:
        return ""
    first, end = across(np.clip(curve.shaded, curve.x[0], curve.x[-1])).tolist()
    return (
        f'<rect x="{first:.1f}" y="{_TOP}" width="{max(end - first, 2):.1f}" '
        f'height="{_HEIGHT - _TOP - _BOTTOM}" fill="var(--second)" opacity="0.16"/>'
    )


def _axes(
    x: NDArray[np.float64], reach: tuple[float, float], across: _Scale, up: _Scale, unit: str
) -> list[str]:
    """Draw a line and a number at both ends and the middle of each axis."""
    style = 'font-size="10" fill="var(--muted)"'
    parts: list[str] = []
    for value in np.linspace(*reach, 3).tolist():
        y = float(up(np.array(value)))
        place = f'x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"'
        parts.append(
            f'<line {place} stroke="var(--rule)"/>'
            f'<text x="{_LEFT - 6}" y="{y + 3.5:.1f}" text-anchor="end" {style}>{value:.3g}</text>'
        )
    for value, anchor in zip(
        np.linspace(x[0], x[-1], 3).tolist(), ("start", "middle", "end"), strict=True
    ):
        place = float(across(np.array(value)))
        parts.append(
            f'<text x="{place:.1f}" y="{_HEIGHT - 5}" text-anchor="{anchor}" {style}>'
            f"{value:.3g} {unit}</text>"
        )
    return parts


def _line(
    x: NDArray[np.float64], y: NDArray[np.float64], across: _Scale, up: _Scale, color: str
) -> list[str]:
    """Draw one line; values that are not finite interrupt it."""
    good = np.isfinite(y)
    rows = _thinned(np.where(good, y, 0.0))
    rows = rows[good[rows]]
    breaks = np.flatnonzero([not good[a:b].all() for a, b in pairwise(rows.tolist())])
    parts: list[str] = []
    for each in np.split(rows, breaks + 1):
        points = zip(across(x[each]).tolist(), up(y[each]).tolist(), strict=True)
        text = " ".join(f"{a:.1f},{b:.1f}" for a, b in points)
        parts.append(
            f'<polyline points="{text}" fill="none" stroke="var({color})" stroke-width="1.4" '
            'stroke-linejoin="round"/>'
        )
    return parts


def _thinned(y: NDArray[np.float64]) -> NDArray[np.int64]:
    """Return rows of at most about _POINTS_MAX points, with the extremes of each stretch."""
    if len(y) <= _POINTS_MAX:
        return np.arange(len(y))
    kept = {0, len(y) - 1}
    for part in np.array_split(np.arange(len(y)), _POINTS_MAX // 2):
        kept |= {int(part[y[part].argmin()]), int(part[y[part].argmax()])}
    return np.array(sorted(kept))
