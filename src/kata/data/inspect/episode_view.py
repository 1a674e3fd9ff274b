"""One episode as a picture: frames of all cameras along time, and the curves of its values below
them.
"""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kata.data.dataset.dataset import Dataset
from kata.data.dataset.roles import find_roles
from kata.data.loader.reader import Reader
from kata.html import document, jpeg_url, section
from kata.spec import ACTION, BOOKKEEPING, STATE, Column, Feature, FeatureType, features_of
from kata.units import seconds_text

INK = "#1d2329"
MUTED = "#68717b"
RULE = "#e4e3df"
ACCENT = "#0b6e75"
SECOND = "#c2571a"

# Sizes of the picture, in inches.
_WIDTH = 14.0
_MARGIN = 0.45
_GAP = 0.06
_PANEL_HEIGHT = 1.2

_PANELS_ABREAST = 4
_PANELS_MAX = 80
_DPI = 110
_FRAME_BYTES = 40_000
_WORDS = {FeatureType.STATE: "state", FeatureType.ACTION: "action"}
_COLOURS = {"state": ACCENT, "action": SECOND}
_STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "svg.fonttype": "none",
    "svg.hashsalt": "kata",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": RULE,
    "axes.grid": True,
    "grid.color": RULE,
    "grid.linewidth": 0.6,
    "xtick.color": RULE,
    "ytick.color": RULE,
    "xtick.labelcolor": MUTED,
    "ytick.labelcolor": MUTED,
    "text.color": INK,
}


@dataclass(frozen=True)
class Panel:
    """One dimension over time: its name, and one or two lines (word, values (T,)).

    The word is the role of the line's column, `state` or `action`, or else the column's name.
    """

    name: str
    lines: tuple[tuple[str, NDArray[Any]], ...]


@dataclass(frozen=True)
class Sheet:
    """The content of a view of one episode.

    Attributes:
        title: name of the dataset and number of the episode.
        task: the sentences of its task.
        facts: length and rate in words.
        time_s: (T,) seconds since the episode began.
        shown: (N,) frame numbers of the pictures.
        frames: per camera, uint8 (N, H, W, C).
        panels: the charts.
        left_out: how many charts there is no room for.
    """

    title: str
    task: str
    facts: str
    time_s: NDArray[Any]
    shown: NDArray[np.int64]
    frames: dict[str, NDArray[np.uint8]]
    panels: tuple[Panel, ...]
    left_out: int


def read_sheet(dataset: Dataset, num_frames: int) -> Sheet:
    """Read the one episode of `dataset`, with `num_frames` evenly spread frames of each camera.

    Raises: DataError for damaged files.
    """
    length = dataset.num_frames
    shown = np.unique(np.linspace(0, length - 1, num_frames).round().astype(np.int64))
    with Reader(dataset, {}, keys=list(dataset.cameras)) as reader:
        batch = reader.read(shown)
    tasks = [
        dataset.tasks[number] for number in dict.fromkeys(dataset.column("task_index").tolist())
    ]
    panels = _panels(dataset)
    facts = (
        f"{length} frames, {seconds_text(length / dataset.fps)} at {dataset.fps} frames per second"
    )
    return Sheet(
        title=f"{dataset.repo_id}, episode {dataset.layout.index[0]}",
        task=" / ".join(task for task in tasks if task),
        facts=facts + (f", {dataset.robot_type}" if dataset.robot_type else ""),
        # Counted, as for training: recorded times may be wrong.
        time_s=np.arange(length) / dataset.fps,
        shown=shown,
        frames={key: batch[key] for key in dataset.cameras},
        panels=tuple(panels[:_PANELS_MAX]),
        left_out=max(len(panels) - _PANELS_MAX, 0),
    )


def png(sheet: Sheet) -> bytes:
    """The sheet as one PNG picture."""
    strips = {key: _strip_height(frames) for key, frames in sheet.frames.items()}
    rows = -(-len(sheet.panels) // _PANELS_ABREAST)
    height = (
        1.25
        + sum(0.32 + each for each in strips.values())
        + (0.75 + rows * _PANEL_HEIGHT if rows else 0.2)
    )
    out = io.BytesIO()
    with _figure(height) as figure:
        top = _write_head(figure, sheet, height)
        for key, strip in strips.items():
            top = _draw_strip(figure, key, sheet, top, strip, height)
        _draw_panels(figure, sheet, top, height)
        figure.savefig(out, format="png", dpi=_DPI)
    return out.getvalue()


def page(sheet: Sheet) -> bytes:
    """The sheet as one HTML page that needs no other file."""
    header = f"<header><h1>{escape(sheet.title)}</h1></header>"
    lines = f'<p>{escape(sheet.task)}</p><p class="muted">{escape(sheet.facts)}</p>'
    strips = "".join(_strip(sheet, key) for key in sheet.frames)
    curves = f'<div class="card paper">{_svg(sheet)}</div>' if sheet.panels else ""
    return document(
        sheet.title, "\n".join([header, lines, strips, section("Values", curves)])
    ).encode()


def _strip(sheet: Sheet, key: str) -> str:
    """Frames of one camera along time."""
    figures = ""
    for number, frame in zip(sheet.shown, sheet.frames[key], strict=True):
        source = jpeg_url(frame, width=320, bytes_max=_FRAME_BYTES)
        caption = f"<figcaption>{_stamp(sheet, number)}</figcaption>"
        figures += f'<figure><img src="{source}" alt="">{caption}</figure>'
    return section(key, f'<div class="frames">{figures}</div>')


def _panels(dataset: Dataset) -> list[Panel]:
    """State and action of equal dimensions share their panels; other columns of numbers follow."""
    keys = [key for key, column in dataset.columns.items() if _is_drawn(key, column)]
    # A view shows what is there, and leaves judging to the check.
    values = {
        key: dataset.column(key).astype(np.float64).reshape(dataset.num_frames, -1) for key in keys
    }
    found = find_roles(dataset.columns, {}).found
    features = features_of(dataset.columns, found)
    bearers = {found.get(key, key): key for key in keys}
    pair = [bearers[role] for role in (STATE, ACTION) if role in bearers]
    others = [key for key in keys if key not in pair]
    groups = [[key] for key in (*pair, *others)]
    if len(pair) == 2 and _are_pair(*(dataset.columns[key] for key in pair)):
        groups[:2] = [pair]
    panels: list[Panel] = []
    for group in groups:
        first = group[0]
        prefix = _word(first, features) if first in pair else first
        names = _names(
            first,
            dataset.columns[first],
            values[first].shape[1],
            prefix="" if group == pair and len(pair) == 2 else f"{prefix} ",
        )
        for place, name in enumerate(names):
            lines = [(_word(key, features), values[key][:, place]) for key in group]
            panels.append(Panel(name, tuple(lines)))
    return panels


def _is_drawn(key: str, column: Column) -> bool:
    return not column.is_camera and column.dtype != "string" and key not in BOOKKEEPING


def _are_pair(state: Column, action: Column) -> bool:
    if state.shape != action.shape:
        return False
    return state.names == action.names or state.names is None or action.names is None


def _names(key: str, column: Column, size: int, prefix: str) -> list[str]:
    names = column.names if column.names is not None and len(column.names) == size else None
    if size == 1:
        return [key if names is None else f"{prefix}{names[0]}"]
    return [f"{prefix}{name}" for name in (names or range(size))]


def _word(key: str, features: Mapping[str, Feature]) -> str:
    """Return a column's word in the legend: its role, or its own name where it has none."""
    return _WORDS.get(features[key].type, key) if key in features else key


@contextmanager
def _figure(height: float) -> Generator[Any]:
    import matplotlib as mpl
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE), warnings.catch_warnings():
        # A task in a script that the font lacks is drawn as boxes; the page shows it as it is.
        warnings.filterwarnings("ignore", message="Glyph .* missing")
        figure = Figure(figsize=(_WIDTH, height), facecolor="white")
        FigureCanvasAgg(figure)
        yield figure


def _write_head(figure: Any, sheet: Sheet, height: float) -> float:
    """Title, task and facts; returns where the next thing begins, in inches from the top."""

    def write(text: str, top: float, size: float, colour: str, weight: str = "normal") -> None:
        figure.text(
            _MARGIN / _WIDTH,
            1 - top / height,
            text,
            size=size,
            color=colour,
            weight=weight,
            va="top",
            parse_math=False,
        )

    write(sheet.title, 0.3, 15, INK, "bold")
    write(sheet.task if len(sheet.task) < 150 else sheet.task[:149] + "…", 0.62, 10.5, INK)
    write(sheet.facts, 0.86, 9, MUTED)
    return 1.15


def _strip_height(frames: NDArray[np.uint8]) -> float:
    count, rows, columns = frames.shape[:3]
    return _picture_width(count) * rows / columns


def _picture_width(count: int) -> float:
    return (_WIDTH - 2 * _MARGIN - (count - 1) * _GAP) / max(count, 4)


def _draw_strip(
    figure: Any, key: str, sheet: Sheet, top: float, strip: float, height: float
) -> float:
    figure.text(
        _MARGIN / _WIDTH, 1 - (top + 0.2) / height, key, size=8.5, weight="bold", parse_math=False
    )
    width = _picture_width(len(sheet.shown))
    for place, (number, frame) in enumerate(zip(sheet.shown, sheet.frames[key], strict=True)):
        left = _MARGIN + place * (width + _GAP)
        axes = figure.add_axes(
            (left / _WIDTH, 1 - (top + 0.26 + strip) / height, width / _WIDTH, strip / height)
        )
        axes.imshow(
            np.broadcast_to(frame, (*frame.shape[:2], 3)),
            aspect="auto",
            interpolation="antialiased",
        )
        axes.set_axis_off()
        box = {"facecolor": "black", "alpha": 0.55, "edgecolor": "none", "pad": 1.5}
        axes.text(
            0.025,
            0.04,
            _stamp(sheet, number),
            transform=axes.transAxes,
            color="white",
            size=7.5,
            bbox=box,
        )
    return top + 0.32 + strip


def _stamp(sheet: Sheet, number: np.int64) -> str:
    return f"{sheet.time_s[number]:.2f} s"


def _draw_panels(figure: Any, sheet: Sheet, top: float, height: float) -> None:
    """Draw small charts over one time axis; thin lines mark the times of the pictures."""
    if not sheet.panels:
        return
    words: list[str] = []
    for panel in sheet.panels:
        for word, _ in panel.lines:
            if word in _COLOURS and word not in words:
                words.append(word)
    for place, word in enumerate(words):
        colour = _colour(word)
        figure.text(
            (_MARGIN + place * 0.8) / _WIDTH,
            1 - (top + 0.3) / height,
            f"— {word}",
            color=colour,
            weight="bold",
        )
    if sheet.left_out:
        figure.text(
            1 - _MARGIN / _WIDTH,
            1 - (top + 0.3) / height,
            f"{sheet.left_out} more dimensions",
            ha="right",
        )
    width = (_WIDTH - 2 * _MARGIN) / _PANELS_ABREAST
    for place, panel in enumerate(sheet.panels):
        row, column = divmod(place, _PANELS_ABREAST)
        left, lower = _MARGIN + column * width + 0.42, top + 0.4 + (row + 1) * _PANEL_HEIGHT - 0.26
        size = ((width - 0.55) / _WIDTH, (_PANEL_HEIGHT - 0.5) / height)
        axes = figure.add_axes((left / _WIDTH, 1 - lower / height, *size))
        _draw_panel(axes, panel, sheet)
        if place + _PANELS_ABREAST >= len(sheet.panels):
            axes.tick_params(labelbottom=True)


def _draw_panel(axes: Any, panel: Panel, sheet: Sheet) -> None:
    from matplotlib.ticker import FuncFormatter, MaxNLocator

    for word, values in panel.lines:
        marker = "o" if len(values) == 1 else ""
        axes.plot(
            sheet.time_s, values, color=_colour(word), linewidth=1.1, marker=marker, markersize=3
        )
    for number in sheet.shown:
        axes.axvline(sheet.time_s[number], color=RULE, linewidth=0.6, zorder=0)
    values = np.concatenate([line for _, line in panel.lines])
    values = values[np.isfinite(values)]
    if values.size and np.ptp(values) <= 1e-6 * max(1.0, float(np.abs(values).max())):
        middle = float(values.mean())
        axes.set_ylim(middle - max(abs(middle), 1.0) * 0.1, middle + max(abs(middle), 1.0) * 0.1)
    axes.set_xlim(0, max(sheet.time_s[-1], 1e-3))
    axes.grid(visible=False, axis="x")
    axes.set_title(panel.name, loc="left", size=8, pad=3, color=INK, parse_math=False)
    axes.yaxis.set_major_locator(MaxNLocator(3))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    axes.xaxis.set_major_locator(MaxNLocator(5))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g} s"))
    axes.tick_params(labelsize=7, length=2, pad=2, labelbottom=False)


def _colour(word: str) -> str:
    return _COLOURS.get(word, MUTED)


def _svg(sheet: Sheet) -> str:
    rows = -(-len(sheet.panels) // _PANELS_ABREAST)
    height = 0.55 + rows * _PANEL_HEIGHT
    out = io.StringIO()
    with _figure(height) as figure:
        _draw_panels(figure, sheet, 0.0, height)
        figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    return re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
