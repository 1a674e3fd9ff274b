"""Charts as inline SVG: matplotlib draws them, the page's style sheet gives them their colours.

Each colour is drawn as a stand-in and then replaced by a CSS variable: one drawing serves light and
dark.
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

# Stand-in colour -> CSS variable of the page.
COLOURS = {
    "#010101": "var(--ink)",
    "#020202": "var(--muted)",
    "#030303": "var(--rule)",
    "#040404": "var(--accent)",
    "#050505": "var(--second)",
    "#060606": "var(--faint)",
    "#070707": "var(--shade)",
}
INK, MUTED, RULE, ACCENT, SECOND, FAINT, SHADE = COLOURS
POINTS_MAX = 600
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "kata",
    "font.size": 8.6,
    "font.family": "DejaVu Sans",
    "text.color": INK,
    "axes.edgecolor": RULE,
    "axes.labelcolor": MUTED,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.spines.left": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "ytick.major.size": 0.0,
    "ytick.minor.size": 0.0,
    "xtick.major.size": 3.0,
    "figure.facecolor": "none",
    "lines.solid_capstyle": "round",
    "lines.markersize": 3.0,
    "lines.markeredgewidth": 0.0,
    "path.simplify": True,
}


@dataclass(frozen=True)
class Series:
    """One line of a chart: x and y (N,), how it is drawn, and the word for it."""

    x: np.ndarray
    y: np.ndarray
    label: str
    colour: str = ACCENT
    width: float = 1.6
    marks: bool = False


def curve_chart(series: Sequence[Series], *, level: float | None = None) -> str:
    """Draw curves over steps, with a dashed line at `level`; over a decade the scale is
    logarithmic.
    """
    with _figure(4.9, 2.3) as (figure, svg):
        axes = figure.subplots()
        for each in series:
            x, y = thinned(each.x, each.y)
            marker = "o" if each.marks or len(x) == 1 else ""
            axes.plot(x, y, color=each.colour, linewidth=each.width, marker=marker)
        values = np.concatenate([s.y for s in series])
        if level is not None:
            axes.axhline(level, color=INK, linewidth=1.0, dashes=(4, 3))
            values = np.append(values, level)
        _scale_y(axes, values[np.isfinite(values)])
        _step_axis(axes)
    return svg()


@dataclass(frozen=True)
class ChartPanel:
    """One of several charts above each other: its title and lines, and whether y is a share."""

    title: str
    series: Sequence[Series]
    is_share: bool = False


def minute_chart(panels: Sequence[ChartPanel]) -> str:
    """Draw panels above each other over the same minutes; the first is the highest."""
    heights = [1.6, *[1.0] * (len(panels) - 1)]
    with _figure(4.9, 0.7 + sum(heights)) as (figure, svg):
        rows = figure.subplots(len(panels), sharex=True, squeeze=False, height_ratios=heights)
        for (axes,), panel in zip(rows, panels, strict=True):
            for each in panel.series:
                x, y = thinned(each.x, each.y)
                marker = "o" if each.marks or len(x) == 1 else ""
                axes.plot(x, y, color=each.colour, linewidth=each.width, marker=marker)
            axes.set_title(panel.title, loc="left", fontsize=8.6, color=MUTED)
            if panel.is_share:
                axes.set_ylim(0, 1.04)
                axes.set_yticks([0, 0.5, 1], ["0 %", "50 %", "100 %"])
            else:
                values = np.concatenate([each.y for each in panel.series])
                _scale_y(axes, values[np.isfinite(values)])
        rows[-1][0].set_xlabel("minutes")
        rows[-1][0].set_xlim(left=0)
    return svg()


def action_chart(recorded_t: np.ndarray, predicted_t: np.ndarray, valid: int) -> str:
    """One action dimension over a chunk: recorded against predicted, (T,) each.

    valid: steps before the padding; the rest is shaded. Margins are fixed, so that neighbours line
        up.
    """
    last = max(len(recorded_t) - 1, 1)
    with _figure(2.2, 0.95, layout=None) as (figure, svg):
        axes = figure.add_axes((0.17, 0.17, 0.8, 0.77))
        if valid < len(recorded_t):
            axes.axvspan(max(valid - 0.5, 0), last, color=SHADE, linewidth=0)
        axes.plot(recorded_t, color=INK, linewidth=1.0)
        axes.plot(predicted_t, color=SECOND, linewidth=1.4)
        axes.locator_params(axis="y", nbins=3)
        axes.tick_params(labelsize=7.5, pad=2)
        axes.set_xticks([0, last])
        axes.set_xlim(0, last)
    return svg()


def smoothed(y: np.ndarray, width: int) -> np.ndarray:
    """Running mean over `width` values around each, without the non-finite ones; ends use what
    there is.
    """
    good = np.isfinite(y)
    kernel = np.ones(width)
    # `full` cut by hand: `same` returns the kernel's length where that is longer than the data.
    cut = slice((width - 1) // 2, (width - 1) // 2 + len(y))
    total = np.convolve(np.where(good, y, 0.0), kernel)[cut]
    count = np.convolve(good.astype(float), kernel)[cut]
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


@contextmanager
def _figure(
    width: float, height: float, layout: Literal["constrained"] | None = "constrained"
) -> Generator[tuple[Any, Callable[[], str]]]:
    """A figure in the page's style, and a function that returns its SVG after the block."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    drawn = io.StringIO()
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout=layout)
        FigureCanvasSVG(figure)
        yield figure, lambda: _themed(drawn.getvalue())
        figure.savefig(
            drawn, format="svg", transparent=True, metadata={"Date": None, "Creator": None}
        )


def _themed(svg: str) -> str:
    """The bare <svg> element, sized by its box, coloured by the page."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'(<svg[^>]*?) width="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r'(<svg[^>]*?) height="[^"]*"', r"\1", svg, count=1)
    svg = re.sub(r"\s*xmlns(:xlink)?=\"[^\"]*\"", "", svg).replace("xlink:href", "href")
    svg = re.sub(r'<g id="[^"]*">', "<g>", svg)
    for stand_in, variable in COLOURS.items():
        svg = svg.replace(stand_in, variable)
    return re.sub(r"\s*\n\s*", " ", svg)


def thinned(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """At most about POINTS_MAX points, keeping the smallest and largest value of each stretch."""
    if len(x) <= POINTS_MAX:
        return x, y
    kept = [0, len(x) - 1]
    for part in np.array_split(np.arange(len(x)), POINTS_MAX // 2):
        low = np.where(np.isfinite(y[part]), y[part], np.inf)
        high = np.where(np.isfinite(y[part]), y[part], -np.inf)
        kept += [int(part[low.argmin()]), int(part[high.argmax()])]
    rows = np.unique(kept)
    return x[rows], y[rows]


def _scale_y(axes: Any, values: np.ndarray) -> None:
    """Log scale for positive values that span more than a decade; plain numbers on the ticks
    either way.
    """
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    if len(values) and values.min() > 0 and values.max() / values.min() > 10:
        axes.set_yscale("log")
        span = np.log10(values.max() / values.min())
        axes.yaxis.set_major_locator(
            LogLocator(subs=(1, 2, 5) if span < 1.3 else (1, 3), numticks=9)
        )
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.locator_params(axis="y", nbins=5)
        if len(values) and values.min() >= 0:
            axes.set_ylim(0, max(float(values.max()) * 1.06, 1e-12))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))


def _step_axis(axes: Any) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: _step_text(value)))
    axes.set_xlim(left=0)


def _step_text(step: float) -> str:
    return f"{step / 1000:g}k" if step >= 1000 else f"{step:g}"
