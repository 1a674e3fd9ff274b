"""A camera whose frames are stored in video files."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Sequence

import numpy as np
from av.video.frame import VideoFrame

from kata.data.arrays import Int64, Pixels
from kata.data.counters import CounterCollector
from kata.data.format.episode_table import EpisodeTable
from kata.data.frames.camera import Picture, shape_mismatch
from kata.data.frames.frame_format import RECORDED, FrameFormat
from kata.data.frames.gop_runs import GopRuns
from kata.data.parquet.pages import SideBySide
from kata.data.storage.far_files import ByteRange, FarFiles
from kata.data.storage.file_stamp import Stamp
from kata.data.storage.store import Store, StoredFile
from kata.data.video.color import Planes, colours_of, is_half_size
from kata.data.video.decoder import Decoder, Gop
from kata.data.video.packet_index import FrameIndex, check_whole, open_index
from kata.errors import DataError
from kata.spec import Column

_NEAR_BYTES = 256 * 1024
"""Bytes before and after a GOP within which others may be fetched along with it. A request of this
size costs little more than its bytes.
"""


class VideoCamera:
    """A camera whose frames are stored in video files.

    Args:
        store: the dataset's files.
        key: of the camera.
        column: its declaration in the dataset.
        layout: position of the episodes in the video files.
        fps: frames per second.
        as_rgb: True to hold frames as RGB, which is worth it if they are used often.
        counters: to count the work in.
        frame_format: format of frames in batches; frames that stay planes are held as planes.
    """

    def __init__(
        self,
        store: Store,
        key: str,
        column: Column,
        layout: EpisodeTable,
        *,
        fps: int,
        as_rgb: bool,
        counters: CounterCollector,
        frame_format: FrameFormat = RECORDED,
    ) -> None:
        self.span = layout.videos[key]
        self.shape = frame_format.shape(key, column)
        self._recorded = column.shape
        self._store = store
        self._key = key
        self._layout = layout
        self._fps = fps
        self._counters = counters
        self._colours = frame_format.colours.get(key)
        self._bytes = math.prod(self.shape)
        # 4:2:0 planes of the recorded size, unless resized RGB is no larger.
        half = math.prod(column.shape) // 2
        self._half_bytes = 0 if as_rgb or self._bytes <= half else half
        self._index: dict[int, FrameIndex] = {}
        self._stamp: dict[int, Stamp] = {}
        self._runs: dict[int, GopRuns] = {}
        self._decoder = Decoder(counters)
        self.elsewhere: Callable[[Gop], Pixels] | None = None
        """Decodes the frames of a GOP to RGB (n, H, W, 3) instead of the host's decoder."""
        for number in self.files():
            file = self._file(number)
            # Of a far file this is checked when it is indexed: here, requests would follow one
            # another.
            if file.path is not None and file.name.endswith(".mp4"):
                check_whole(file)

    def files(self) -> Int64:
        """Return the numbers of the video files of the selected episodes."""
        return np.unique(self.span.file)

    def _file(self, number: int) -> StoredFile:
        return StoredFile(self._store, self.span.files[number])

    def prepare(self, file: int) -> None:
        """Index a file, and compare it with what info.json and the episode table declare."""
        if file in self._index:
            return
        stored = self._file(file)
        stamp = stored.stamp()
        index = open_index(stored)
        if self._recorded != (index.height, index.width, 3):
            raise shape_mismatch(
                self._key, self._recorded, (index.height, index.width, 3), str(index.file)
            )
        index.check_rate(self._fps)
        episodes = np.flatnonzero(self.span.file == file)
        ends = self.span.first[episodes] + self._layout.length[episodes]
        if (ends > len(index)).any():
            worst = int(np.argmax(ends > len(index)))
            raise DataError(
                f"{index.file} has {len(index)} frames, but episode "
                f"{self._layout.index[episodes[worst]]} "
                f"needs frames up to {ends[worst] - 1}",
                rule="a video has at least the frames that its episodes claim",
                remedy="download the file again, or leave its episodes out with "
                "--dataset.exclude_episodes",
            )
        # The stamp first, since other threads look for the index alone.
        self._stamp[file] = stamp
        self._index[file] = index

    def frames(self, file: int) -> int:
        """Return the number of frames of a prepared file."""
        return len(self._index[file])

    def groups(self, file: Int64, number: Int64) -> tuple[Int64, Int64]:
        """Return the first frame and the end of the GOP of each frame, both (n,)."""
        first, end = np.empty_like(number), np.empty_like(number)
        for one in np.unique(file):
            mine = file == one
            start = self._index[int(one)].start
            # `start` ascends with the frames, so the frames of one GOP are a run of equal values.
            key = start[number[mine]]
            first[mine] = np.searchsorted(start, key)
            end[mine] = np.searchsorted(start, key, side="right")
        return first, end

    def byte_ranges(self, file: int, numbers: Int64) -> list[ByteRange]:
        """Return the bytes of the GOPs of these frames, if the file is far."""
        files = self._store
        if not isinstance(files, FarFiles):
            return []
        name, stamp = self.span.files[file], self._stamp[file]
        first, begin, end = self._index[file].gops
        wanted = np.unique(first.searchsorted(numbers, side="right") - 1)
        if files.pool.holds_all:
            runs = self._runs_of(file)
            wanted = runs.of_gops(wanted)
            begin, end = runs.begin, runs.end
        found: list[ByteRange] = []
        for number in wanted.tolist():
            found.append(ByteRange(files, name, stamp, int(begin[number]), int(end[number])))
        return found

    def searches(self, file: int, numbers: Int64) -> list[Callable[[SideBySide], None]]:
        """Return none: a prepared video's packets are known."""
        del file, numbers
        return []

    def neighbours(self, file: int, ranges: Sequence[ByteRange]) -> Int64:
        """Return the GOPs near some ranges, if GOPs are fetched one by one."""
        files = self._store
        if not isinstance(files, FarFiles) or files.pool.holds_all or not ranges:
            return np.empty((0, 2), np.int64)
        first, begin, end = self._index[file].gops
        own = begin.searchsorted([each.begin for each in ranges])
        reach = int(_NEAR_BYTES * len(first) // max(int(end[-1] - begin[0]), 1))
        near = np.unique(own[:, None] + np.arange(-reach, reach + 1))
        near = near[(near >= 0) & (near < len(first))]
        ends = np.append(first, len(self._index[file]))[near + 1]
        return np.stack([first[near], ends], axis=1)

    def far_bytes(self) -> dict[str, int]:
        """Return the bytes of the GOPs of the selected episodes, by name of the far file."""
        if not isinstance(self._store, FarFiles):
            return {}
        sizes: dict[str, int] = {}
        stamps = self._store.stamps(self.span.used())
        for number in self.files().tolist():
            name = self.span.files[number]
            is_known = number in self._index
            sizes[name] = self._runs_of(number).bytes if is_known else stamps[name].size
        return sizes

    def _runs_of(self, file: int) -> GopRuns:
        runs = self._runs.get(file)
        if runs is None:
            episodes = np.flatnonzero(self.span.file == file)
            begin = self.span.first[episodes]
            runs = GopRuns.of(self._index[file].gops, begin, begin + self._layout.length[episodes])
            self._runs[file] = runs
        return runs

    def decode(self, file: int, numbers: Int64, rows: Int64) -> Iterator[tuple[int, Picture]]:
        """Decode a GOP up to the last of `numbers`, and yield (place in `numbers`, picture)."""
        gop = Gop(self._index[file], self._stamp[file], self._key, numbers, rows)
        if self.elsewhere is not None:
            return self._from_elsewhere(gop, self.elsewhere)
        return self._decoder.pictures(gop) if self._colours is None else self._as_planes(gop)

    def _as_planes(self, gop: Gop) -> Iterator[tuple[int, Planes]]:
        for place, picture in self._decoder.pictures(gop):
            kind = picture.kind
            is_planar = is_half_size(kind.name, kind.width, kind.height)
            if not is_planar or colours_of(kind) != self._colours:
                raise DataError(
                    f"{gop.index.file} (camera '{self._key}') has {kind.name} of other colours "
                    "than the first file",
                    rule="frames that the device converts (--dataset.pixels=yuv) are 8-bit 4:2:0 "
                    "of one colour space",
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
        """Write a picture into `out`: as planes, or as RGB of the size of `out`."""
        if not isinstance(picture, Planes):
            # RGB already: another batch converted it, or it comes from another decoder.
            if picture.shape == out.shape:
                np.copyto(out, picture)
                return
            picture = Planes.of(VideoFrame.from_ndarray(picture, "rgb24"))
        if self._colours is not None:
            picture.copy_to(out.reshape(-1))
        else:
            self._decoder.to_rgb(picture, out)

    def held_bytes(self, picture: Picture) -> int:
        """Return the bytes of 4:2:0 planes if the picture is held so, else those of RGB."""
        if not self._half_bytes or not isinstance(picture, Planes):
            return self._bytes
        kind = picture.kind
        return self._half_bytes if is_half_size(kind.name, kind.width, kind.height) else self._bytes

    def hold(self, picture: Picture, memory: Pixels) -> Picture:
        """Copy a picture into memory (held_bytes,), as planes or as RGB by its size; return the
        copy.
        """
        if isinstance(picture, Planes) and memory.nbytes != self._bytes:
            return picture.copied(memory)
        held = memory.reshape(self.shape)
        self.write_frame(picture, held)
        return held
