"""Encoded images of tables: the formats that are read, and images of more than 8 bits."""

from __future__ import annotations

import io
from typing import Any

import pyarrow as pa
from PIL import Image

from kata.data.counters import CounterCollector
from kata.data.parquet.image_column import EncodedImages, first_image, open_column
from kata.data.parquet.page_body import PageError
from kata.data.storage.store import StoredFile, is_far
from kata.errors import DataError

_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF")
"""Formats that a cell may have. Pillow knows more, and runs other programs for some: Ghostscript
for EPS.
"""


class DeepImageError(ValueError):
    """An image with more than 8 bits per channel, which Pillow's conversion would clip to white."""


def open_image(encoded: Any) -> Image.Image:
    """Open an encoded image; its pixels are decoded later.

    Raises:
        DeepImageError: The image has more than 8 bits per channel.
        OSError, SyntaxError, DecompressionBombError: As Pillow raises them.
    """
    image = Image.open(io.BytesIO(encoded), formats=_FORMATS)
    if image.mode.startswith(("I", "F")):
        image.close()
        raise DeepImageError(f"more than 8 bits per channel, mode {image.mode}")
    return image


def is_deep(file: StoredFile, key: str, row: int) -> bool:
    """Return whether images of a table file have more than 8 bits per channel.

    Args:
        file: the table file.
        key: the camera.
        row: one of its rows. That image is looked at, and in a far file the first of its row
            group, for to find another one takes many requests.

    Returns:
        False too where the image cannot be read: the reader of that row reports it.
    """
    try:
        column = open_column(file, key)
        if is_far(file.store):
            known = _is_deep_by_its_head(first_image(column, row))
            if known is not None:
                return known
        encoded = EncodedImages(CounterCollector()).get(column, row)
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


def _is_deep_by_its_head(head: bytes | None) -> bool | None:
    """Return what the first bytes of an image tell, or None where they tell nothing."""
    if head is None:
        return None
    try:
        open_image(head).close()
    except DeepImageError:
        return True
    except (OSError, SyntaxError, Image.DecompressionBombError):
        return None
    return False
