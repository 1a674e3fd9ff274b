"""A cache of what the frozen part of a policy makes of samples, one row of bytes per sample."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kata.closing import Closing
from kata.data.arrays import Int64
from kata.data.dataset.mixture import Mixture, MixtureEntry
from kata.data.format.fingerprint import digest
from kata.data.storage.array_file import cache_folder
from kata.data.storage.row_cache import ROW_FORMAT, RowBudget, RowCache, RowFiles
from kata.spec import FROZEN_KNOWN, FROZEN_RECORD, FROZEN_ROW, Batch

_KEY = "features"


@dataclass(frozen=True)
class FeatureFiles:
    """The files of a feature cache.

    Attributes:
        folder: None means the cache folder.
        num_bytes: budget of all datasets together; None means 80 % of the disk's free space.
        identity: JSON values that decide the features, beside the dataset: the frozen weights and
            the steps before them.
        row_bytes: size of a sample's features.
    """

    folder: Path | None
    num_bytes: int | None
    identity: Sequence[Any]
    row_bytes: int


class FeatureCache(Closing):
    """The cached features of a mixture's samples, for several threads and processes.

    All subsets of a dataset share the files, as they do those of decoded frames.

    Args:
        mixture: the episodes whose rows `lookup` gets.
        cameras: their common keys; the files that they are read from are part of the identity.
        files: see FeatureFiles.
    """

    def __init__(self, mixture: Mixture, cameras: Sequence[str], files: FeatureFiles) -> None:
        self._mixture, self._row_bytes = mixture, files.row_bytes
        lengths = [int(part.dataset.opened.length.sum()) for part in mixture.parts]
        self._first: list[int] = [sum(lengths[:number]) for number in range(len(lengths))]
        self._caches: list[RowCache] = []
        folder = (files.folder or cache_folder()) / _KEY
        for part, rows in zip(mixture.parts, lengths, strict=True):
            name = _name(part, cameras, files)
            listed = RowFiles({_KEY: (name, (files.row_bytes,))}, rows, "samples' features")
            budget = RowBudget(files.num_bytes, rows / max(1, sum(lengths)))
            self._caches.append(RowCache(folder, listed, budget))

    def lookup(self, rows: Int64) -> Batch:
        """Return what is known of samples; see `kata.data.loader.reader.FrozenRows`."""
        part, opened = self._opened(rows)
        known = self._has(part, opened)
        found: Batch = {FROZEN_ROW: opened + np.asarray(self._first)[part]}
        if known.any():
            record = np.empty((len(rows), self._row_bytes), np.uint8)
            for number in np.unique(part[known]).tolist():
                at = np.flatnonzero(known & (part == number))
                # A disk that fails takes back what it had not confirmed.
                known[at] = ~self._caches[number].fetch(_KEY, opened[at], record, at)
            found[FROZEN_RECORD] = record
        return {**found, FROZEN_KNOWN: known}

    def knows(self, rows: Int64) -> bool:
        """Return True if the features of all these rows are there."""
        return bool(self._has(*self._opened(rows)).all())

    def store(self, rows: Int64, records: NDArray[np.uint8]) -> None:
        """Write records (n, N) of samples, by the rows that `lookup` gave them.

        A full disk ends the filling of the cache, not the run.
        """
        part = np.searchsorted(self._first, rows, side="right") - 1
        for number, row, record in zip(part.tolist(), rows.tolist(), records, strict=True):
            self._caches[number].store(_KEY, row - self._first[number], record)

    def _opened(self, rows: Int64) -> tuple[Int64, Int64]:
        """Return the part of the mixture that has each row, and the row among its opened ones."""
        part = self._mixture.part_of(rows)
        opened = rows - self._mixture.first_rows[part]
        for number in np.unique(part).tolist():
            mine = part == number
            opened[mine] = self._mixture.parts[number].dataset.opened_rows(opened[mine])
        return part, opened

    def _has(self, part: Int64, opened: Int64) -> NDArray[np.bool_]:
        found = np.zeros(len(part), bool)
        for number in np.unique(part).tolist():
            mine = part == number
            found[mine] = self._caches[number].has(_KEY, opened[mine])
        return found

    def close(self) -> None:
        """Sync what was written."""
        for cache in self._caches:
            cache.close()


def _name(part: MixtureEntry, cameras: Sequence[str], files: FeatureFiles) -> str:
    """Return the name of a dataset's files, a digest of all that decides its features."""
    data = part.dataset
    spans = {"": data.opened.data}
    for key in cameras:
        if key in part.columns and data.columns[part.own(key)].dtype == "video":
            spans[part.own(key)] = data.opened.videos[part.own(key)]
    held = [digest(data.store, data.opened, span, ROW_FORMAT, key) for key, span in spans.items()]
    words = json.dumps([held, list(data.tasks), *files.identity, files.row_bytes], sort_keys=True)
    return hashlib.sha256(words.encode()).hexdigest()[:32]
