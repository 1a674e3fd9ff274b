"""Reads samples of several datasets as one: common names, what is lacking filled and marked.

row of the mixture -> dataset, row in it -> that dataset's Reader -> common names, padding, black
frames -> one batch
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping
from types import TracebackType
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kata.data.arrays import Int64, Pixels
from kata.data.counters import ReadCounters
from kata.data.dataset.mixture import Mixture, MixtureEntry, is_vector
from kata.data.frames.decode_pool import DecodePool
from kata.data.frames.frame_buffer import FrameBuffer
from kata.data.frames.frame_cache import FrameCache
from kata.data.frames.frame_format import RECORDED, FrameFormat
from kata.data.loader.reader import BatchSlots, Reader, Shared, batches_within
from kata.data.storage.buffers import Allocate, Empty, Recycled
from kata.data.video.decoder import Gop
from kata.spec import DATASET_INDEX, Batch, Windows, dim_pad_key, missing_key, pad_key


class _Share(NamedTuple):
    """Samples of a batch from one dataset: `rows` there, their `places` in the batch, the
    dataset's `number`.
    """

    reader: Reader
    rows: Int64
    places: Int64
    number: int


class PendingMixedRead:
    """A batch of a mixture on its way; `batch` takes what is known before its frames are there."""

    def __init__(self, join: Callable[[], Batch]) -> None:
        self.batch: Batch = {}
        self._join = join

    def result(self) -> Batch:
        """The batch, once the frames of all datasets are there.

        Raises: as Reading.
        """
        return self._join() | self.batch


class MixedReader:
    """Reads samples of a mixture by row, as a Reader does of one dataset. Safe to call from several
    threads.

    One pool of decoding threads and one budget of frames serve all datasets. The batch has the
    mixture's names and `dataset_index`; `<camera>_is_missing` and `<key>_dim_is_pad` where the
    mixture has such gaps at all.

    Args:
        mixture: what to read.
        windows: frame offsets per common key, as for a Reader.
        threads: how many decode at a time, over all datasets.
        keys: the common keys to read, beside the bookkeeping; None for all.
        frame_memory: bytes for decoded frames of all datasets together, as for a Reader: a frame is
            dropped for one of
            any dataset that is wanted sooner.
        frame_format: how frames lie in batches; colours are by common key, and those of all
            datasets that have the camera.
        caches: of parts by name; their keys begin with `kept_under` that name.
    """

    def __init__(
        self,
        mixture: Mixture,
        windows: Windows,
        *,
        threads: int = 4,
        keys: Collection[str] | None = None,
        frame_memory: int = 0,
        caches: Mapping[str, FrameCache] | None = None,
        frame_format: FrameFormat = RECORDED,
    ) -> None:
        self._frame_format = frame_format
        self.mixture, self.windows, self.frame_memory = mixture, windows, frame_memory
        columns = mixture.columns
        asked = columns if keys is None else {*keys, *windows}
        # A camera can be black; any other column is read only where every dataset has it.
        everywhere = {
            key for key, column in columns.items() if column.is_camera or not mixture.lacking(key)
        }
        self._wanted = {
            key: column for key, column in columns.items() if key in asked and key in everywhere
        }
        self._cameras = [key for key, column in self._wanted.items() if column.is_camera]
        self._black = {key: self._black_frame(key) for key in self._cameras if mixture.lacking(key)}
        self._padded = [
            key for key, column in self._wanted.items() if is_vector(column) and mixture.padded(key)
        ]
        self._first = mixture.first_rows
        self._caches, self.buffer = caches or {}, FrameBuffer(budget_bytes=0)
        self._decoding = DecodePool(threads)
        self._memory = defaultdict[str, Recycled](Recycled)
        self._readers = [self._reader(part) for part in mixture.parts]

    def _reader(self, part: MixtureEntry) -> Reader:
        here = [key for key in self._wanted if key in part.columns]
        windows = {part.own(key): offsets for key, offsets in self.windows.items() if key in here}
        reader = Reader(
            part.dataset,
            windows,
            keys=[part.own(key) for key in here],
            shared=Shared(kept_under(part.name), self._decoding, self.buffer),
            cache=self._caches.get(part.name),
            frame_format=self._frame_format.under({key: part.own(key) for key in here}),
        )
        reader.rename(part.rename or {})
        return reader

    @property
    def looks_ahead(self) -> bool:
        """See Reader."""
        return self.buffer.budget_bytes > 0

    def reserve_batches(self, batch_size: int, batches: int) -> int:
        """As Reader.allot; frames that are black count, too.

        Raises: ConfigError when the budget is smaller than one batch.
        """
        size = sum(math.prod(self._frame_shape(key, batch_size)) for key in self._cameras)
        if not self.frame_memory or not size:
            return batches
        count = batches_within(self.frame_memory, size, batch_size, batches)
        self.buffer.budget_bytes = self.frame_memory - count * size
        return count

    def plan_ahead(self, rows: Int64, steps: Int64) -> None:
        """Say which anchors come, rows of the mixture; see Reader.foresee."""
        number = self.mixture.part_of(rows)
        for i, reader in enumerate(self._readers):
            mine = number == i
            reader.plan_ahead(rows[mine] - self._first[i], steps[mine])

    def prefetch(self, rows: Int64, step: int) -> bool:
        """Decode ahead, of every dataset whose decoders are idle; see Reader.prefetch."""
        found = [part.reader.prefetch(part.rows, step) for part in self._divided(rows)]
        return all(found)

    def decode_with(self, decode: Callable[[Gop], Pixels]) -> None:
        """See Reader."""
        for reader in self._readers:
            reader.decode_with(decode)

    def allocate_with(self, allocate: Allocate) -> None:
        """Have batches lie in memory from this from now on; see Reader."""
        self._memory = defaultdict(lambda: Recycled(allocate))

    def work(self) -> ReadCounters:
        """What reading has cost so far, over all datasets."""
        return sum((reader.work() for reader in self._readers[1:]), self._readers[0].work())

    def read(self, rows: Int64) -> Batch:
        """The samples anchored at `rows` (B,), rows of the mixture; see Reader.read.

        `index`, `episode_index` and `task_index` count within a sample's own dataset.
        """
        return self.start(rows).result()

    def start(self, rows: Int64, step: int | None = None) -> PendingMixedRead:
        """Begin to read samples of all datasets side by side."""
        parts = self._divided(rows)
        frames = {
            key: self._memory[key].empty(self._frame_shape(key, len(rows))) for key in self._cameras
        }
        coming = [
            (part.reader.start(part.rows, step, self._slots(part, frames)), part) for part in parts
        ]

        def join() -> Batch:
            whole = [self._named(part.number, one.result()) for one, part in coming]
            return _joined(whole, parts, lambda key: self._memory[key].empty) | frames

        return PendingMixedRead(join)

    def _frame_shape(self, key: str, size: int) -> tuple[int, ...]:
        """(B, H, W, C), or (B, T, H, W, C) under a window, of a camera in a batch of `size`
        samples.
        """
        steps = (len(self.windows[key]),) if key in self.windows else ()
        return (size, *steps, *self._frame_format.shape(key, self._wanted[key]))

    def _slots(self, part: _Share, frames: Mapping[str, Pixels]) -> BatchSlots:
        """Where one part's frames go in those of the whole batch; cameras that it lacks are made
        black there.
        """
        mine = self.mixture.parts[part.number]
        for key, out in frames.items():
            if key not in mine.columns:
                out[part.places] = self._black[key]
        return BatchSlots(
            {mine.own(key): out for key, out in frames.items() if key in mine.columns}, part.places
        )

    def _black_frame(self, key: str) -> NDArray[np.uint8]:
        """(H, W, C), or planes."""
        shape = self._frame_format.shape(key, self._wanted[key])
        frame = np.zeros(shape, np.uint8)
        if key in self._frame_format.colours:
            luma, chroma = self._frame_format.colours[key].black
            lines = shape[0] * 2 // 3
            frame[:lines], frame[lines:] = luma, chroma
        return frame

    def _divided(self, rows: Int64) -> list[_Share]:
        """The datasets that samples lie in."""
        rows = np.asarray(rows, dtype=np.int64)
        number = self.mixture.part_of(rows)
        places = [(i, np.flatnonzero(number == i)) for i in np.unique(number).tolist()]
        return [_Share(self._readers[i], rows[at] - self._first[i], at, i) for i, at in places]

    def masks(self, rows: Int64) -> Batch:
        """`<key>_is_pad`, `<key>_dim_is_pad`, `<camera>_is_missing` and `dataset_index` alone;
        reads nothing.
        """
        parts = self._divided(rows)
        found: list[Batch] = []
        for reader, own_rows, at, i in parts:
            names = {
                pad_key(old): pad_key(new)
                for old, new in (self.mixture.parts[i].rename or {}).items()
            }
            own: Batch = reader.masks(own_rows)
            found.append(
                {names.get(key, key): mask for key, mask in own.items()} | self._gaps(i, len(at))
            )
        return _joined(found, parts, lambda _: np.empty)

    def _gaps(self, number: int, size: int) -> Batch:
        """The marks of what one part's samples lack: cameras, and dimensions of vectors."""
        columns = self.mixture.parts[number].columns
        marks: Batch = {}
        for key in self._black:
            missing = key not in columns
            marks[missing_key(key)] = np.full(size, missing)
            if missing and key in self.windows:
                marks[pad_key(key)] = np.zeros((size, len(self.windows[key])), dtype=bool)
        for key in self._padded:
            dims = np.arange(self._wanted[key].shape[0]) >= columns[key].shape[0]
            marks[dim_pad_key(key)] = np.broadcast_to(dims, (size, len(dims))).copy()
        return marks

    def _named(self, number: int, raw: Batch) -> Batch:
        """One part's samples without frames, under common names, complete with zeros and the
        marks of what it lacks.
        """
        part = self.mixture.parts[number]
        names = dict(part.rename or {})
        names |= {pad_key(old): pad_key(new) for old, new in names.items()}
        batch = {names.get(key, key): value for key, value in raw.items()}
        for key in self._padded:
            short = self._wanted[key].shape[0] - batch[key].shape[-1]
            batch[key] = np.pad(batch[key], [(0, 0)] * (batch[key].ndim - 1) + [(0, short)])
        return batch | self._gaps(number, len(batch["index"]))

    def close(self) -> None:
        """End the threads, and free what is held."""
        self._decoding.close()
        for reader in self._readers:
            reader.close()

    def __enter__(self) -> MixedReader:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def kept_under(name: str) -> str:
    """What the keys of a part's cameras begin with among the frames held and cached."""
    return f"{name}/"


def _joined(batches: list[Batch], parts: list[_Share], empty: Callable[[str], Empty]) -> Batch:
    """One batch, each sample at its place, with `dataset_index`; all batches have the same keys.

    empty: gives the arrays of a key.
    """
    number = np.empty(sum(len(part.places) for part in parts), np.int64)
    for part in parts:
        number[part.places] = part.number
    if len(batches) == 1:
        return batches[0] | {DATASET_INDEX: number}
    joined: Batch = {DATASET_INDEX: number}
    for key, first in batches[0].items():
        values = [batch[key] for batch in batches]
        if isinstance(first, list):
            values = [np.array(value, dtype=object) for value in values]
            first = values[0]
        types = {value.dtype for value in values}
        dtype = types.pop() if len(types) == 1 else np.dtype(np.float32)
        shape = (len(number), *first.shape[1:])
        out: NDArray[Any] = np.empty(shape, dtype) if dtype.hasobject else empty(key)(shape, dtype)
        for part, value in zip(parts, values, strict=True):
            out[part.places] = value
        joined[key] = out.tolist() if out.dtype == object else out
    return joined
