"""Encoded images of tables: which kinds are read, and which are left out because they hold more than colours."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import pyarrow as pa
from PIL import Image

from kata.data.counters import CounterCollector
from kata.data.parquet.image_column import EncodedImages, open_column
from kata.data.parquet.page_body import PageError
from kata.errors import DataError

_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF")
"""What a cell may hold. Pillow knows more, some of which it hands to other programs, as EPS to Ghostscript."""


class DeepImageError(ValueError):
    """An image with more than 8 bits per channel, of which Pillow's conversion would keep nothing but white."""


def open_image(encoded: Any) -> Image.Image:
    """Open an encoded image; its pixels are decoded later.

    Raises: DeepImageError for more than 8 bits per channel; OSError, SyntaxError and DecompressionBombError as Pillow.
    """
    image = Image.open(io.BytesIO(encoded), formats=_FORMATS)
    if image.mode.startswith(("I", "F")):
        image.close()
        raise DeepImageError(f"more than 8 bits per channel, mode {image.mode}")
    return image


def is_deep(path: Path, key: str, row: int) -> bool:
    """Return whether a row of a table file holds an image of more than 8 bits per channel, as depth maps have.

    Returns: False where the image cannot be read, which reading it will say.
    """
    try:
        encoded = EncodedImages(CounterCollector()).get(open_column(path, key), row)
        if encoded is not None:
            open_image(encoded).close()
    except DeepImageError:
        return True
    except (
        PageError,
        DataError,
        Image.DecompressionBombError,
        pa.ArrowInvalid,
        OSError,
        KeyError,
        SyntaxError,
    ):
        return False
    return False
