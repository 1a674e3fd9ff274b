"""Frames of one camera by file and number, from video files or from images in the table."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
from av.video.frame import VideoFrame
from PIL import Image

from kata.data.arrays import Int64, Pixels
from kata.data.counters import CounterCollector
from kata.data.format.episode_table import EpisodeTable, Span
from kata.data.frames.frame_format import RECORDED, FrameFormat
from kata.data.parquet.image_column import EncodedImages, ImageColumn, open_column
from kata.data.parquet.images import DeepImageError, open_image
from kata.data.parquet.page_body import PageError
from kata.data.storage.file_stamp import Stamp
from kata.data.video.color import Planes, colours_of, is_half_size
from kata.data.video.decoder import Decoder, Gop
from kata.data.video.packet_index import FrameIndex, check_whole, open_index
from kata.errors import DataError, FrameError
from kata.spec import Column

Picture: TypeAlias = Planes | Pixels
"""A decoded frame, as its decoder gives it."""


class Camera(Protocol):
    """One camera of a dataset: what a reader needs of it. `file` and `number` are those of its span.

    shape: (H, W, C) of the frames that it gives.
    """

    span: Span
    shape: tuple[int, ...]

    def files(self) -> Int64:
        """Numbers of the files in use that must be prepared before anything is decoded."""
        ...

    def prepare(self, file: int) -> None:
        """Index one file; from any thread, once or more."""
        ...

    def groups(self, file: Int64, number: Int64) -> tuple[Int64, Int64]:
        """Per frame (n,), the first and the end of the frames that are decoded on the way to one another."""
        ...

    def decode(self, file: int, numbers: Int64, rows: Int64) -> Iterator[tuple[int, Picture]]:
        """Decode frames of one group, ascending; yields (place in `numbers`, picture). `rows` name them in errors."""
        ...

    def write_frame(self, picture: Picture, out: Pixels) -> None:
        """Write a picture of this camera into `out` (H, W, C)."""
        ...

    def held_bytes(self, picture: Picture) -> int:
        """Bytes that `hold` wants for a picture, no more than H · W · C."""
        ...

    def hold(self, picture: Picture, memory: Pixels) -> Picture:
        """The picture, copied from where its decoder put it into `memory` (held_bytes,)."""
        ...


class VideoCamera:
    """A camera whose frames lie in video files. `as_rgb`: frames are held as RGB, worth it for those used often.

    frame_format: what becomes of frames; one that stays planes is held as planes.
    """

    def __init__(
        self,
        root: Path,
        key: str,
        column: Column,
        layout: EpisodeTable,
        *,
        fps: int,
        as_rgb: bool,
        counters: CounterCollector,
        frame_format: FrameFormat = RECORDED,
    ) -> None:
        self.span, self.shape, self._recorded = (
            layout.videos[key],
            frame_format.shape(key, column),
            column.shape,
        )
        self._root, self._key, self._layout, self._fps, self._counters = (
            root,
            key,
            layout,
            fps,
            counters,
        )
        self._colours, self._bytes, half = (
            frame_format.colours.get(key),
            math.prod(self.shape),
            math.prod(column.shape) // 2,
        )
        self._half_bytes = 0 if as_rgb or self._bytes <= half else half
        self._index: dict[int, FrameIndex] = {}
        self._stamp: dict[int, Stamp] = {}
        self._decoder = Decoder(counters)
        self.elsewhere: Callable[[Gop], Pixels] | None = None
        """Decodes the frames of a group to RGB (n, H, W, 3) in the place of the host's decoder."""
        for number in self.files():
            if self.span.files[number].endswith(".mp4"):
                check_whole(root / self.span.files[number])

    def files(self) -> Int64:
        """Every video file of the selected episodes."""
        return np.unique(self.span.file)

    def prepare(self, file: int) -> None:
        """Build the file's index and compare it with what info.json and the episode table claim."""
        if file in self._index:
            return
        path = self._root / self.span.files[file]
        stamp = Stamp.of(path.stat())
        index = open_index(path)
        if self._recorded != (index.height, index.width, 3):
            raise _mismatch(
                self._key, self._recorded, (index.height, index.width, 3), str(index.path)
            )
        index.check_rate(self._fps)
        episodes = np.flatnonzero(self.span.file == file)
        ends = self.span.first[episodes] + self._layout.length[episodes]
        if (ends > len(index)).any():
            worst = int(np.argmax(ends > len(index)))
            raise DataError(
                f"{index.path} has {len(index)} frames, but episode {self._layout.index[episodes[worst]]} "
                f"needs frames up to {ends[worst] - 1}",
                rule="a video has at least the frames that its episodes claim",
                remedy="download the file again, or leave its episodes out with --dataset.exclude_episodes",
            )
        # The stamp first: who sees the index finds the stamp, too.
        self._stamp[file] = stamp
        self._index[file] = index

    def frames(self, file: int) -> int:
        """How many frames a prepared file has."""
        return len(self._index[file])

    def groups(self, file: Int64, number: Int64) -> tuple[Int64, Int64]:
        """Groups of pictures."""
        first, end = np.empty_like(number), np.empty_like(number)
        for one in np.unique(file):
            mine = file == one
            start = self._index[int(one)].start
            key = start[number[mine]]
            first[mine], end[mine] = (
                np.searchsorted(start, key),
                np.searchsorted(start, key, side="right"),
            )
        return first, end

    def decode(self, file: int, numbers: Int64, rows: Int64) -> Iterator[tuple[int, Picture]]:
        """Decode up to the last of `numbers`, in one pass."""
        gop = Gop(self._index[file], self._stamp[file], self._key, numbers, rows)
        if self.elsewhere is not None:
            return self._from_elsewhere(gop, self.elsewhere)
        return self._decoder.pictures(gop) if self._colours is None else self._as_planes(gop)

    def _as_planes(self, gop: Gop) -> Iterator[tuple[int, Planes]]:
        for place, picture in self._decoder.pictures(gop):
            kind = picture.kind
            if (
                not is_half_size(kind.name, kind.width, kind.height)
                or colours_of(kind) != self._colours
            ):
                raise DataError(
                    f"{gop.index.path} (camera '{self._key}') has {kind.name} of other colours than the first file",
                    rule="frames that the device converts (--dataset.pixels=yuv) are 8-bit 4:2:0 of one colour space",
                    remedy="--dataset.pixels=rgb",
                )
            yield place, picture

    def _from_elsewhere(
        self, gop: Gop, decode: Callable[[Gop], Pixels]
    ) -> Iterator[tuple[int, Pixels]]:
        began_s = time.perf_counter()
        pictures = decode(gop)
        self._counters.add(decode_s=time.perf_counter() - began_s, frames_decoded=len(pictures))
        for place, picture in enumerate(pictures):
            if picture.shape != self._recorded:
                raise gop.bad(place, f"its shape is {picture.shape}")
            yield place, picture

    def write_frame(self, picture: Picture, out: Pixels) -> None:
        """Convert to RGB and to the size wanted, or copy planes, or what was converted already."""
        if not isinstance(picture, Planes):
            if picture.shape == out.shape:
                np.copyto(out, picture)
                return
            picture = Planes.of(VideoFrame.from_ndarray(picture, "rgb24"))
        if self._colours is not None:
            picture.copy_to(out.reshape(-1))
        else:
            self._decoder.to_rgb(picture, out)

    def held_bytes(self, picture: Picture) -> int:
        """4:2:0 takes half of RGB, unless that is resized."""
        if not self._half_bytes or not isinstance(picture, Planes):
            return self._bytes
        kind = picture.kind
        return self._half_bytes if is_half_size(kind.name, kind.width, kind.height) else self._bytes

    def hold(self, picture: Picture, memory: Pixels) -> Picture:
        """As decoded where that is 4:2:0, else as RGB."""
        if isinstance(picture, Planes) and memory.nbytes != self._bytes:
            return picture.copied(memory)
        held = memory.reshape(self.shape)
        self.write_frame(picture, held)
        return held


_ONE_IMAGE = "a complete parquet file with one encoded image per row"
_REPAIR = "download the file again, or leave its episodes out with --dataset.exclude_episodes"
_SAME_SHAPE = "the shape in meta/info.json equals that of the frames"
_RESHAPE = (
    "correct the shape in meta/info.json if all images differ from it, else leave the episode out"
)


class ImageCamera:
    """A camera whose frames lie encoded in the table, each read when it is needed. frame_format: see VideoCamera."""

    def __init__(
        self,
        root: Path,
        key: str,
        column: Column,
        layout: EpisodeTable,
        *,
        encoded: EncodedImages,
        counters: CounterCollector,
        frame_format: FrameFormat = RECORDED,
    ) -> None:
        self.span, self.shape, self._recorded = (
            layout.data,
            frame_format.shape(key, column),
            column.shape,
        )
        self._root, self._key, self._encoded, self._counters = root, key, encoded, counters
        self._columns: dict[int, ImageColumn] = {}

    def files(self) -> Int64:
        """Every table file of the selected episodes."""
        return np.unique(self.span.file)

    def prepare(self, file: int) -> None:
        """Note where the column's bytes lie in the row groups of a file."""
        if file in self._columns:
            return
        path = self._root / self.span.files[file]
        try:
            self._columns[file] = open_column(path, self._key)
        except (pa.ArrowInvalid, OSError, KeyError) as error:
            raise self._bad(path, f"cannot be read: {error}") from error
        except PageError as error:
            raise self._bad(path, str(error)) from error

    def groups(self, file: Int64, number: Int64) -> tuple[Int64, Int64]:
        """Each image stands alone."""
        del file
        return number, number + 1

    def decode(self, file: int, numbers: Int64, rows: Int64) -> Iterator[tuple[int, Picture]]:
        """Decode images of the table."""
        path = self._root / self.span.files[file]
        for place, (number, row) in enumerate(zip(numbers.tolist(), rows.tolist(), strict=True)):
            encoded = self._encoded_image(self._columns[file], number, row)
            began_s = time.perf_counter()
            picture = self._picture(path, number, row, encoded)
            self._counters.add(decode_s=time.perf_counter() - began_s, frames_decoded=1)
            yield place, picture

    def write_frame(self, picture: Picture, out: Pixels) -> None:
        """Copy."""
        assert isinstance(picture, np.ndarray)
        np.copyto(out, picture)

    def held_bytes(self, picture: Picture) -> int:
        """As RGB or grey."""
        del picture
        return math.prod(self.shape)

    def hold(self, picture: Picture, memory: Pixels) -> Picture:
        """As it is."""
        held = memory.reshape(self.shape)
        self.write_frame(picture, held)
        return held

    def _encoded_image(self, column: ImageColumn, number: int, row: int) -> Any:
        """Bytes of the image in row `number` of a file."""
        try:
            encoded = self._encoded.get(column, number)
        except PageError as error:
            raise self._bad_frame(
                column.path, number, row, f"has damage where row {number} lies: {error}"
            ) from error
        except (pa.ArrowInvalid, OSError, KeyError) as error:
            raise self._bad(column.path, f"cannot be read: {error}") from error
        if encoded is None:
            raise self._bad_frame(column.path, number, row, f"has no image in row {number}")
        return encoded

    def _picture(self, path: Path, number: int, row: int, encoded: Any) -> Pixels:
        height, width, channels = self._recorded
        try:
            with open_image(encoded) as image:
                if image.size != (
                    width,
                    height,
                ):  # before it is decoded: a small file can hold a huge picture
                    found = (*image.size[::-1], channels)
                    what = (
                        f"has an image of (H, W, C) = {found} in row {number}, "
                        f"info.json says {self._recorded}"
                    )
                    raise self._bad_frame(
                        path, number, row, what, rule=_SAME_SHAPE, remedy=_RESHAPE
                    )
                picture = image.convert("L" if channels == 1 else "RGB")
                if self.shape != self._recorded:
                    picture = picture.resize(
                        (self.shape[1], self.shape[0]), Image.Resampling.BILINEAR
                    )
                pixels = np.asarray(picture)
        except (DeepImageError, Image.DecompressionBombError, OSError, SyntaxError) as error:
            raise self._bad_frame(
                path, number, row, f"has an image in row {number} that cannot be decoded ({error})"
            ) from error
        pixels = pixels.reshape(*pixels.shape[:2], -1)
        if pixels.shape != self.shape:
            raise _mismatch(self._key, self.shape, pixels.shape, f"row {number} of {path}")
        return pixels

    def _bad(self, path: Path, what: str) -> DataError:
        return DataError(f"camera '{self._key}': {path} {what}", rule=_ONE_IMAGE, remedy=_REPAIR)

    def _bad_frame(
        self,
        path: Path,
        number: int,
        row: int,
        what: str,
        *,
        rule: str = _ONE_IMAGE,
        remedy: str = _REPAIR,
    ) -> FrameError:
        return FrameError(
            f"camera '{self._key}': {path} {what}",
            rule=rule,
            remedy=remedy,
            camera=self._key,
            file=str(path),
            frame=number,
            row=row,
        )


def _mismatch(key: str, declared: tuple[int, ...], found: tuple[int, ...], where: str) -> DataError:
    return DataError(
        f"camera '{key}': the dataset says (H, W, C) = {declared}, {where} has {found}",
        rule=_SAME_SHAPE,
        remedy="repair the shape in meta/info.json, or download the dataset again",
    )
