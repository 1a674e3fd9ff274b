"""The reader of samples, of one dataset or of several: one batch under common names.

row of the mixture -> dataset, row in it -> that dataset's DatasetReader -> common names, padding,
black frames -> one batch
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from kata.closing import Closing
from kata.data.arrays import Int64, Pixels
from kata.data.counters import ReadCounters
from kata.data.dataset.dataset import Dataset
from kata.data.dataset.mixture import Mixture, MixtureEntry, is_vector
from kata.data.frames.decode_pool import DecodePool
from kata.data.frames.frame_buffer import FrameBuffer
from kata.data.frames.frame_cache import FrameCache
from kata.data.frames.frame_delivery import PendingFrames
from kata.data.frames.frame_format import RECORDED, FrameFormat
from kata.data.loader.dataset_reader import BatchSlots, DatasetReader, FrameResources
from kata.data.storage.buffers import Allocate, Empty, Recycled
from kata.data.video.decoder import Gop
from kata.errors import ConfigError, DataError, did_you_mean
from kata.spec import (
    DATASET_INDEX,
    FROZEN_KNOWN,
    Batch,
    Windows,
    dim_pad_key,
    missing_key,
    pad_key,
)
from kata.units import bytes_text


class PendingBatch:
    """A batch that is complete except for frames that are being decoded.

    Args:
        batch: all arrays; those of cameras are not filled yet.
        pending: the frames to wait for, per dataset.
    """

    def __init__(self, batch: Batch, pending: Sequence[PendingFrames]) -> None:
        self.batch = batch
        self._pending = pending

    def result(self) -> Batch:
        """Return the batch, once its frames are there.

        Raises:
            FrameError: a frame cannot be decoded.
            DataError: a file is damaged otherwise.
        """
        for frames in self._pending:
            frames.wait()
        return self.batch


class FrozenRows(Protocol):
    """Cached features of samples, that a frozen part of a policy computed."""

    def lookup(self, rows: Int64) -> Batch:
        """Return FROZEN_ROW, FROZEN_KNOWN and, if a sample is known, FROZEN_RECORD of rows (B,)."""
        ...

    def knows(self, rows: Int64) -> bool:
        """Return True if the features of all these rows are there."""
        ...


class _Share(NamedTuple):
    """The samples of a batch from one dataset.

    Attributes:
        reader: of the dataset.
        rows: (n,) rows of the dataset.
        places: (n,) places of the samples in the batch.
        number: of the dataset in the mixture.
    """

    reader: DatasetReader
    rows: Int64
    places: Int64
    number: int


class Reader(Closing):
    """A reader of samples by the row of their anchor, to be shared by threads.

    One pool of decoding threads and one budget of frames serve all datasets. In a mixture of
    several, a batch also has `dataset_index`, and `<camera>_is_missing` and `<key>_dim_is_pad`
    where some dataset lacks a camera or has a shorter vector.

    Args:
        dataset: a dataset, or a mixture whose common names the batch then has.
        windows: frame offsets per key; a key that is absent is read at the anchor alone, without a
            time axis.
        threads: number of decoding threads, over all datasets.
        keys: the columns to read, in addition to the bookkeeping; None for all.
        frame_memory: bytes for decoded frames of all datasets, including those of batches that are
            read ahead. 0 holds no frame for later batches and sets no limit to batches. See
            `reserve_batches` and `plan_ahead`.
        caches: frame caches by part of the mixture, or by the dataset's repo_id. They are asked
            first for frames, and are given decoded ones.
        frame_format: format of frames in batches; colors are by common key, and hold for all
            datasets that have the camera.
        rename_map: names that columns get after reading, where they differ; they decide which
            columns are states and actions.

    Raises:
        DataError: A key is unknown, or files are damaged, as far as their ends show it.
    """

    def __init__(
        self,
        dataset: Dataset | Mixture,
        windows: Windows,
        *,
        threads: int = 4,
        keys: Collection[str] | None = None,
        frame_memory: int = 0,
        caches: Mapping[str, FrameCache] | None = None,
        frame_format: FrameFormat = RECORDED,
        rename_map: Mapping[str, str] | None = None,
    ) -> None:
        mixture = Mixture.of(dataset) if isinstance(dataset, Dataset) else dataset
        self.mixture = mixture
        self.windows = windows
        self.frame_memory = frame_memory
        self._frame_format = frame_format
        # 1. The columns that batches have.
        columns = mixture.columns
        asked = {*(columns if keys is None else keys), *windows}
        for key in asked:
            _check_key(mixture, key)
        # A camera can be black; another column is read only where every dataset has it.
        self._wanted = {
            key: column
            for key, column in columns.items()
            if key in asked and (column.is_camera or not mixture.lacking(key))
        }
        # 2. The gaps of a mixture: cameras to make black, and vectors to pad.
        self._cameras = [key for key, column in self._wanted.items() if column.is_camera]
        self._black = {key: self._black_frame(key) for key in self._cameras if mixture.lacking(key)}
        self._padded = [
            key for key, column in self._wanted.items() if is_vector(column) and mixture.padded(key)
        ]
        self._first = mixture.first_rows
        # 3. One pool and one budget for all datasets, however many there are. The budget stays 0
        # until `reserve_batches` has taken the batches from it.
        self._memory = defaultdict[str, Recycled](Recycled)
        self.buffer = FrameBuffer(budget_bytes=0)
        self._pool = DecodePool(threads)
        self._rename_map = rename_map or {}
        self._features: FrozenRows | None = None
        # A fault of one file ends the indexing of others: requests for them must not outlive this.
        with ExitStack() as on_error:
            on_error.callback(self._pool.close)
            self._readers = [
                self._reader(part, (caches or {}).get(part.name)) for part in mixture.parts
            ]
            on_error.pop_all()

    def _reader(self, part: MixtureEntry, cache: FrameCache | None) -> DatasetReader:
        # A dataset's reader knows its own names only; this class translates in both directions.
        names = {key: part.own(key) for key in self._wanted if key in part.columns}
        windows = {names[key]: offsets for key, offsets in self.windows.items() if key in names}
        resources = FrameResources(
            self._pool,
            self.buffer,
            self._frame_format.under(names),
            cache,
            self.mixture.key_prefix(part),
        )
        roles = {own: self._rename_map.get(key, key) for key, own in names.items()}
        return DatasetReader(part.dataset, windows, roles, resources)

    @property
    def looks_ahead(self) -> bool:
        """Return True if there is room to hold frames, so that `plan_ahead` and `prefetch` have an
        effect.
        """
        return self.buffer.budget_bytes > 0

    @property
    def has_room(self) -> bool:
        """Return True while held frames take less of the budget than prefetching may fill."""
        return self._readers[0].has_room

    def batch_bytes(self, size: int) -> int:
        """Return the bytes of the frames of a batch of `size` samples, black ones included."""
        return sum(math.prod(self._frame_shape(key, size)) for key in self._cameras)

    def reserve_batches(self, batch_size: int, batches: int) -> int:
        """Divide `frame_memory` between batches that are read ahead and frames that are held.

        A batch that was handed over belongs to the caller.

        Args:
            batch_size: samples of a batch.
            batches: the most batches that may be read at a time.

        Returns:
            The number of batches that fit, at most `batches`. Their frames are reserved, and the
            rest of the budget is for held frames.

        Raises:
            ConfigError: The budget is smaller than one batch.
        """
        # Without a budget, or without cameras, there is nothing to divide.
        size = self.batch_bytes(batch_size)
        if not self.frame_memory or not size:
            return batches
        if self.frame_memory < size:
            raise ConfigError(
                f"dataset.frame_memory={bytes_text(self.frame_memory)}, but the frames of one "
                f"batch of {batch_size} samples take {bytes_text(size)}",
                rule="decoded frames of at least one batch fit into the budget",
                remedy=f"--dataset.frame_memory={-(-size // 10**6)}MB or more, or a smaller "
                "--batch_size",
            )
        # Batches come first: reading ahead hides latency, held frames only save decoding.
        count = min(batches, self.frame_memory // size)
        self.buffer.budget_bytes = self.frame_memory - count * size
        return count

    def plan_ahead(self, rows: Int64, steps: Int64) -> None:
        """Plan for the anchors `rows` (N,) at `steps` (N,), of which the first is started next."""
        number = self.mixture.part_of(rows)
        for i, reader in enumerate(self._readers):
            mine = number == i
            reader.plan_ahead(rows[mine] - self._first[i], steps[mine])

    def prefetch(self, rows: Int64, step: int) -> bool:
        """Decode frames for a step of the plan, while there is free room and a decoder is idle.

        Returns:
            False if it is no use to ask for the next step.
        """
        if self._features is not None and self._features.knows(rows):
            return True
        found = [share.reader.prefetch(share.rows, step) for share in self._divided(rows)]
        return all(found)

    @property
    def is_far(self) -> bool:
        """Return True if some files are far."""
        return any(reader.is_far for reader in self._readers)

    @property
    def may_fetch(self) -> bool:
        """Return True if some files are far, and the pool of their bytes has room."""
        return any(reader.may_fetch for reader in self._readers)

    def forget_fetches(self) -> None:
        """Let go of bytes that were fetched ahead, because other steps come next."""
        for reader in self._readers:
            reader.forget_fetches()

    def pass_steps(self, step: int) -> None:
        """Let go of bytes that only steps before this one needed."""
        for reader in self._readers:
            reader.pass_steps(step)

    def fetch_ahead(self, rows: Int64, steps: range) -> None:
        """Fetch the bytes that the anchors `rows` (N,) of these steps need."""
        for share in self._divided(rows):
            share.reader.fetch_ahead(share.rows, steps)

    def take_features(self, features: FrozenRows) -> None:
        """From now on give batches the features that are known, and no frames to those that have
        them all.
        """
        self._features = features

    def decode_with(self, decode: Callable[[Gop], Pixels]) -> None:
        """Decode video by this function from now on; it returns frames of a GOP (n, H, W, 3)."""
        for reader in self._readers:
            reader.decode_with(decode)

    def allocate_with(self, allocate: Allocate) -> None:
        """Allocate the memory of frames and vectors of batches by this function from now on.

        The memory is reused once the batch and all arrays and tensors taken from it are gone.
        """
        self._memory = defaultdict(lambda: Recycled(allocate))

    def work(self) -> ReadCounters:
        """Return the totals of all work so far; the difference of two results is the work in
        between.
        """
        done = sum((reader.work() for reader in self._readers[1:]), self._readers[0].work())
        # Datasets share one pool, so its time counts once.
        return done + ReadCounters(store_wait_s=max(each.store_wait_s for each in self._readers))

    def read(self, rows: Int64) -> Batch:
        """Read samples.

        Args:
            rows: anchors, rows of the dataset or of the mixture (B,).

        Returns:
            Cameras uint8 (B, H, W, C), or (B, T, H, W, C) under a window. Vectors float32 (B, D) or
            (B, T, D). Columns of one number (B,) or (B, T), but a state or an action of one number
            (B, 1) or (B, T, 1). `<key>_is_pad` bool (B, T) per window: offsets beyond an episode
            repeat its edge frame and are marked. `task`, a list of sentences. `index`,
            `episode_index`, `frame_index`, `task_index` int64 (B,), counted within a sample's own
            dataset. `timestamp` float32 (B,), seconds.

        Raises:
            DataError: a file turns out to be damaged.
        """
        return self.start(rows).result()

    def start(self, rows: Int64, step: int | None = None) -> PendingBatch:
        """Begin to read samples, of all datasets at once. The pixels never depend on `step`.

        Args:
            rows: (B,) anchors.
            step: the step of this batch in the plan of `plan_ahead`. Frames held from earlier steps
                are used, and those that later steps want are held, within the budget. None holds
                nothing. Steps are for one thread at a time.
        """
        # 1. The memory of all frames, into which the threads of every dataset decode. Samples whose
        # features are all known need none.
        rows = np.asarray(rows, dtype=np.int64)
        known = {} if self._features is None else self._features.lookup(rows)
        cameras = [] if known and known[FROZEN_KNOWN].all() else self._cameras
        frames = {
            key: self._memory[key].empty(self._frame_shape(key, len(rows))) for key in cameras
        }
        shares = self._divided(rows)
        # 2. The memory of vectors. Those of several datasets are copied into a common array, and
        # only that one then takes memory that is reused.
        empty = self._empty if self.mixture.is_single else _plain
        # 3. Decoding starts for one dataset after the other; none waits for another's frames.
        named: list[Batch] = []
        pending: list[PendingFrames] = []
        for share in shares:
            slots = self._slots(share, frames)
            batch, coming = share.reader.start(share.rows, step, slots, empty)
            named.append(self._named(share.number, batch))
            pending.append(coming)
        return PendingBatch(self._joined(named, shares, self._empty) | frames | known, pending)

    def masks(self, rows: Int64) -> Batch:
        """Return `<key>_is_pad`, `<key>_dim_is_pad`, `<camera>_is_missing` and `dataset_index`.

        They are index arithmetic: nothing is read.
        """
        shares = self._divided(np.asarray(rows, dtype=np.int64))
        found = [
            self._renamed(share.number, share.reader.masks(share.rows))
            | self._gaps(share.number, len(share.places))
            for share in shares
        ]
        return self._joined(found, shares, _plain)

    def _empty(self, key: str) -> Empty:
        return self._memory[key].empty

    def _frame_shape(self, key: str, size: int) -> tuple[int, ...]:
        """Return (B, H, W, C), or (B, T, H, W, C) under a window, of `size` samples of a camera."""
        steps = (len(self.windows[key]),) if key in self.windows else ()
        return (size, *steps, *self._frame_format.shape(key, self._wanted[key]))

    def _divided(self, rows: Int64) -> list[_Share]:
        """Divide samples among the datasets; those of a mixture of one pass unchanged."""
        if self.mixture.is_single:
            return [_Share(self._readers[0], rows, np.arange(len(rows)), 0)]
        number = self.mixture.part_of(rows)
        places = [(i, np.flatnonzero(number == i)) for i in np.unique(number).tolist()]
        return [_Share(self._readers[i], rows[at] - self._first[i], at, i) for i, at in places]

    def _slots(self, share: _Share, frames: Mapping[str, Pixels]) -> BatchSlots:
        """Return the slots of one part's frames; cameras that it lacks are made black there."""
        part = self.mixture.parts[share.number]
        own: dict[str, Pixels] = {}
        for key, out in frames.items():
            if key in part.columns:
                own[part.own(key)] = out
            else:
                out[share.places] = self._black[key]
        return BatchSlots(own, share.places)

    def _black_frame(self, key: str) -> NDArray[np.uint8]:
        """Return a black frame (H, W, C), or its planes."""
        shape = self._frame_format.shape(key, self._wanted[key])
        frame = np.zeros(shape, np.uint8)
        if key in self._frame_format.colours:
            luma, chroma = self._frame_format.colours[key].black
            lines = shape[0] * 2 // 3
            frame[:lines] = luma
            frame[lines:] = chroma
        return frame

    def _renamed(self, number: int, raw: Batch) -> Batch:
        """Return one part's arrays under common names."""
        names = dict(self.mixture.parts[number].rename or {})
        names |= {pad_key(old): pad_key(new) for old, new in names.items()}
        return {names.get(key, key): value for key, value in raw.items()}

    def _named(self, number: int, raw: Batch) -> Batch:
        """Complete one part's samples, under common names, with zeros and the marks of gaps."""
        batch = self._renamed(number, raw)
        for key in self._padded:
            short = self._wanted[key].shape[0] - batch[key].shape[-1]
            batch[key] = np.pad(batch[key], [(0, 0)] * (batch[key].ndim - 1) + [(0, short)])
        return batch | self._gaps(number, len(batch["index"]))

    def _gaps(self, number: int, size: int) -> Batch:
        """Return the marks of what one part's samples lack: cameras, and dimensions of vectors."""
        columns = self.mixture.parts[number].columns
        marks: Batch = {}
        for key in self._black:
            is_missing = key not in columns
            marks[missing_key(key)] = np.full(size, is_missing)
            if is_missing and key in self.windows:
                marks[pad_key(key)] = np.zeros((size, len(self.windows[key])), dtype=bool)
        for key in self._padded:
            dims = np.arange(self._wanted[key].shape[0]) >= columns[key].shape[0]
            marks[dim_pad_key(key)] = np.broadcast_to(dims, (size, len(dims))).copy()
        return marks

    def _joined(
        self, batches: list[Batch], shares: list[_Share], empty: Callable[[str], Empty]
    ) -> Batch:
        """Return one batch, each sample at its place; all batches have the same keys.

        empty: gives the function that makes a key's arrays.
        """
        if self.mixture.is_single:
            return batches[0]
        # Two datasets cost one more copy of the vectors; frames lie in the batch already.
        number = np.empty(sum(len(share.places) for share in shares), np.int64)
        for share in shares:
            number[share.places] = share.number
        joined: Batch = {DATASET_INDEX: number}
        if len(batches) == 1:
            return batches[0] | joined
        for key in batches[0]:
            joined[key] = _placed([batch[key] for batch in batches], shares, empty(key))
        return joined

    def close(self) -> None:
        """End the threads, and free the frames that are held."""
        self._pool.close()
        with self.buffer.lock:
            self.buffer.clear()


def _check_key(mixture: Mixture, key: str) -> None:
    if key not in mixture.columns:
        raise DataError(
            f"'{key}' is no column of {mixture.repo_id}",
            rule="a column of the dataset",
            remedy=did_you_mean(key, mixture.columns),
        )


def _plain(key: str) -> Empty:
    """Return the maker of arrays whose memory is not reused."""
    del key
    return np.empty


def _placed(values: list[Any], shares: list[_Share], empty: Empty) -> Any:
    """Return one key's values of all shares in one array, or in one list for sentences."""
    is_list = isinstance(values[0], list)
    if is_list:
        values = [np.array(value, dtype=object) for value in values]
    types = {value.dtype for value in values}
    dtype = types.pop() if len(types) == 1 else np.dtype(np.float32)
    shape = (sum(len(value) for value in values), *values[0].shape[1:])
    out: NDArray[Any] = np.empty(shape, dtype) if dtype.hasobject else empty(shape, dtype)
    for share, value in zip(shares, values, strict=True):
        out[share.places] = value
    return out.tolist() if is_list else out
