"""HTML pages that need no other file: skeleton, style sheet, and frames as JPEG data URLs."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from typing import NamedTuple

import numpy as np
from PIL.Image import Image
from PIL.Image import fromarray as image_from_array

JPEG_QUALITIES = (82, 70, 55, 40)
WIDTH_MIN = 64


class Tile(NamedTuple):
    """One of the few numbers that matter most: its name, its value, and a remark."""

    name: str
    value: str
    remark: str


def document(title: str, body: str) -> str:
    """Return a whole page without scripts or links.

    Args:
        title: plain text.
        body: HTML; what comes from outside must be escaped already.
    """
    style = files("kata").joinpath("html.css").read_text(encoding="utf-8")
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n<body>\n<main>\n"
        f"{body}\n<footer>Written by kata.</footer>\n</main>\n</body>\n</html>\n"
    )


def section(title: str, body: str) -> str:
    """Return a titled section, or nothing when there is nothing to show."""
    return f"<section><h2>{escape(title)}</h2>\n{body}</section>" if body else ""


def card(head: str, body: str) -> str:
    """Return a framed part of a page: HTML for its head, and HTML below it."""
    return f'<div class="card"><div class="head">{head}</div>{body}</div>'


def tiles(shown: Sequence[Tile]) -> str:
    """Return a row of numbers in large type, or nothing without any."""
    cells = ""
    for tile in shown:
        name, remark = escape(tile.name), escape(tile.remark)
        cells += f'<div class="tile"><b>{escape(tile.value)}</b>{name}<span>{remark}</span></div>'
    return f'<div class="tiles card">{cells}</div>' if cells else ""


def jpeg_url(frame_hwc: np.ndarray, *, width: int, bytes_max: int) -> str:
    """Return a `data:` URL of a frame.

    Quality gives way first, then size.

    Args:
        frame_hwc: uint8 (H, W, 3 or 1).
        width: pixels at most.
        bytes_max: length of the URL, approximately.
    """
    assert frame_hwc.dtype == np.uint8, frame_hwc.dtype
    grey = frame_hwc.ndim == 2 or frame_hwc.shape[2] == 1
    image = image_from_array(frame_hwc.reshape(frame_hwc.shape[:2]) if grey else frame_hwc[..., :3])
    while True:
        image.thumbnail((width, width))
        for quality in JPEG_QUALITIES:
            address = _encoded(image, quality)
            if len(address) <= bytes_max or (width <= WIDTH_MIN and quality == JPEG_QUALITIES[-1]):
                return address
        width = max(WIDTH_MIN, width * 3 // 4)


def _encoded(image: Image, quality: int) -> str:
    out = io.BytesIO()
    image.save(out, "JPEG", quality=quality, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(out.getvalue()).decode()
