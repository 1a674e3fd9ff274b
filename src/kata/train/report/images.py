"""Frames as JPEG data addresses, small enough that a report can be mailed."""

from __future__ import annotations

import base64
import io

import numpy as np
from PIL.Image import Image
from PIL.Image import fromarray as image_from_array

JPEG_QUALITIES = (82, 70, 55, 40)
WIDTH_MIN = 64


def jpeg_address(frame_hwc: np.ndarray, *, width: int, bytes_max: int) -> str:
    """A `data:` address of a uint8 frame (H, W, 3 or 1), at most `width` wide and about `bytes_max` long.

    Quality gives way first, then size.
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
