"""Decoded frames held as the decoder gives them: 4:2:0 takes half the bytes of RGB, and one conversion either way."""

from __future__ import annotations

from pathlib import Path

import av
import numpy as np
from av.error import FFmpegError
from av.video.frame import VideoFrame

from kata.data.index import FORMATS
from kata.data.video import Pixels

_HALF_SIZE = ("yuv420p", "yuvj420p")


def is_half_size(frame: VideoFrame) -> bool:
    """True for 8-bit 4:2:0 frames of H * W * 3 / 2 bytes: even width, and a height that PyAV can tell from that."""
    return _is_half_size(frame.format.name, frame.width, frame.height)


def stores_half_size(path: Path) -> bool:
    """Whether a video file holds such frames; False for one that cannot be read, which its index will say."""
    try:
        with av.open(str(path), options=FORMATS) as container:
            codec = container.streams.video[0].codec_context
            return _is_half_size(codec.pix_fmt or "", codec.width, codec.height)
    except (FFmpegError, OSError, IndexError):
        return False


def _is_half_size(name: str, width: int, height: int) -> bool:
    return name in _HALF_SIZE and width % 2 == 0 and height % 4 == 0


def copy_half_size(frame: VideoFrame, memory: Pixels) -> VideoFrame:
    """The same frame in `memory` (H * W * 3 / 2,): it converts to the same pixels.

    Its other colour tags are left out: conversion has no use for them, and PyAV's changes them for a moment, in which
    another thread may convert the same frame.
    """
    at = 0
    for plane in frame.planes:
        size = plane.width * plane.height
        lines = np.frombuffer(memoryview(plane), np.uint8).reshape(-1, plane.line_size)
        np.copyto(memory[at : at + size].reshape(plane.height, plane.width), lines[: plane.height, : plane.width])
        at += size
    held = VideoFrame.from_numpy_buffer(memory.reshape(-1, frame.width), format=frame.format.name)
    held.colorspace, held.color_range = frame.colorspace, frame.color_range
    return held
