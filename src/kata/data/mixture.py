"""Several datasets read as one: common names, rows numbered through, what is lacking filled and marked.

row of the mixture -> dataset, row in it -> that dataset's Reader -> common names, padding, black frames -> one batch
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from types import TracebackType
from typing import TypeAlias

import numpy as np

from kata.data.dataset import Dataset, Episodes
from kata.data.layout import TaskLists
from kata.data.order import Int64
from kata.data.reader import Reader
from kata.data.shares import Shares, whole_shares
from kata.data.work import Work
from kata.errors import DataError, did_you_mean
from kata.spec import (
    BOOKKEEPING,
    DATASET_INDEX,
    Batch,
    Column,
    Feature,
    Windows,
    dim_pad_key,
    feature_of,
    missing_key,
    pad_key,
)


@dataclass(frozen=True, eq=False)
class Part:
    """One dataset of a mixture. rename: its keys to the mixture's. weight: None shares by the number of samples.

    fill: cameras that it lacks are black and marked.
    """

    name: str
    dataset: Dataset
    weight: float | None = None
    rename: Mapping[str, str] | None = None
    fill: bool = False

    @property
    def columns(self) -> dict[str, Column]:
        """The dataset's columns under the mixture's names."""
        names = self.rename or {}
        return {names.get(key, key): column for key, column in self.dataset.columns.items()}

    def own(self, key: str) -> str:
        """The dataset's name of one of the mixture's keys."""
        back = {new: old for old, new in (self.rename or {}).items()}
        return back.get(key, key)


@dataclass(frozen=True, eq=False)
class Mixture:
    """Datasets with shares, which answers what a Dataset answers; rows and episodes are numbered through.

    Raises: DataError for a rename that fits no key or gives two keys one name, and for frames in two parts at once.
    """

    parts: tuple[Part, ...]

    def __post_init__(self) -> None:
        for part in self.parts:
            _check_rename(part)
        _refuse_shared_episodes(self.parts)

    @property
    def repo_id(self) -> str:
        """The parts' names, for messages."""
        return " + ".join(part.name for part in self.parts)

    @property
    def names(self) -> tuple[str, ...]:
        """The parts' names; `dataset_index` counts along them."""
        return tuple(part.name for part in self.parts)

    @property
    def columns(self) -> dict[str, Column]:
        """Every part's columns under common names; of vectors of unequal length the longest."""
        found: dict[str, Column] = {}
        for part in self.parts:
            for key, column in part.columns.items():
                if key not in found or (
                    is_vector(column) and is_vector(found[key]) and column.shape > found[key].shape
                ):
                    found[key] = column
        return found

    @property
    def cameras(self) -> dict[str, Column]:
        """Camera columns by common name, (H, W, C)."""
        return {key: column for key, column in self.columns.items() if column.is_camera}

    @property
    def episodes(self) -> Episodes:
        """The selected episodes of all parts, one part after the other; `index` counts within each part."""
        each = [part.dataset.episodes for part in self.parts]
        length = np.concatenate([e.length for e in each])
        return Episodes(
            np.concatenate([e.index for e in each]),
            length,
            np.cumsum(length) - length,
            TaskLists.of(tasks for e in each for tasks in e.tasks),
        )

    @property
    def num_frames(self) -> int:
        """Frames of all parts."""
        return sum(part.dataset.num_frames for part in self.parts)

    @property
    def first_rows(self) -> Int64:
        """(k,) the mixture's row at which each part begins."""
        frames = np.array([part.dataset.num_frames for part in self.parts], dtype=np.int64)
        return np.cumsum(frames) - frames

    @property
    def notes(self) -> list[str]:
        """What the user should be told, by dataset."""
        return [f"{part.name}: {note}" for part in self.parts for note in part.dataset.notes]

    def features(self) -> dict[str, Feature]:
        """The columns that are inputs or outputs of a policy, cameras as (C, H, W)."""
        found = {key: feature_of(key, column) for key, column in self.columns.items()}
        return {key: feature for key, feature in found.items() if feature is not None}

    def part_of(self, rows: Int64) -> Int64:
        """Number of the part that each of the mixture's rows lies in."""
        return np.searchsorted(self.first_rows, rows, side="right") - 1

    def sizes(self, rows: Int64) -> list[int]:
        """How many of these rows each part has."""
        return np.bincount(self.part_of(rows), minlength=len(self.parts)).tolist()

    def shares(self, rows: Int64) -> Shares:
        """The schedule by the parts' weights; without weights each part's share of `rows`, its anchors."""
        sizes = self.sizes(rows)
        weights = [float(n) if p.weight is None else p.weight for p, n in zip(self.parts, sizes, strict=True)]
        return Shares(whole_shares(weights))

    def with_datasets(self, datasets: Sequence[Dataset]) -> Mixture:
        """The same mixture over other episodes of its datasets, in order."""
        return Mixture(tuple(replace(part, dataset=d) for part, d in zip(self.parts, datasets, strict=True)))

    def padded(self, key: str) -> bool:
        """Whether some part has a shorter vector under this key than another."""
        return len({part.columns[key].shape for part in self.parts if key in part.columns}) > 1

    def lacking(self, key: str) -> list[str]:
        """Names of the parts that have no such column."""
        return [part.name for part in self.parts if key not in part.columns]


def is_vector(column: Column) -> bool:
    """Several numbers along one axis, which can be padded at the end."""
    return not column.is_camera and len(column.shape) == 1 and column.shape[0] > 1


def _check_rename(part: Part) -> None:
    known = part.dataset.columns
    for old in part.rename or {}:
        if old not in known:
            raise DataError(
                f"{part.name}: rename_map names '{old}', which is not in the dataset",
                rule=f"its keys: {', '.join(key for key in known if key not in BOOKKEEPING)}",
                remedy=did_you_mean(old, known),
            )
    if len(part.columns) < len(known):
        raise DataError(
            f"{part.name}: rename_map {dict(part.rename or {})} gives two keys one name",
            rule="each key needs a name of its own",
            remedy="correct the map",
        )


def _refuse_shared_episodes(parts: Sequence[Part]) -> None:
    """The same frames in two entries would have two shares and be held out in one of them alone."""
    for number, part in enumerate(parts):
        for other in parts[:number]:
            if part.dataset.root.resolve() != other.dataset.root.resolve():
                continue
            both = np.intersect1d(part.dataset.episodes.index, other.dataset.episodes.index)
            if both.size:
                raise DataError(
                    f"{other.name} and {part.name} are the same dataset and share {len(both)} episodes, "
                    f"the first is {both[0]}",
                    rule="an episode stands in one entry of a mixture, whose weight is its share",
                    remedy="make one entry with the sum of the weights, or divide the episodes with `episodes`",
                )


class MixedReading:
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
    """Reads samples of a mixture by row, as a Reader does of one dataset. Safe to call from several threads.

    One pool of decoding threads serves all datasets. The batch has the mixture's names and `dataset_index`;
    `<camera>_is_missing` and `<key>_dim_is_pad` where the mixture has such gaps at all.

    Args:
        mixture: what to read.
        windows: frame offsets per common key, as for a Reader.
        threads: how many decode at a time, over all datasets.
        keys: the common keys to read, beside the bookkeeping; None for all.
    """

    def __init__(
        self, mixture: Mixture, windows: Windows, *, threads: int = 4, keys: Collection[str] | None = None
    ) -> None:
        self.mixture, self.windows = mixture, windows
        columns = mixture.columns
        asked = columns if keys is None else {*keys, *windows}
        # A camera can be black; any other column is read only where every dataset has it.
        everywhere = {key for key, column in columns.items() if column.is_camera or not mixture.lacking(key)}
        self._wanted = {key: column for key, column in columns.items() if key in asked and key in everywhere}
        self._black = [key for key, column in self._wanted.items() if column.is_camera and mixture.lacking(key)]
        self._padded = [key for key, column in self._wanted.items() if is_vector(column) and mixture.padded(key)]
        self._first = mixture.first_rows
        self._decoding = ThreadPoolExecutor(max(1, threads), thread_name_prefix="kata-decode")
        self._readers = [self._reader(part) for part in mixture.parts]

    def _reader(self, part: Part) -> Reader:
        here = [key for key in self._wanted if key in part.columns]
        windows = {part.own(key): offsets for key, offsets in self.windows.items() if key in here}
        return Reader(part.dataset, windows, keys=[part.own(key) for key in here], pool=self._decoding)

    @property
    def looks_ahead(self) -> bool:
        """False: a mixture holds no frames for later batches."""
        return False

    def allot(self, batch_size: int, batches: int) -> int:
        """All the batches that are asked for."""
        del batch_size
        return batches

    def foresee(self, rows: Int64, steps: Int64) -> None:
        """Nothing is planned for."""

    def prefetch(self, rows: Int64, step: int) -> bool:
        """Nothing is decoded ahead of the batches being read."""
        del rows, step
        return False

    def work(self) -> Work:
        """What reading has cost so far, over all datasets."""
        return sum((reader.work() for reader in self._readers[1:]), self._readers[0].work())

    def read(self, rows: Int64) -> Batch:
        """The samples anchored at `rows` (B,), rows of the mixture; see Reader.read.

        `index`, `episode_index` and `task_index` count within a sample's own dataset.
        """
        return self.start(rows).result()

    def start(self, rows: Int64, step: int | None = None) -> MixedReading:
        """Begin to read samples of all datasets side by side."""
        del step
        rows = np.asarray(rows, dtype=np.int64)
        number = self.mixture.part_of(rows)
        present = np.unique(number).tolist()
        places = [np.flatnonzero(number == i) for i in present]
        coming = [self._readers[i].start(rows[at] - self._first[i]) for i, at in zip(present, places, strict=True)]

        def join() -> Batch:
            whole = [self._named(i, one.result()) for i, one in zip(present, coming, strict=True)]
            return _joined(whole, places, len(rows)) | {DATASET_INDEX: number}

        return MixedReading(join)

    def masks(self, rows: Int64) -> Batch:
        """`<key>_is_pad`, `<key>_dim_is_pad`, `<camera>_is_missing` and `dataset_index` alone; reads nothing."""
        rows = np.asarray(rows, dtype=np.int64)
        number = self.mixture.part_of(rows)
        present = np.unique(number).tolist()
        places = [np.flatnonzero(number == i) for i in present]
        found: list[Batch] = []
        for i, at in zip(present, places, strict=True):
            part = self.mixture.parts[i]
            names = {pad_key(old): pad_key(new) for old, new in (part.rename or {}).items()}
            own: Batch = self._readers[i].masks(rows[at] - self._first[i])
            named: Batch = {names.get(key, key): mask for key, mask in own.items()}
            found.append(named | self._gaps(i, len(at)))
        return _joined(found, places, len(rows)) | {DATASET_INDEX: number}

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
        """One part's samples under common names, complete with black frames, zeros and their marks."""
        part = self.mixture.parts[number]
        names = dict(part.rename or {})
        names |= {pad_key(old): pad_key(new) for old, new in names.items()}
        batch = {names.get(key, key): value for key, value in raw.items()}
        size = len(batch["index"])
        for key in self._black:
            if key not in part.columns:
                steps = (len(self.windows[key]),) if key in self.windows else ()
                batch[key] = np.zeros((size, *steps, *self._wanted[key].shape), dtype=np.uint8)
        for key in self._padded:
            short = self._wanted[key].shape[0] - batch[key].shape[-1]
            batch[key] = np.pad(batch[key], [(0, 0)] * (batch[key].ndim - 1) + [(0, short)])
        return batch | self._gaps(number, size)

    def close(self) -> None:
        """End the threads."""
        for reader in self._readers:
            reader.close()
        self._decoding.shutdown(wait=True, cancel_futures=True)

    def __enter__(self) -> MixedReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _joined(parts: list[Batch], places: list[Int64], size: int) -> Batch:
    """One batch, each sample at its place; the parts have the same keys."""
    if len(parts) == 1:
        return parts[0]
    joined: Batch = {}
    for key, first in parts[0].items():
        values = [part[key] for part in parts]
        if isinstance(first, list):
            values = [np.array(value, dtype=object) for value in values]
            first = values[0]
        types = {value.dtype for value in values}
        out = np.empty((size, *first.shape[1:]), dtype=types.pop() if len(types) == 1 else np.float32)
        for place, value in zip(places, values, strict=True):
            out[place] = value
        joined[key] = out.tolist() if out.dtype == object else out
    return joined


Data: TypeAlias = Dataset | Mixture
"""What a run is trained on: one dataset, or several read as one."""
