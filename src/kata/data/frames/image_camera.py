"""A camera whose frames are images in the table files."""

from __future__ import annotations

import math
import time
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from PIL import Image

from kata.data.arrays import Int64, Pixels
from kata.data.counters import CounterCollector
from kata.data.format.episode_table import EpisodeTable
from kata.data.frames.camera import SAME_SHAPE, Picture, shape_mismatch
from kata.data.frames.frame_format import RECORDED, FrameFormat
from kata.data.parquet.image_column import EncodedImages, ImageColumn, open_column
from kata.data.parquet.images import DeepImageError, open_image
from kata.data.parquet.page_body import PageError
from kata.data.parquet.pages import SideBySide
from kata.data.storage.far_files import ByteRange, FarFiles
from kata.data.storage.store import Store, StoredFile
from kata.errors import DataError, FrameError
from kata.spec import Column

_ONE_IMAGE = "a complete parquet file with one encoded image per row"
_REPAIR = "download the file again, or leave its episodes out with --dataset.exclude_episodes"
_RESHAPE = (
    "correct the shape in meta/info.json if all images differ from it, else leave the episode out"
)


class ImageCamera:
    """A camera whose frames are stored encoded in the table; each is read when it is needed.

    Args:
        store: the dataset's files.
        key: of the camera.
        column: its declaration in the dataset.
        layout: position of the episodes in the table files.
        encoded: reader of the images, shared by all cameras.
        counters: to count the work in.
        frame_format: format of frames in batches.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        column: Column,
        layout: EpisodeTable,
        *,
        encoded: EncodedImages,
        counters: CounterCollector,
        frame_format: FrameFormat = RECORDED,
    ) -> None:
        self.span = layout.data
        self.shape = frame_format.shape(key, column)
        self._recorded = column.shape
        self._store = store
        self._key = key
        self._encoded = encoded
        self._counters = counters
        self._columns: dict[int, ImageColumn] = {}

    def files(self) -> Int64:
        """Return the numbers of the table files of the selected episodes."""
        return np.unique(self.span.file)

    def prepare(self, file: int) -> None:
        """Read where the column's bytes are stored in the row groups of a file."""
        if file in self._columns:
            return
        stored = StoredFile(self._store, self.span.files[file])
        try:
            self._columns[file] = open_column(stored, self._key)
        except (pa.ArrowException, UnicodeDecodeError, OSError, KeyError) as error:
            raise self._bad(stored, f"cannot be read: {error}") from error
        except PageError as error:
            raise self._bad(stored, str(error)) from error

    def groups(self, file: Int64, number: Int64) -> tuple[Int64, Int64]:
        """Return each image as a GOP of one frame."""
        del file
        return number, number + 1

    def byte_ranges(self, file: int, numbers: Int64) -> list[ByteRange]:
        """Return the bytes of these images, if the file is far."""
        files = self._store
        if not isinstance(files, FarFiles):
            return []
        column = self._columns[file]
        found: list[ByteRange] = []
        for number in numbers.tolist():
            place = self._encoded.byte_range(column, number)
            if place is not None:
                found.append(ByteRange(files, column.file.name, column.stamp, *place))
        return list(dict.fromkeys(found))

    def searches(self, file: int, numbers: Int64) -> list[Callable[[SideBySide], None]]:
        """Return what finds images of row groups in which none was looked for yet."""
        if not isinstance(self._store, FarFiles):
            return []
        column = self._columns[file]
        absent = [row for row in numbers.tolist() if not self._encoded.is_found(column, row)]
        groups = [bisect_right(column.first, row) for row in absent]
        found: list[Callable[[SideBySide], None]] = []
        for group in dict.fromkeys(groups):
            rows = [row for row, own in zip(absent, groups, strict=True) if own == group]
            found.append(partial(self._search, column, rows))
        return found

    def _search(self, column: ImageColumn, rows: list[int], requests: SideBySide) -> None:
        for row in rows:
            # Who reads the image meets the damage again, and says which frame it is.
            with suppress(PageError, pa.ArrowException):
                self._encoded.find(column, row, requests)

    def neighbours(self, file: int, ranges: Sequence[ByteRange]) -> Int64:
        """Return none: an image takes as many bytes as a request should have."""
        del file, ranges
        return np.empty((0, 2), np.int64)

    def far_bytes(self) -> dict[str, int]:
        """Return the bytes of the row groups' images, by name of the far file and camera."""
        if not isinstance(self._store, FarFiles):
            return {}
        sizes: dict[str, int] = {}
        stamps = self._store.stamps(self.span.used())
        for number in self.files().tolist():
            name = self.span.files[number]
            column = self._columns.get(number)
            size = stamps[name].size
            if column is not None:
                size = sum(chunk.size for chunk in column.chunks if not isinstance(chunk, str))
            # Cameras share the file, and each has its own bytes of it.
            sizes[f"{name}/{self._key}"] = size
        return sizes

    def decode(self, file: int, numbers: Int64, rows: Int64) -> Iterator[tuple[int, Picture]]:
        """Decode images of the table, and yield (place in `numbers`, picture)."""
        column = self._columns[file]
        for place, (number, row) in enumerate(zip(numbers.tolist(), rows.tolist(), strict=True)):
            encoded = self._encoded_image(column, number, row)
            began_s = time.perf_counter()
            picture = self._picture(column.file, number, row, encoded)
            self._counters.add(decode_s=time.perf_counter() - began_s, frames_decoded=1)
            yield place, picture

    def write_frame(self, picture: Picture, out: Pixels) -> None:
        """Copy a picture, which has its final size already."""
        assert isinstance(picture, np.ndarray)
        np.copyto(out, picture)

    def held_bytes(self, picture: Picture) -> int:
        """Return H * W * C: images are held as RGB or grey."""
        del picture
        return math.prod(self.shape)

    def hold(self, picture: Picture, memory: Pixels) -> Picture:
        """Copy a picture into memory (held_bytes,), and return the copy."""
        held = memory.reshape(self.shape)
        self.write_frame(picture, held)
        return held

    def _encoded_image(self, column: ImageColumn, number: int, row: int) -> Any:
        """Return the encoded image in row `number` of a file."""
        try:
            encoded = self._encoded.get(column, number)
        except PageError as error:
            raise self._bad_frame(
                column.file, number, row, f"has damage where row {number} lies: {error}"
            ) from error
        except (pa.ArrowException, UnicodeDecodeError, OSError, KeyError) as error:
            raise self._bad(column.file, f"cannot be read: {error}") from error
        if encoded is None:
            raise self._bad_frame(column.file, number, row, f"has no image in row {number}")
        return encoded

    def _picture(self, file: StoredFile, number: int, row: int, encoded: Any) -> Pixels:
        """Decode an image, and check its shape."""
        height, width, channels = self._recorded
        try:
            with open_image(encoded) as image:
                # Before it is decoded: a small file can hold a huge picture.
                if image.size != (width, height):
                    found = (*image.size[::-1], channels)
                    what = (
                        f"has an image of (H, W, C) = {found} in row {number}, "
                        f"info.json says {self._recorded}"
                    )
                    raise self._bad_frame(file, number, row, what, rule=SAME_SHAPE, remedy=_RESHAPE)
                # A palette or an alpha channel is converted: batches hold one or three channels.
                picture = image.convert("L" if channels == 1 else "RGB")
                if self.shape != self._recorded:
                    picture = picture.resize(
                        (self.shape[1], self.shape[0]), Image.Resampling.BILINEAR
                    )
                pixels = np.asarray(picture)
        except (DeepImageError, Image.DecompressionBombError, OSError, SyntaxError) as error:
            raise self._bad_frame(
                file, number, row, f"has an image in row {number} that cannot be decoded ({error})"
            ) from error
        pixels = pixels.reshape(*pixels.shape[:2], -1)  # grey images have no channel axis
        if pixels.shape != self.shape:
            raise shape_mismatch(self._key, self.shape, pixels.shape, f"row {number} of {file}")
        return pixels

    def _bad(self, file: StoredFile, what: str) -> DataError:
        return DataError(f"camera '{self._key}': {file} {what}", rule=_ONE_IMAGE, remedy=_REPAIR)

    def _bad_frame(
        self,
        file: StoredFile,
        number: int,
        row: int,
        what: str,
        *,
        rule: str = _ONE_IMAGE,
        remedy: str = _REPAIR,
    ) -> FrameError:
        return FrameError(
            f"camera '{self._key}': {file} {what}",
            rule=rule,
            remedy=remedy,
            camera=self._key,
            file=str(file),
            frame=number,
            row=row,
        )
