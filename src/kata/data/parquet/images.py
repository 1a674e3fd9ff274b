"""Encoded images of tables: the formats that are read, and images of more than 8 bits."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
from PIL import Image

from kata.data.counters import CounterCollector
from kata.data.parquet.image_column import EncodedImages, open_column
from kata.data.parquet.page_body import PageError
from kata.data.storage.store import StoredFile, is_far
from kata.errors import DataError

_FORMATS = ("PNG", "JPEG", "WEBP", "BMP", "TIFF")
"""Formats that a cell may have. Pillow knows more, and runs other programs for some: Ghostscript
for EPS.
"""


_REQUESTS = 16
"""Requests at a time that look for an image in a far file."""


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
    """Return whether a row of a table file holds an image of more than 8 bits per channel.

    Returns:
        False too where the image cannot be read: the reader of that row reports it.
    """
    images = EncodedImages(CounterCollector())
    try:
        column = open_column(file, key)
        if is_far(file.store):
            # Else every image of the row group would be brought for one of them.
            with ThreadPoolExecutor(_REQUESTS, "kata-images") as threads:
                images.find(column, row, threads.map)
        encoded = images.get(column, row)
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
