"""One or several datasets taken as one: common names, rows counted over all of them, shares."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from kata.data.arrays import Int64
from kata.data.dataset.anchors import AnchorRows
from kata.data.dataset.dataset import Dataset
from kata.data.dataset.windows import Episodes
from kata.data.format.episode_table import TaskLists
from kata.data.sampling.mixture_order import Shares, whole_shares
from kata.errors import DataError, did_you_mean
from kata.spec import (
    BOOKKEEPING,
    Column,
    Feature,
    features_of,
)


@dataclass(frozen=True, eq=False)
class MixtureEntry:
    """One dataset of a mixture.

    Args:
        name: the dataset's name in messages, metrics and folders.
        dataset: the selected episodes.
        weight: share of the samples, relative to the other entries; None in every entry shares by
            the number of samples.
        rename: the dataset's keys to the mixture's.
        fill: True makes cameras that the dataset lacks black, and marks them.
    """

    name: str
    dataset: Dataset
    weight: float | None = None
    rename: Mapping[str, str] | None = None
    fill: bool = False

    @cached_property
    def columns(self) -> dict[str, Column]:
        """Return the dataset's columns under the mixture's names."""
        names = self.rename or {}
        return {names.get(key, key): column for key, column in self.dataset.columns.items()}

    def own(self, key: str) -> str:
        """Return the dataset's name of one of the mixture's keys."""
        back = {new: old for old, new in (self.rename or {}).items()}
        return back.get(key, key)


@dataclass(frozen=True, eq=False)
class Mixture:
    """One or several datasets with shares; rows and episodes are counted over all of them.

    A mixture of one is its dataset: the order, the batches and all names are the same.

    Raises:
        DataError: a rename that fits no key or gives two keys one name, or frames that are in two
            parts at once.
    """

    parts: tuple[MixtureEntry, ...]

    def __post_init__(self) -> None:
        for part in self.parts:
            _check_rename(part)
        _refuse_shared_episodes(self.parts)

    @staticmethod
    def of(dataset: Dataset) -> Mixture:
        """Return a mixture of one dataset."""
        return Mixture((MixtureEntry(dataset.repo_id, dataset),))

    @property
    def is_single(self) -> bool:
        """Return True for a mixture of one, in which nothing has to distinguish datasets."""
        return len(self.parts) == 1

    @property
    def datasets(self) -> list[Dataset]:
        """Return the datasets of all parts."""
        return [part.dataset for part in self.parts]

    @property
    def repo_id(self) -> str:
        """Return the parts' names, for messages."""
        return " + ".join(part.name for part in self.parts)

    @property
    def names(self) -> tuple[str, ...]:
        """Return the parts' names; `dataset_index` counts along them."""
        return tuple(part.name for part in self.parts)

    @property
    def labels(self) -> tuple[str, ...]:
        """Return the names that distinguish the parts; they are empty for a mixture of one."""
        return () if self.is_single else self.names

    def labelled(self, part: MixtureEntry, text: str) -> str:
        """Return a message about one part, after its name unless it is the only part."""
        return text if self.is_single else f"{part.name}: {text}"

    def key_prefix(self, part: MixtureEntry) -> str:
        """Return the prefix of the part's cameras among the frames that are held and cached."""
        return "" if self.is_single else f"{part.name}/"

    @cached_property
    def columns(self) -> dict[str, Column]:
        """Return every part's columns under common names.

        Of vectors of unequal length it is the longest.
        """
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
        """Return the camera columns by common name, with shapes (H, W, C)."""
        return {key: column for key, column in self.columns.items() if column.is_camera}

    @cached_property
    def episodes(self) -> Episodes:
        """Return the selected episodes of all parts, one part after the other.

        `index` counts within each part.
        """
        # Rows are counted over all parts, so that an episode starts where the last one ended.
        each = [dataset.episodes for dataset in self.datasets]
        if self.is_single:
            return each[0]
        length = np.concatenate([e.length for e in each])
        return Episodes(
            np.concatenate([e.index for e in each]),
            length,
            np.cumsum(length) - length,
            TaskLists.of(itertools.chain.from_iterable(e.tasks for e in each)),
        )

    @property
    def num_episodes(self) -> int:
        """Return the number of recorded episodes of all parts; ranges of one episode count once."""
        return sum(part.dataset.num_episodes for part in self.parts)

    @property
    def is_cut(self) -> bool:
        """Return True if kept ranges cut some part."""
        return any(part.dataset.is_cut for part in self.parts)

    @property
    def num_frames(self) -> int:
        """Return the number of frames of all parts."""
        return sum(part.dataset.num_frames for part in self.parts)

    @property
    def first_rows(self) -> Int64:
        """Return the mixture's row at which each part begins, (k,) int64."""
        frames = np.array([part.dataset.num_frames for part in self.parts], dtype=np.int64)
        return np.cumsum(frames) - frames

    @property
    def notes(self) -> list[str]:
        """Return the messages for the user, each with its dataset."""
        found: list[str] = []
        for part in self.parts:
            found += [self.labelled(part, note) for note in part.dataset.notes]
        return found

    def features(self) -> dict[str, Feature]:
        """Return the columns that are inputs or outputs of a policy, cameras as (C, H, W)."""
        return features_of(self.columns)

    def part_of(self, rows: Int64) -> Int64:
        """Return the number of the part that has each of the mixture's rows, of their shape."""
        return np.searchsorted(self.first_rows, rows, side="right") - 1

    def sizes(self, rows: Int64 | AnchorRows) -> list[int]:
        """Return the number of these rows that each part has."""
        anchors = AnchorRows.of(rows)
        return np.diff(anchors.before(self.first_rows), append=len(anchors)).tolist()

    def shares(self, rows: Int64 | AnchorRows) -> Shares:
        """Return the schedule by the parts' weights; without weights, by their shares of `rows`.

        Args:
            rows: the anchors of the mixture (N,).
        """
        sizes = self.sizes(rows)
        weights = [
            float(n) if p.weight is None else p.weight
            for p, n in zip(self.parts, sizes, strict=True)
        ]
        return Shares(whole_shares(weights))

    def with_datasets(self, datasets: Sequence[Dataset]) -> Mixture:
        """Return the same mixture over other episodes of its datasets, given in order."""
        return Mixture(
            tuple(replace(part, dataset=d) for part, d in zip(self.parts, datasets, strict=True))
        )

    def padded(self, key: str) -> bool:
        """Return True if some part has a shorter vector under this key than another."""
        return len({part.columns[key].shape for part in self.parts if key in part.columns}) > 1

    def lacking(self, key: str) -> list[str]:
        """Return the names of the parts that have no such column."""
        return [part.name for part in self.parts if key not in part.columns]


def is_vector(column: Column) -> bool:
    """Return True for several numbers along one axis, which can be padded at the end."""
    return not column.is_camera and len(column.shape) == 1 and column.shape[0] > 1


def vector_names(mixture: Mixture, key: str) -> tuple[str, ...]:
    """Return a name for each dimension of a vector.

    It is the recorded one if all parts of a mixture that have the dimension agree on it, else its
    number.
    """
    # 1. All names of each dimension. '' stands for a part that has the dimension without a name.
    given: list[set[str]] = [set() for _ in range(mixture.columns[key].shape[0])]
    for part in mixture.parts:
        column = part.columns.get(key)
        for number in range(0 if column is None else column.shape[0]):
            names = () if column is None or column.names is None else column.names
            given[number].add(names[number] if number < len(names) else "")
    # 2. One name if there is exactly one and no part leaves it open.
    found: list[str] = []
    for number, names in enumerate(given):
        is_agreed = len(names) == 1 and "" not in names
        found.append(names.pop() if is_agreed else f"{key}[{number}]")
    return tuple(found)


def _check_rename(part: MixtureEntry) -> None:
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
            rule="each key needs a different name",
            remedy="correct the map",
        )


def _refuse_shared_episodes(parts: Sequence[MixtureEntry]) -> None:
    """Refuse frames in two entries: they would have two shares, and be held out in one alone."""
    for number, part in enumerate(parts):
        # Every pair is compared by its folder first; that costs nothing beside opening datasets.
        for other in parts[:number]:
            if part.dataset.root.resolve() != other.dataset.root.resolve():
                continue
            both = np.intersect1d(part.dataset.episodes.index, other.dataset.episodes.index)
            if both.size:
                raise DataError(
                    f"{other.name} and {part.name} are the same dataset and share {len(both)} "
                    "episodes, "
                    f"the first is {both[0]}",
                    rule="an episode stands in one entry of a mixture, whose weight is its share",
                    remedy="make one entry with the sum of the weights, or divide the episodes "
                    "with `episodes`",
                )
