"""Samples and episodes: frames beside what was recorded and predicted."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np

from kata.html import jpeg_url
from kata.train.report.charts import COLOURS, INK, SECOND, action_chart
from kata.train.report.parts import Filmstrip, SampleView

SAMPLES_MAX = 8
STRIPS_MAX = 12
STRIP_FRAMES_MAX = 20
DIMS_MAX = 8
SAMPLE_IMAGES_BYTES = 800_000
STRIP_IMAGES_BYTES = 1_200_000


def samples_html(samples: Sequence[SampleView]) -> str:
    """A card for each sample: its frames, and its action dimensions as small charts."""
    shown = samples[:SAMPLES_MAX]
    num_images = sum(len(sample.frames) for sample in shown)
    bytes_max = min(60_000, SAMPLE_IMAGES_BYTES // max(num_images, 1))
    cards = "".join(_sample(sample, bytes_max) for sample in shown)
    return (
        f'<div class="stack">{cards}{_cut(len(shown), len(samples), "samples")}</div>'
        if cards
        else ""
    )


def strips_html(strips: Sequence[Filmstrip]) -> str:
    """A card for each episode: evenly chosen frames in order."""
    shown = strips[:STRIPS_MAX]
    num_images = sum(min(len(strip.frames), STRIP_FRAMES_MAX) for strip in shown)
    bytes_max = min(12_000, STRIP_IMAGES_BYTES // max(num_images, 1))
    cards = "".join(_strip(strip, bytes_max) for strip in shown)
    return (
        f'<div class="stack">{cards}{_cut(len(shown), len(strips), "episodes")}</div>'
        if cards
        else ""
    )


def _sample(sample: SampleView, bytes_max: int) -> str:
    assert sample.recorded.shape == sample.predicted.shape, (
        sample.recorded.shape,
        sample.predicted.shape,
    )
    frames = "".join(
        f'<figure><img alt="{escape(camera)}" '
        f'src="{jpeg_url(frame, width=420, bytes_max=bytes_max)}">'
        f"<figcaption>{escape(camera)}</figcaption></figure>"
        for camera, frame in sample.frames.items()
    )
    keys = "".join(
        f'<span><i style="background:{COLOURS[colour]}"></i>{word}</span>'
        for colour, word in ((INK, "recorded"), (SECOND, "predicted"))
    )
    head = f'<div class="head"><h3>{escape(sample.title)}</h3><div class="keys">{keys}</div></div>'
    charts = f"<div>{_dims(sample)}</div>"
    if not frames:
        return f'<div class="card">{head}{charts}</div>'
    columns = f"sample cameras-{min(len(sample.frames), 3)}"
    body = f'<div class="{columns}"><div class="frames">{frames}</div>{charts}</div>'
    return f'<div class="card">{head}{body}</div>'


def _dims(sample: SampleView) -> str:
    """At most DIMS_MAX dimensions: those whose recorded values range the widest, in the
    dataset's order.
    """
    num_steps, num_dims = sample.recorded.shape
    is_pad = np.zeros(num_steps, dtype=bool) if sample.is_pad is None else sample.is_pad
    valid = int((~is_pad).sum())
    names = list(sample.action_names) or [f"action {dim}" for dim in range(num_dims)]
    ranges = np.ptp(sample.recorded[:valid] if valid else sample.recorded, axis=0)
    shown = sorted(np.argsort(-ranges, kind="stable")[:DIMS_MAX].tolist())
    cells = "".join(
        f"<div><p>{escape(names[dim])}</p>"
        f"{action_chart(sample.recorded[:, dim], sample.predicted[:, dim], valid)}</div>"
        for dim in shown
    )
    remarks: list[str] = []
    if num_dims > len(shown):
        remarks.append(f"The {len(shown)} of {num_dims} actions that move the most.")
    if valid < num_steps:
        remarks.append("Shaded: after the end of the episode.")
    remark = f'<p class="remark">{" ".join(remarks)}</p>' if remarks else ""
    return f'<div class="dims">{cells}</div>{remark}'


def _strip(strip: Filmstrip, bytes_max: int) -> str:
    count = min(len(strip.frames), STRIP_FRAMES_MAX)
    rows = (
        np.linspace(0, len(strip.frames) - 1, count).round().astype(int).tolist() if count else []
    )
    images = "".join(
        f'<img alt="frame {row}" '
        f'src="{jpeg_url(strip.frames[row], width=200, bytes_max=bytes_max)}">'
        for row in rows
    )
    caption = f'<p class="remark">{escape(strip.caption)}</p>' if strip.caption else ""
    cut = (
        f'<span class="muted">{count} of {len(strip.frames)} frames</span>'
        if len(strip.frames) > count
        else ""
    )
    head = f'<div class="head"><h3>{escape(strip.title)}</h3><small>{cut}</small></div>'
    return f'<div class="card">{head}<div class="strip">{images}</div>{caption}</div>'


def _cut(shown: int, num_all: int, what: str) -> str:
    return f'<p class="muted">The first {shown} of {num_all} {what}.</p>' if num_all > shown else ""
