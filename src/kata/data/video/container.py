"""Video files as FFmpeg opens them."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

import av
from av.container import InputContainer

FORMATS = {"protocol_whitelist": "file", "format_whitelist": "mov,matroska,webm,avi"}
"""Protocols and formats that FFmpeg may open. It recognises a format by its content, and would
follow a playlist with the name of a video to other files.
"""


def open_video(file: Path | BinaryIO) -> InputContainer:
    """Open a video file to be read; texts in it that are no UTF-8 are of no consequence.

    Raises: FFmpegError, OSError.
    """
    source = str(file) if isinstance(file, Path) else file
    return av.open(source, "r", options=FORMATS, metadata_errors="replace")
