"""Decoded pictures: their planes, and their conversion to RGB directly into a batch's memory.

PyAV's own conversion writes into a frame that it allocates, which must then be copied. Here the
libswscale that PyAV is linked with writes to the final place. Each kind of picture is converted
once in both ways; where the pixels differ, PyAV's conversion is used.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import threading
import weakref
from collections.abc import Callable
from typing import Any, NamedTuple

import av
import av.video.reformatter
import numpy as np
from av.error import FFmpegError
from av.video.frame import VideoFrame
from av.video.reformatter import ColorRange, Interpolation, VideoReformatter
from numpy.typing import NDArray

from kata.data.storage.store import StoredFile
from kata.data.video.container import open_video
from kata.spec import Colours

_HALF_SIZE = ("yuv420p", "yuvj420p")


def is_half_size(name: str, width: int, height: int) -> bool:
    """Return True for 8-bit 4:2:0 frames, whose planes take H * W * 3 / 2 bytes.

    PyAV derives the shape of such a frame from that size, so the width must be even and the height
    a multiple of 4.

    Args:
        name: FFmpeg's name of the pixel format.
        width: in pixels.
        height: in pixels.
    """
    return name in _HALF_SIZE and width % 2 == 0 and height % 4 == 0


def stores_half_size(file: StoredFile) -> bool:
    """Return whether a video file holds 8-bit 4:2:0 frames that `is_half_size` accepts.

    An unreadable file gives False; indexing it reports the fault.
    """
    try:
        with file.open() as data, open_video(file.path or data) as container:
            codec: Any = container.streams.video[0].codec_context
            if codec is None:
                return False
            return is_half_size(codec.pix_fmt or "", codec.width, codec.height)
    except (FFmpegError, OSError, IndexError):
        return False


_log = logging.getLogger(__name__)


_UNIT = 1 << 16
"""1.0 in libswscale's fixed point: contrast and saturation stay unchanged."""


_WHOLE = 16
"""Pixels that libswscale's loops write at once; at other widths they write past a line's end."""

_SINCE_17 = int(av.__version__.split(".")[0]) >= 17

ONE_THREAD = {"threads": 1} if _SINCE_17 else {}
"""Arguments that keep PyAV's conversion in the calling thread. Versions below 17 always do."""

_UNTAGGED = (2, ColorRange.UNSPECIFIED.value)
"""Color space and range of every picture before PyAV 17, whose conversion ignores a frame's tags.
"""

_Addresses, _Strides = ctypes.c_void_p * 4, ctypes.c_int * 4


@functools.cache
def _lines(*sizes: int) -> Any:
    """Return the bytes per line of each plane as a C array."""
    # All frames of a camera have the same few sizes, so the cache saves an allocation per frame.
    return _Strides(*sizes)


def _address(memory: NDArray[np.uint8]) -> int:
    """Return the address of a writable array; `memory.ctypes.data` takes four times as long."""
    buffer: Any = memory  # numpy's stubs do not declare arrays as buffers
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer))


class Kind(NamedTuple):
    """The properties of a picture that its conversion depends on.

    Attributes:
        width: in pixels.
        height: in pixels.
        name: FFmpeg's name of the pixel format.
        space: color space, as FFmpeg numbers it (AVColorSpace).
        limits: color range, as FFmpeg numbers it (AVColorRange).
    """

    width: int
    height: int
    name: str
    space: int
    limits: int


@functools.cache
def colours_of(kind: Kind) -> Colours | None:
    """Return the coefficients that convert 8-bit 4:2:0 pictures of this kind to RGB.

    They follow libswscale's `ff_yuv2rgb_c_init_tables`, so that a device computes the same pixels.

    Returns:
        None if libswscale's coefficients cannot be read.
    """
    functions = _functions()
    if functions is None:
        return None
    table = (ctypes.c_int * 4).from_address(functions.coefficients(kind.space) or 0)
    # sws_getCoefficients returns Cr to R, Cb to B, Cb to G and Cr to G, with 16 binary places.
    red, blue, green_u, green_v = table
    if _is_full(kind):
        # The coefficients are for chroma from 16 to 240. Full range spans 0 to 255, so they shrink
        # by 224 / 255, and luma needs neither scale nor offset.
        red, blue, green_u, green_v = (value * 224 // 255 for value in table)
        luma_scale, luma_offset = 1 << 13, 0
    else:
        # Luma from 16 to 235 is stretched to 0 to 255.
        luma_scale, luma_offset = _rounded(_UNIT * 255 // 219), 16 << 3
    chroma = [_rounded(value) for value in (red, -green_u, -green_v, blue)]
    return Colours(luma_scale, luma_offset, *chroma)


def _rounded(value: int) -> int:
    """Convert a factor from 16 to 13 binary places, rounding halves up."""
    return ((value << 13) + (1 << 15)) >> 16


def _is_full(kind: Kind) -> bool:
    """Return whether luma spans 0 to 255 instead of 16 to 235."""
    return kind.limits == ColorRange.JPEG or kind.name.startswith("yuvj")


class Planes:
    """The planes of a decoded picture in memory. They are never changed, so threads may share them.

    Args:
        kind: size, pixel format and color tags.
        addresses: C array of the address of each plane.
        strides: C array of the bytes per line of each plane.
        owner: object whose memory holds the planes: a frame of PyAV, or an array (H * W * 3 / 2,)
            with the 4:2:0 planes one after the other.
    """

    __slots__ = ("addresses", "kind", "owner", "strides")

    def __init__(
        self, kind: Kind, addresses: Any, strides: Any, owner: VideoFrame | NDArray[np.uint8]
    ) -> None:
        self.kind = kind
        self.addresses = addresses
        self.strides = strides
        self.owner = owner

    @staticmethod
    def of(frame: VideoFrame) -> Planes:
        """Return the planes of a frame of PyAV."""
        colours = (int(frame.colorspace), int(frame.color_range)) if _SINCE_17 else _UNTAGGED
        kind = Kind(frame.width, frame.height, frame.format.name, *colours)
        planes = frame.planes
        addresses = _Addresses(*[plane.buffer_ptr for plane in planes])
        return Planes(kind, addresses, _lines(*[plane.line_size for plane in planes]), frame)

    def frame(self) -> VideoFrame:
        """Return the picture as a frame of PyAV.

        For a copy, each call builds another frame, because PyAV changes the tags of a frame while
        it converts it. Color tags that conversion does not use are left out.
        """
        if isinstance(self.owner, VideoFrame):
            return self.owner
        frame = VideoFrame.from_numpy_buffer(
            self.owner.reshape(-1, self.kind.width), format=self.kind.name
        )
        frame.colorspace, frame.color_range = self.kind.space, self.kind.limits
        return frame

    def copied(self, memory: NDArray[np.uint8]) -> Planes:
        """Copy an 8-bit 4:2:0 picture into `memory` (H * W * 3 / 2,), and return the planes there.

        The copy converts to the same pixels as the original.
        """
        self.copy_to(memory)
        width = self.kind.width
        luma_bytes = width * self.kind.height
        start = _address(memory)
        # 4:2:0: U and V have half the width and half the height of Y.
        addresses = _Addresses(start, start + luma_bytes, start + luma_bytes + luma_bytes // 4)
        return Planes(self.kind, addresses, _lines(width, width // 2, width // 2), memory)

    def copy_to(self, memory: NDArray[np.uint8]) -> None:
        """Write the planes of an 8-bit 4:2:0 picture one after the other into `memory` (H * W * 3 /
        2,).
        """
        if isinstance(self.owner, np.ndarray):
            np.copyto(memory, self.owner)
            return
        functions, (width, height, name, *_) = _functions(), self.kind
        if functions is None:
            # PyAV builds an array first, so this costs one copy more.
            memory[:] = self.owner.to_ndarray().reshape(-1)
        else:
            given = (self.addresses, self.strides, _format(name), width, height)
            functions.copy(_address(memory), memory.nbytes, *given, 1)


class RgbConverter:
    """A converter of pictures to RGB, to be used by one thread."""

    def __init__(self) -> None:
        self._pyav: dict[tuple[Kind, tuple[int, ...]], VideoReformatter] = {}
        self._scalers: dict[Kind, _Scaler | None] = {}

    def to_rgb(self, picture: Planes, out: NDArray[np.uint8]) -> None:
        """Write a picture as RGB into `out`.

        Args:
            picture: of any kind.
            out: (h, w, 3), contiguous. If its size differs from the picture's, the picture is
                resized.
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
        height, width, _ = out.shape
        # One converter per kind of picture and size: it would set up its filters again whenever
        # either changes.
        converter = self._pyav.setdefault((picture.kind, out.shape), VideoReformatter())
        frame = picture.frame()
        # When shrinking, libswscale widens this triangle filter: the result is what torch calls
        # bilinear with antialiasing.
        bilinear = Interpolation.BILINEAR
        plane: Any = converter.reformat(
            frame, width, height, "rgb24", interpolation=bilinear, **ONE_THREAD
        ).planes[0]
        # FFmpeg pads lines, so the padding is cut off before the copy.
        lines = np.frombuffer(plane, np.uint8).reshape(-1, plane.line_size)
        np.copyto(out, lines[:height, : width * 3].reshape(height, width, 3))

    def _checked(self, picture: Planes) -> _Scaler | None:
        """Return a converter whose pixels equal PyAV's, or None if there is none."""
        width, height, name, *_ = picture.kind
        scaler = _scaler(picture.kind)
        if scaler is not None:
            found, wanted = (np.empty((height, width, 3), np.uint8) for _ in range(2))
            self._by_pyav(picture, wanted)
            np.invert(wanted, out=found)  # so that every byte that is not written differs
            scaler.convert(picture, found)
            if np.array_equal(found, wanted):
                return scaler
        _tell(f"frames of {width}x{height} in {name} are converted by PyAV, with one copy more")
        return None


class _Scaler:
    """A context of libswscale for one kind of picture."""

    def __init__(self, functions: _Functions, context: int) -> None:
        self._scale, self._context = functions.scale, context
        weakref.finalize(self, functions.free, context)

    def convert(self, picture: Planes, out: NDArray[np.uint8]) -> None:
        """Write a picture of that kind as RGB into `out` (H, W, 3), contiguous."""
        width, height, *_ = picture.kind
        assert out.flags.c_contiguous
        assert out.shape == (height, width, 3)
        target, line = _Addresses(_address(out)), _lines(3 * width)
        self._scale(self._context, picture.addresses, picture.strides, 0, height, target, line)


def _scaler(kind: Kind) -> _Scaler | None:
    """Return a libswscale context for pictures of this kind, or None where there is none."""
    functions = _functions()
    width, height, name, space, _ = kind
    if functions is None or width % _WHOLE:
        return None
    source = (width, height, _format(name))
    target = (width, height, _format("rgb24"))
    flags = Interpolation.BILINEAR.value
    context = functions.context(*source, *target, flags, None, None, None)
    if not context:
        return None
    scaler = _Scaler(functions, context)
    # Same coefficients on both sides, the source's own range, full-range RGB, brightness 0.
    colours = functions.coefficients(space)
    is_full = int(_is_full(kind))
    done = functions.set_colours(context, colours, is_full, colours, 1, 0, _UNIT, _UNIT)
    return None if done < 0 else scaler


class _Functions(NamedTuple):
    """Functions of libswscale and libavutil. Only pointers are passed, no structure is accessed."""

    pixel_format: Callable[..., int]
    context: Callable[..., int | None]
    coefficients: Callable[..., int]
    set_colours: Callable[..., int]
    scale: Callable[..., int]
    copy: Callable[..., int]
    free: Callable[..., None]


@functools.cache
def _functions() -> _Functions | None:
    """Return the functions as PyAV's modules resolve them.

    Returns:
        None where the modules do not export the libraries that they are linked with (Windows,
        static builds).
    """
    library = ctypes.CDLL(av.video.reformatter.__file__)
    # Short names, so that each signature below reads like the prototype in FFmpeg's headers.
    number = ctypes.c_int
    pointer = ctypes.c_void_p
    of = ctypes.CFUNCTYPE
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
    """Return FFmpeg's number of a pixel format."""
    functions = _functions()
    assert functions is not None
    return functions.pixel_format(name.encode())


_told_lock, _told = threading.Lock(), set[str]()


def _tell(message: str) -> None:
    """Log a message once per process."""
    with _told_lock:
        if message in _told:
            return
        _told.add(message)
    _log.info("%s", message)
