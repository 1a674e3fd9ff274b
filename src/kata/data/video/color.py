"""Decoded pictures: held as their planes, and as RGB written straight into the memory of a batch.

PyAV's own conversion puts its result into a frame of its own, which must then be copied. Here the
libswscale that PyAV is linked with writes to where the pixels belong. Each kind of picture is
converted in both ways once, and PyAV stays where they differ.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import av
import av.video.reformatter
import numpy as np
from av.error import FFmpegError
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Interpolation, VideoReformatter
from numpy.typing import NDArray

from kata.spec import Colours

FORMATS = {"protocol_whitelist": "file", "format_whitelist": "mov,matroska,webm,avi"}
"""FFmpeg tells a format by its content, and would follow a playlist that calls itself a video to
other files.
"""


_HALF_SIZE = ("yuv420p", "yuvj420p")


def is_half_size(name: str, width: int, height: int) -> bool:
    """True for 8-bit 4:2:0 frames of H * W * 3 / 2 bytes: even width, and a height that PyAV can
    tell from that.

    name: of the pixel format.
    """
    return name in _HALF_SIZE and width % 2 == 0 and height % 4 == 0


def stores_half_size(path: Path) -> bool:
    """Whether a video file holds such frames; False for one that cannot be read, which its index
    will say.
    """
    try:
        with av.open(str(path), options=FORMATS) as container:
            codec: Any = container.streams.video[0].codec_context
            if codec is None:
                return False
            return is_half_size(codec.pix_fmt or "", codec.width, codec.height)
    except (FFmpegError, OSError, IndexError):
        return False


_log = logging.getLogger(__name__)


_UNIT = 1 << 16
"""1.0 in libswscale's fixed point: contrast and saturation as they are."""


_WHOLE = 16
"""Pixels that its loops write at once. Other widths would need room at the end of a line."""

_SINCE_17 = int(av.__version__.split(".")[0]) >= 17

ONE_THREAD = {"threads": 1} if _SINCE_17 else {}
"""Keeps PyAV's conversion in the calling thread; before version 17 it never left it."""

_UNTAGGED = (2, ColorRange.UNSPECIFIED.value)
"""Space and range of every picture before PyAV 17, whose conversion ignores what a frame says of
its colours.
"""

_Addresses, _Strides = ctypes.c_void_p * 4, ctypes.c_int * 4


@functools.cache
def _lines(*sizes: int) -> Any:
    """Bytes per line of each plane, as C has them. The same few for all frames, so made once."""
    return _Strides(*sizes)


def _address(memory: NDArray[np.uint8]) -> int:
    """Where an array begins that may be written; `memory.ctypes.data` takes four times as long."""
    buffer: Any = memory  # numpy's stubs do not tell that arrays are buffers
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


class Kind(NamedTuple):
    """What a conversion depends on.

    name: of the pixel format. space, limits: of colours, as FFmpeg numbers them.
    """

    width: int
    height: int
    name: str
    space: int
    limits: int


@functools.cache
def colours_of(kind: Kind) -> Colours | None:
    """What RGB of 8-bit 4:2:0 pictures of this kind is computed with (libswscale's
    `ff_yuv2rgb_c_init_tables`).

    Returns: None where libswscale's figures cannot be asked for.
    """
    functions = _functions()
    if functions is None:
        return None
    table = (ctypes.c_int * 4).from_address(functions.coefficients(kind.space) or 0)
    red, blue, green_u, green_v = table
    if _is_full(kind):  # chroma reaches from 0 to 255 as well, not from 16 to 240
        red, blue, green_u, green_v = (value * 224 // 255 for value in table)
        return Colours(1 << 13, 0, *(_rounded(value) for value in (red, -green_u, -green_v, blue)))
    return Colours(
        _rounded(_UNIT * 255 // 219),
        16 << 3,
        *(_rounded(v) for v in (red, -green_u, -green_v, blue)),
    )


def _rounded(value: int) -> int:
    """A factor of 16 binary places with 13, halves upwards."""
    return ((value << 13) + (1 << 15)) >> 16


def _is_full(kind: Kind) -> bool:
    """Whether Y reaches from 0 to 255, not from 16 to 235."""
    return kind.limits == ColorRange.JPEG or kind.name.startswith("yuvj")


class Planes:
    """Where the planes of a decoded picture lie. Nothing of it changes, so that threads may share
    it.

    Args:
        owner: whose memory that is: a decoder's frame, or the lines of all planes of 4:2:0 one
            after the other.
    """

    __slots__ = ("addresses", "kind", "owner", "strides")

    def __init__(
        self, kind: Kind, addresses: Any, strides: Any, owner: VideoFrame | NDArray[np.uint8]
    ) -> None:
        self.kind, self.addresses, self.strides, self.owner = kind, addresses, strides, owner

    @staticmethod
    def of(frame: VideoFrame) -> Planes:
        """Those of a frame of PyAV's."""
        colours = (int(frame.colorspace), int(frame.color_range)) if _SINCE_17 else _UNTAGGED
        kind = Kind(frame.width, frame.height, frame.format.name, *colours)
        planes = frame.planes
        addresses = _Addresses(*[plane.buffer_ptr for plane in planes])
        return Planes(kind, addresses, _lines(*[plane.line_size for plane in planes]), frame)

    def frame(self) -> VideoFrame:
        """The frame, for PyAV. That of a copy is a new one each time: PyAV changes its tags for a
        moment.

        The colour tags that no conversion has a use for are left out then.
        """
        if isinstance(self.owner, VideoFrame):
            return self.owner
        frame = VideoFrame.from_numpy_buffer(
            self.owner.reshape(-1, self.kind.width), format=self.kind.name
        )
        frame.colorspace, frame.color_range = self.kind.space, self.kind.limits
        return frame

    def copied(self, memory: NDArray[np.uint8]) -> Planes:
        """The same picture in `memory` (H * W * 3 / 2,), for 8-bit 4:2:0: it converts to the
        same pixels.
        """
        self.copy_to(memory)
        width, start, size = self.kind.width, _address(memory), self.kind.width * self.kind.height
        addresses = _Addresses(start, start + size, start + size + size // 4)
        return Planes(self.kind, addresses, _lines(width, width // 2, width // 2), memory)

    def copy_to(self, memory: NDArray[np.uint8]) -> None:
        """Write the planes of 8-bit 4:2:0 one after the other into `memory` (H * W * 3 / 2,),
        contiguous.
        """
        if isinstance(self.owner, np.ndarray):
            np.copyto(memory, self.owner)
            return
        functions, (width, height, name, *_) = _functions(), self.kind
        if functions is None:
            memory[:] = self.owner.to_ndarray().reshape(-1)
        else:
            given = (self.addresses, self.strides, _format(name), width, height)
            functions.copy(_address(memory), memory.nbytes, *given, 1)


class RgbConverter:
    """Converts pictures to RGB. For one thread."""

    def __init__(self) -> None:
        self._pyav: dict[tuple[Kind, tuple[int, ...]], VideoReformatter] = {}
        self._scalers: dict[Kind, _Scaler | None] = {}

    def to_rgb(self, picture: Planes, out: NDArray[np.uint8]) -> None:
        """Write a picture as RGB into `out` (h, w, 3), which is contiguous; resized if that is
        another size.
        """
        kind = picture.kind
        if out.shape[:2] != (kind.height, kind.width):
            self._by_pyav(picture, out)
            return
        if kind not in self._scalers:
            self._scalers[kind] = self._checked(picture)
        scaler = self._scalers[kind]
        if scaler is None:
            self._by_pyav(picture, out)
        else:
            scaler.convert(picture, out)

    def _by_pyav(self, picture: Planes, out: NDArray[np.uint8]) -> None:
        # One converter per kind of picture and size: it is set up anew whenever that changes.
        height, width, _ = out.shape
        converter, frame = (
            self._pyav.setdefault((picture.kind, out.shape), VideoReformatter()),
            picture.frame(),
        )
        # Made smaller, this is a triangle filter as wide as it must be: what torch calls bilinear
        # with antialiasing.
        bilinear = Interpolation.BILINEAR
        plane: Any = converter.reformat(
            frame, width, height, "rgb24", interpolation=bilinear, **ONE_THREAD
        ).planes[0]
        lines = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
        np.copyto(out, lines[:height, : width * 3].reshape(height, width, 3))

    def _checked(self, picture: Planes) -> _Scaler | None:
        """A converter that gives the pixels that PyAV gives; None where there is none."""
        width, height, name, *_ = picture.kind
        scaler = _scaler(picture.kind)
        if scaler is not None:
            found, wanted = (np.empty((height, width, 3), np.uint8) for _ in range(2))
            self._by_pyav(picture, wanted)
            np.invert(wanted, out=found)  # what is not written differs
            scaler.convert(picture, found)
            if np.array_equal(found, wanted):
                return scaler
        _tell(f"frames of {width}x{height} in {name} are converted by PyAV, with one copy more")
        return None


class _Scaler:
    """libswscale set up for one kind of picture."""

    def __init__(self, functions: _Functions, context: int) -> None:
        self._scale, self._context = functions.scale, context
        weakref.finalize(self, functions.free, context)

    def convert(self, picture: Planes, out: NDArray[np.uint8]) -> None:
        """Write a picture of that kind as RGB into `out` (H, W, 3), which is contiguous."""
        width, height, *_ = picture.kind
        assert out.flags.c_contiguous
        assert out.shape == (height, width, 3)
        target, line = _Addresses(_address(out)), _lines(3 * width)
        self._scale(self._context, picture.addresses, picture.strides, 0, height, target, line)


def _scaler(kind: Kind) -> _Scaler | None:
    functions = _functions()
    width, height, name, space, _ = kind
    if functions is None or width % _WHOLE:
        return None
    sizes = [(width, height, _format(form)) for form in (name, "rgb24")]
    context = functions.context(
        *sizes[0], *sizes[1], Interpolation.BILINEAR.value, None, None, None
    )
    if not context:
        return None
    scaler = _Scaler(functions, context)
    colours = functions.coefficients(space)
    if (
        functions.set_colours(context, colours, int(_is_full(kind)), colours, 1, 0, _UNIT, _UNIT)
        < 0
    ):
        return None
    return scaler


class _Functions(NamedTuple):
    """libswscale and libavutil, of which no structure is looked into."""

    pixel_format: Callable[..., int]
    context: Callable[..., int | None]
    coefficients: Callable[..., int]
    set_colours: Callable[..., int]
    scale: Callable[..., int]
    copy: Callable[..., int]
    free: Callable[..., None]


@functools.cache
def _functions() -> _Functions | None:
    """As PyAV sees them; None where its modules do not show what they are linked with (Windows,
    static builds).
    """
    library = ctypes.CDLL(av.video.reformatter.__file__)
    number, pointer, of = ctypes.c_int, ctypes.c_void_p, ctypes.CFUNCTYPE
    try:
        return _Functions(
            of(number, ctypes.c_char_p)(("av_get_pix_fmt", library)),
            of(pointer, *[number] * 7, *[pointer] * 3)(("sws_getContext", library)),
            of(pointer, number)(("sws_getCoefficients", library)),
            of(number, pointer, pointer, number, pointer, *[number] * 4)(
                ("sws_setColorspaceDetails", library)
            ),
            of(number, *[pointer] * 3, number, number, pointer, pointer)(("sws_scale", library)),
            of(number, pointer, number, pointer, pointer, *[number] * 4)(
                ("av_image_copy_to_buffer", library)
            ),
            of(None, pointer)(("sws_freeContext", library)),
        )
    except AttributeError:
        return None


@functools.cache
def _format(name: str) -> int:
    """FFmpeg's number of a pixel format."""
    functions = _functions()
    assert functions is not None
    return functions.pixel_format(name.encode())


_told_lock, _told = threading.Lock(), set[str]()


def _tell(message: str) -> None:
    with _told_lock:
        if message in _told:
            return
        _told.add(message)
    _log.info("%s", message)
