"""Frames of one camera by file and number, from video files or from images in the table."""

from __future__ import annotations

import io
from collections import OrderedDict
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import Lock
from typing import Any, Protocol, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image, UnidentifiedImageError

from kata.data.index import FrameIndex, check_whole, open_index
from kata.data.layout import Layout, Span
from kata.data.order import Int64
from kata.data.video import Decoder, Pixels
from kata.errors import DataError
from kata.spec import Column

_KEEP_BYTES = 2 * 1024**3
"""Encoded images kept per camera; the least recently used row group goes first."""

Job: TypeAlias = Callable[[Pixels], None]
"""Decodes some frames and writes each into its places in an array (frames, H, W, C)."""


class Camera(Protocol):
    """One camera of a dataset: what a reader needs of it."""

    span: Span

    def files(self) -> Int64:
        """Numbers of the files in use that must be prepared before `jobs`."""
        ...

    def prepare(self, file: int) -> None:
        """Index one file; called once per file, from any thread."""
        ...

    def jobs(self, file: int, frames: Int64, places: list[Int64]) -> Iterator[Job]:
        """Work that fills `places` with `frames` (ascending, each once) of one prepared file."""
        ...


class VideoCamera:
    """A camera whose frames lie in video files."""

    def __init__(self, root: Path, key: str, column: Column, layout: Layout, fps: int) -> None:
        self.span = layout.videos[key]
        self._root, self._key, self._column, self._layout, self._fps = root, key, column, layout, fps
        self._index: dict[int, FrameIndex] = {}
        self._decoder = Decoder()
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
        index = open_index(self._root / self.span.files[file])
        declared = self._column.shape
        if declared != (index.height, index.width, 3):
            raise _mismatch(self._key, declared, (index.height, index.width, 3), str(index.path))
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
        self._index[file] = index

    def jobs(self, file: int, frames: Int64, places: list[Int64]) -> Iterator[Job]:
        """One job per group of pictures, which is decoded once for all frames wanted of it."""
        index = self._index[file]
        cuts = np.flatnonzero(np.diff(index.start[frames])) + 1
        for part in np.split(np.arange(len(frames)), cuts):
            yield self._job(index, frames[part], [places[number] for number in part])

    def _job(self, index: FrameIndex, frames: Int64, places: list[Int64]) -> Job:
        def run(out: Pixels) -> None:
            def write(number: int, pixels: Pixels) -> None:
                for place in places[number]:
                    out[place] = pixels

            self._decoder.run(index, self._key, frames, write)

        return run


class ImageCamera:
    """A camera whose frames lie encoded in the table; row groups are read when first needed."""

    def __init__(self, root: Path, key: str, column: Column, layout: Layout) -> None:
        self.span = layout.data
        self._root, self._key, self._column = root, key, column
        self._lock = Lock()
        self._groups: OrderedDict[tuple[int, int], Any] = OrderedDict()
        self._kept_bytes = 0
        self._starts: dict[int, Int64] = {}

    def files(self) -> Int64:
        """Every table file of the selected episodes."""
        return np.unique(self.span.file)

    def prepare(self, file: int) -> None:
        """Note where the row groups of a file start."""
        if file in self._starts:
            return
        path = self._root / self.span.files[file]
        try:
            meta = pq.read_metadata(path)
        except (pa.ArrowInvalid, OSError) as error:
            raise self._bad(path, f"cannot be read: {error}") from error
        rows = [meta.row_group(number).num_rows for number in range(meta.num_row_groups)]
        self._starts[file] = np.cumsum([0, *rows])

    def jobs(self, file: int, frames: Int64, places: list[Int64]) -> Iterator[Job]:
        """One job per image."""
        starts = self._starts[file]
        groups = np.searchsorted(starts, frames, side="right") - 1
        for row, group, slots in zip(frames, groups, places, strict=True):
            cell = self._group(file, int(group))[int(row - starts[group])]
            yield self._job(self._root / self.span.files[file], int(row), cell, slots)

    def _group(self, file: int, group: int) -> Any:
        """The encoded bytes of one row group, (rows,) binary."""
        with self._lock:
            known = self._groups.get((file, group))
            if known is not None:
                self._groups.move_to_end((file, group))
                return known
            array = self._read(self._root / self.span.files[file], group)
            self._groups[file, group] = array
            self._kept_bytes += array.nbytes
            while self._kept_bytes > _KEEP_BYTES and len(self._groups) > 1:
                self._kept_bytes -= self._groups.popitem(last=False)[1].nbytes
            return array

    def _read(self, path: Path, group: int) -> Any:
        try:
            column: Any = pq.ParquetFile(path).read_row_group(group, columns=[self._key])[self._key]
        except (pa.ArrowInvalid, OSError) as error:
            raise self._bad(path, f"cannot be read: {error}") from error
        array = column.combine_chunks()
        if isinstance(array, pa.ChunkedArray):
            array = pa.concat_arrays(array.chunks)
        if not pa.types.is_struct(array.type) or array.type.get_field_index("bytes") < 0:
            raise self._bad(path, f"holds {array.type}, no encoded images")
        return array.field("bytes")

    def _job(self, path: Path, row: int, cell: Any, slots: Int64) -> Job:
        def run(out: Pixels) -> None:
            if not cell.is_valid:
                raise self._bad(path, f"has no image in row {row}")
            pixels = self._decode(path, row, cell.as_buffer())
            for place in slots:
                out[place] = pixels

        return run

    def _decode(self, path: Path, row: int, encoded: Any) -> Pixels:
        height, width, channels = self._column.shape
        try:
            with Image.open(io.BytesIO(encoded)) as image:
                pixels = np.asarray(image.convert("L" if channels == 1 else "RGB"))
        except (UnidentifiedImageError, OSError, SyntaxError) as error:
            raise self._bad(path, f"has an image in row {row} that cannot be decoded ({error})") from error
        pixels = pixels.reshape(*pixels.shape[:2], -1)
        if pixels.shape != (height, width, channels):
            raise _mismatch(self._key, self._column.shape, pixels.shape, f"row {row} of {path}")
        return pixels

    def _bad(self, path: Path, what: str) -> DataError:
        return DataError(
            f"camera '{self._key}': {path} {what}",
            rule="a complete parquet file with one encoded image per row",
            remedy="download the file again, or leave its episodes out with --dataset.exclude_episodes",
        )


def _mismatch(key: str, declared: tuple[int, ...], found: tuple[int, ...], where: str) -> DataError:
    return DataError(
        f"camera '{key}': the dataset says (H, W, C) = {declared}, {where} has {found}",
        rule="the shape in meta/info.json equals that of the frames",
        remedy="repair the shape in meta/info.json, or download the dataset again",
    )
