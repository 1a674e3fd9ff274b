"""Decoded pictures as RGB, written straight into the memory of a batch by the libswscale that PyAV is linked with.

PyAV's own conversion puts its result into a frame of its own, which must then be copied. Here the same library writes
to where the pixels belong. Each kind of picture is converted in both ways once, and PyAV stays where they differ.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple, TypeAlias

import av.video.reformatter
import numpy as np
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Interpolation, VideoReformatter
from numpy.typing import NDArray

_log = logging.getLogger(__name__)

_UNIT = 1 << 16
"""1.0 in libswscale's fixed point: contrast and saturation as they are."""

_WHOLE = 16
"""Pixels that its loops write at once. Other widths would need room at the end of a line."""

Kind: TypeAlias = tuple[int, int, str, int, int]
"""What a conversion depends on: width, height, pixel format, colour space and range."""

_Addresses, _Strides = ctypes.c_void_p * 4, ctypes.c_int * 4


class Painter:
    """Converts pictures to RGB. For one thread."""

    def __init__(self) -> None:
        self._pyav: dict[tuple[Kind, tuple[int, ...]], VideoReformatter] = {}
        self._scalers: dict[Kind, _Scaler | None] = {}

    def paint(self, frame: VideoFrame, out: NDArray[np.uint8]) -> None:
        """Write a frame as RGB into `out` (h, w, 3), which is contiguous; resized if that is another size."""
        kind = (frame.width, frame.height, frame.format.name, int(frame.colorspace), int(frame.color_range))
        if out.shape[:2] != (frame.height, frame.width):
            self._by_pyav(kind, frame, out)
            return
        if kind not in self._scalers:
            self._scalers[kind] = self._checked(kind, frame)
        scaler = self._scalers[kind]
        if scaler is None:
            self._by_pyav(kind, frame, out)
        else:
            scaler.convert(frame, out)

    def _by_pyav(self, kind: Kind, frame: VideoFrame, out: NDArray[np.uint8]) -> None:
        # One converter per kind of picture and size: it is set up anew whenever that changes.
        height, width, _ = out.shape
        converter = self._pyav.setdefault((kind, out.shape), VideoReformatter())
        # Made smaller, this is a triangle filter as wide as it must be: what torch calls bilinear with antialiasing.
        bilinear = Interpolation.BILINEAR
        plane: Any = converter.reformat(frame, width, height, "rgb24", interpolation=bilinear, threads=1).planes[0]
        lines = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
        np.copyto(out, lines[:height, : width * 3].reshape(height, width, 3))

    def _checked(self, kind: Kind, frame: VideoFrame) -> _Scaler | None:
        """A converter that gives the pixels that PyAV gives; None where there is none."""
        width, height, name, *_ = kind
        scaler = _scaler(kind)
        if scaler is not None:
            found, wanted = (np.empty((height, width, 3), np.uint8) for _ in range(2))
            self._by_pyav(kind, frame, wanted)
            np.invert(wanted, out=found)  # what is not written differs
            scaler.convert(frame, found)
            if np.array_equal(found, wanted):
                return scaler
        _tell(f"frames of {width}x{height} in {name} are converted by PyAV, with one copy more")
        return None


class _Scaler:
    """libswscale set up for one kind of picture."""

    def __init__(self, functions: _Functions, context: int) -> None:
        self._scale, self._context = functions.scale, context
        weakref.finalize(self, functions.free, context)

    def convert(self, frame: VideoFrame, out: NDArray[np.uint8]) -> None:
        """Write a frame of that kind as RGB into `out` (H, W, 3), which is contiguous."""
        assert out.flags.c_contiguous
        assert out.shape == (frame.height, frame.width, 3)
        planes = frame.planes
        addresses = _Addresses(*[plane.buffer_ptr for plane in planes])
        strides = _Strides(*[plane.line_size for plane in planes])
        target, line = _Addresses(out.ctypes.data), _Strides(out.strides[0])
        self._scale(self._context, addresses, strides, 0, frame.height, target, line)


def _scaler(kind: Kind) -> _Scaler | None:
    functions = _functions()
    width, height, name, space, given_range = kind
    if functions is None or width % _WHOLE:
        return None
    formats = [functions.pixel_format(name) for name in (name.encode(), b"rgb24")]
    sizes = [(width, height, number) for number in formats]
    context = functions.context(*sizes[0], *sizes[1], Interpolation.BILINEAR.value, None, None, None)
    if not context:
        return None
    scaler = _Scaler(functions, context)
    colours = functions.coefficients(space)
    full = int(given_range == ColorRange.JPEG or name.startswith("yuvj"))
    if functions.set_colours(context, colours, full, colours, 1, 0, _UNIT, _UNIT) < 0:
        return None
    return scaler


class _Functions(NamedTuple):
    """libswscale and libavutil, of which no structure is looked into."""

    pixel_format: Callable[..., int]
    context: Callable[..., int | None]
    coefficients: Callable[..., int]
    set_colours: Callable[..., int]
    scale: Callable[..., int]
    free: Callable[..., None]


@functools.cache
def _functions() -> _Functions | None:
    """As PyAV sees them; None where its modules do not show what they are linked with (Windows, static builds)."""
    library = ctypes.CDLL(av.video.reformatter.__file__)
    number, pointer, of = ctypes.c_int, ctypes.c_void_p, ctypes.CFUNCTYPE
    try:
        return _Functions(
            of(number, ctypes.c_char_p)(("av_get_pix_fmt", library)),
            of(pointer, *[number] * 7, *[pointer] * 3)(("sws_getContext", library)),
            of(pointer, number)(("sws_getCoefficients", library)),
            of(number, pointer, pointer, number, pointer, *[number] * 4)(("sws_setColorspaceDetails", library)),
            of(number, *[pointer] * 3, number, number, pointer, pointer)(("sws_scale", library)),
            of(None, pointer)(("sws_freeContext", library)),
        )
    except AttributeError:
        return None


_told_lock, _told = threading.Lock(), set[str]()


def _tell(message: str) -> None:
    with _told_lock:
        if message in _told:
            return
        _told.add(message)
    _log.info("%s", message)
