"""A cache of rows of bytes, such as decoded frames: one file per kind of row, filled while rows are
computed.

A row is present only if its flag says so, and the flag is written after all of its bytes. So a
process that dies at any point leaves rows absent, never wrong. A disk may store bytes in another
order than they were written. Therefore a flag is WRITTEN first, which is trusted until the machine
restarts. It becomes SAFE once the disk has confirmed the bytes, and is then always trusted.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import shutil
import uuid
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Lock
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kata.closing import Closing
from kata.data.arrays import Int64
from kata.data.storage.array_file import alone
from kata.data.storage.buffers import free_memory
from kata.files import fsync
from kata.units import bytes_text, count_text

_log = logging.getLogger(__name__)

ROW_FORMAT = 1
"""Version of the files; raise it when their content or its meaning changes."""

_HEAD_BYTES = 4096
_WRITTEN, _SAFE = b"\1", b"\2"

_SYNC_BYTES = 1024**3
"""Bytes that are written before the disk is asked to confirm them, which takes it seconds."""

_BOOT = Path("/proc/sys/kernel/random/boot_id")
_MEMORY_SHARE, _DISK_SHARE = 0.25, 0.8


class RowBudget(NamedTuple):
    """The room of a cache.

    Attributes:
        num_bytes: of all caches that share it; None means a quarter of the available memory, or
            80 % of the disk's free space.
        share: fraction of it for this cache.
    """

    num_bytes: int | None = None
    share: float = 1.0


class RowFiles(NamedTuple):
    """The files of a cache.

    Attributes:
        by_key: names of files and shapes of a row, by the keys of `fetch`, `has` and `store`. A
            name is a digest of all that decides the bytes.
        rows: number of rows of each.
        content: what a row holds, for messages, such as 'frames per camera'.
    """

    by_key: Mapping[str, tuple[str, tuple[int, ...]]]
    rows: int
    content: str


class RowCache(Closing):
    """Cached rows, for several threads and processes.

    If the budget does not hold all rows, the first ones are cached, equally many of every file.

    Args:
        folder: of the files.
        files: their names and sizes.
        budget: the room that they may take.
        temporary: True removes them with the last process that uses them.
    """

    def __init__(
        self, folder: Path, files: RowFiles, budget: RowBudget, *, temporary: bool = False
    ) -> None:
        self._folder, self._temporary = folder, temporary
        self._content = files.content
        self._lock, self._stopped = Lock(), False
        self._files: dict[str, _RowFile] = {}
        self._syncing = ThreadPoolExecutor(1, thread_name_prefix="kata-cache")
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with alone(self._folder / "all"):
                if self._temporary:
                    _remove_orphans(self._folder)
                for key, (name, shape) in files.by_key.items():
                    self._files[key] = _RowFile(self._folder / name, files.rows, shape)
        except OSError as error:
            self._stop(error)
            self._files.clear()
        self.kept_rows = self._fit(budget, files.rows)

    def _fit(self, allowed: RowBudget, rows: int) -> int:
        """Return the number of rows that the budget holds, and log it."""
        # Equally many rows of every file: a sample with one of its cameras cached would still
        # wait for the decoder of the others.
        per_row = sum(file.row_bytes for file in self._files.values())
        if not per_row:
            return 0
        if allowed.num_bytes is None:
            # Space that earlier runs filled counts as free: they are part of this cache.
            used = sum(file.used_bytes() for file in self._files.values())
            budget = int(_free_bytes(self._folder, self._temporary) * allowed.share) + used
        else:
            budget = int(allowed.num_bytes * allowed.share)
        kept = min(rows, budget // per_row)
        ready = min(file.count() for file in self._files.values())
        _log.info(
            "cache in %s: %s of %s %s fit into %s (all take %s); %s are there already",
            self._folder, count_text(kept), count_text(rows), self._content, bytes_text(budget),
            bytes_text(rows * per_row), count_text(ready),
        )  # fmt: skip
        return kept

    def fetch(
        self, key: str, rows: Int64, out: NDArray[np.uint8], places: Int64
    ) -> NDArray[np.bool_]:
        """Copy the rows that are present to out[places].

        Args:
            key: of the file, such as a camera.
            rows: (N,) rows in `Dataset.opened`.
            out: (M, *shape) uint8.
            places: (N,) ascending, each once.

        Returns:
            (N,) True where a row is missing; its place in `out` is unchanged.
        """
        file = self._files.get(key)
        return np.ones(len(rows), bool) if file is None else file.fetch(rows, out, places)

    def has(self, key: str, rows: Int64) -> NDArray[np.bool_]:
        """Return the mask (N,) of rows that are present."""
        file = self._files.get(key)
        return np.zeros(len(rows), bool) if file is None else file.flags[rows] != 0

    def takes(self, key: str, row: int) -> bool:
        """Return True if `store` would keep this row: it fits, and is not present yet."""
        file = self._files.get(key)
        return (
            file is not None and not self._stopped and row < self.kept_rows and not file.flags[row]
        )

    def store(self, key: str, row: int, pixels: NDArray[np.uint8]) -> None:
        """Write one row, uint8, if `takes` says so.

        A full disk ends the filling of the cache, not the run.
        """
        if not self.takes(key, row):
            return
        file = self._files[key]
        try:
            file.store(row, pixels)
        except OSError as error:
            self._stop(error)
            return
        if not self._temporary and file.unsafe_bytes() >= _SYNC_BYTES:
            # In another thread: the disk may need seconds to confirm a gigabyte.
            self._syncing.submit(self._make_safe, file)

    def _make_safe(self, file: _RowFile) -> None:
        try:
            file.make_safe()
        except OSError as error:
            self._stop(error)

    def _stop(self, error: OSError) -> None:
        with self._lock:
            if self._stopped:
                return
            self._stopped = True
        _log.warning(
            "the cache of %s in %s is filled no further (%s); the run continues without",
            self._content,
            self._folder,
            error,
        )

    def close(self) -> None:
        """Sync what was written. Rows in memory are removed by the last process that uses
        them.
        """
        self._syncing.shutdown(wait=True)
        if not self._temporary:
            for file in self._files.values():
                self._make_safe(file)
        with alone(self._folder / "all"):
            for file in self._files.values():
                file.close(remove=self._temporary)
        self._files.clear()


class _RowFile:
    """The rows of one file: <name>.pixels, sparse, and <name>.flags, a head and one byte per
    row.

    Every process that uses the pair holds a shared lock on the flags. The pair is created and
    removed only under the folder's lock.
    """

    def __init__(self, place: Path, rows: int, shape: tuple[int, ...]) -> None:
        self._paths = (place.with_suffix(".flags"), place.with_suffix(".pixels"))
        self.row_bytes = int(np.prod(shape))
        head = json.dumps(
            {"format": ROW_FORMAT, "rows": rows, "shape": shape, "boot": _boot()}
        ).encode()
        if not self._is_whole(rows):
            self._make(rows, head)
        self._flags_handle, self._pixels_handle = (os.open(path, os.O_RDWR) for path in self._paths)
        fcntl.flock(self._flags_handle, fcntl.LOCK_SH)
        self.flags = np.asarray(
            np.memmap(self._paths[0], np.uint8, "r", offset=_HEAD_BYTES, shape=(rows,))
        )
        self._pixels = np.asarray(np.memmap(self._paths[1], np.uint8, "r", shape=(rows, *shape)))
        self._lock = Lock()
        self._unsafe = self._believed(head)

    def _is_whole(self, rows: int) -> bool:
        if not any(path.exists() for path in self._paths):
            return False
        sizes = [path.stat().st_size if path.exists() else -1 for path in self._paths]
        if sizes == [_HEAD_BYTES + rows, rows * self.row_bytes]:
            return True
        _log.warning("the cache %s is not whole; it is filled again", self._paths[1])
        return False

    def _make(self, rows: int, head: bytes) -> None:
        for path in self._paths:
            # Never truncated: a process that has mapped it would be killed by a bus error.
            path.unlink(missing_ok=True)
        # Sparse: the disk allocates blocks only when rows are written.
        with self._paths[1].open("wb") as file:
            file.truncate(rows * self.row_bytes)
        fsync(self._paths[1])
        beside = self._paths[0].with_suffix(".part")
        with beside.open("wb") as file:
            file.write(head.ljust(_HEAD_BYTES))
            file.write(bytes(rows))
        fsync(beside)
        beside.replace(self._paths[0])
        fsync(self._paths[0].parent)

    def _believed(self, head: bytes) -> list[int]:
        """Return the rows that are written but not safe.

        If the machine has restarted since, they are not trusted: their flags are cleared.
        """
        rows = np.flatnonzero(self.flags == _WRITTEN[0]).tolist()
        if os.pread(self._flags_handle, _HEAD_BYTES, 0).strip() == head:
            return rows
        for row in rows:
            os.pwrite(self._flags_handle, b"\0", _HEAD_BYTES + row)
        # The head names the machine's start, so it may change only after the cleared flags are
        # safe.
        os.fsync(self._flags_handle)
        os.pwrite(self._flags_handle, head.ljust(_HEAD_BYTES), 0)
        return []

    def count(self) -> int:
        return int(np.count_nonzero(self.flags))

    def used_bytes(self) -> int:
        return os.fstat(self._pixels_handle).st_blocks * 512

    def unsafe_bytes(self) -> int:
        return len(self._unsafe) * self.row_bytes

    def fetch(self, rows: Int64, out: NDArray[np.uint8], places: Int64) -> NDArray[np.bool_]:
        present = self.flags[rows] != 0
        if present.all() and len(places) == len(out):
            # The default mode 'raise' would copy through a temporary array.
            np.take(self._pixels, rows, axis=0, out=out, mode="clip")
        else:
            for place, row in zip(places[present].tolist(), rows[present].tolist(), strict=True):
                out[place] = self._pixels[row]
        return ~present

    def store(self, row: int, pixels: NDArray[np.uint8]) -> None:
        data = np.ascontiguousarray(pixels).data.cast("B")
        done = 0
        while done < len(data):
            done += os.pwrite(self._pixels_handle, data[done:], row * self.row_bytes + done)
        # The flag after the bytes, so that no reader sees a part of a row.
        os.pwrite(self._flags_handle, _WRITTEN, _HEAD_BYTES + row)
        with self._lock:
            self._unsafe.append(row)

    def make_safe(self) -> None:
        with self._lock:
            rows, self._unsafe = self._unsafe, []
        if not rows:
            return
        try:
            os.fsync(self._pixels_handle)
        except OSError:
            for row in rows:
                os.pwrite(self._flags_handle, b"\0", _HEAD_BYTES + row)
            raise
        for row in rows:
            os.pwrite(self._flags_handle, _SAFE, _HEAD_BYTES + row)

    def close(self, *, remove: bool) -> None:
        try:
            fcntl.flock(self._flags_handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            remove = False
        if remove:
            for path in self._paths:
                path.unlink(missing_ok=True)
        os.close(self._flags_handle)
        os.close(self._pixels_handle)


def _remove_orphans(folder: Path) -> None:
    """Remove rows of processes that were killed before they could do so."""
    for flags in folder.glob("*.flags"):
        with flags.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                continue
            for path in (flags, flags.with_suffix(".pixels")):
                path.unlink(missing_ok=True)


def _free_bytes(folder: Path, memory: bool) -> int:
    """Return the part of the free memory or disk space that a cache may take by default."""
    disk = int(shutil.disk_usage(folder).free * _DISK_SHARE)
    if not memory:
        return disk
    return min(int(free_memory() * _MEMORY_SHARE), disk)


def _boot() -> str:
    """Return an identifier of the machine's start; where there is none, one of this process."""
    return _BOOT.read_text().strip() if _BOOT.is_file() else uuid.uuid4().hex
