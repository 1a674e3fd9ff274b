"""Fetched byte ranges that are kept on a disk of this machine, for its ranks and later epochs.

Each file of the store has two here: a sparse one with the bytes at their places, and a list of the
ranges that it holds. A range enters the list after its bytes, with their checksum, and counts only
once the checksum was compared. So a process that dies, or a machine that does, leaves ranges
absent, never wrong.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import logging
import os
import struct
import sys
import zlib
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from threading import Lock

from kata.data.storage.file_stamp import Stamp

_log = logging.getLogger(__name__)

_ENTRY = struct.Struct("<QQII")  # begin and end of a range, CRC-32 of its bytes, CRC-32 of these
_LOCK = struct.Struct("hhqqi")  # struct flock of Linux: type, whence, start, length, process

_PART_BYTES = 16 * 1024**2
"""Ranges that are not checked yet are sought by the part of the file in which they begin. No
request is longer, but that of a longer GOP, which is then fetched again.
"""

_RESERVE = 0.05
"""Fraction of the disk that stays free, up to _RESERVE_BYTES: checkpoints need room as well."""

_RESERVE_BYTES = 2**30


class KeptRanges:
    """The kept ranges of one store's files, for several threads and processes.

    Args:
        folder: for the files, shared by all that read the dataset.
        origin: what tells this store from others, without credentials.

    Attributes:
        is_stopped: True once the disk takes nothing more.
    """

    def __init__(self, folder: Path, origin: str) -> None:
        self._folder, self._origin = folder, origin
        self._lock = Lock()
        self._files: dict[tuple[str, Stamp], _KeptFile] = {}
        self.is_stopped = False

    def file(self, name: str, stamp: Stamp) -> _KeptFile:
        """Return the kept ranges of a file; another stamp is another file."""
        with self._lock:
            found = self._files.get((name, stamp))
            if found is None:
                identity = json.dumps([self._origin, name, *stamp.identity])
                digest = hashlib.sha256(identity.encode()).hexdigest()[:32]
                place = self._folder / "bytes" / digest[:2] / digest[2:]
                found = self._files[name, stamp] = _KeptFile(place)
            return found

    def read(self, name: str, begin: int, pieces: Sequence[memoryview], stamp: Stamp) -> bool:
        """Fill buffers from position `begin` of a file; return False if bytes are not here."""
        try:
            return self.file(name, stamp).read(begin, pieces)
        except OSError as error:
            self._stop(error)
            return False

    def absent(self, name: str, begin: int, end: int, stamp: Stamp) -> tuple[int, int]:
        """Return the part of [begin, end) that is left without the kept ranges at its ends."""
        try:
            return self.file(name, stamp).absent(begin, end)
        except OSError as error:
            self._stop(error)
            return begin, end

    def write(self, name: str, begin: int, pieces: Sequence[memoryview], stamp: Stamp) -> None:
        """Keep the bytes of buffers; a full disk ends that, not the run."""
        if self.is_stopped:
            return
        try:
            self._check_room()
            self.file(name, stamp).write(begin, pieces)
        except OSError as error:
            self._stop(error)

    @contextmanager
    def claim(self, name: str, begin: int, end: int, stamp: Stamp) -> Generator[None]:
        """Hold bytes [begin, end) of a file, so that one process of this machine fetches them."""
        with ExitStack() as live:
            # Without a lock, several processes may fetch the same bytes; all of them are right.
            if sys.platform == "linux" and not self.is_stopped:
                try:
                    handle = self.file(name, stamp).open()
                    live.callback(os.close, handle)
                    # A lock of the open file, not of the process: it ends when this one is closed.
                    lock = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, begin, end - begin, 0)
                    fcntl.fcntl(handle, fcntl.F_OFD_SETLKW, lock)
                except OSError as error:
                    self._stop(error)
            yield

    def _check_room(self) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        disk = os.statvfs(self._folder)
        reserve = min(_RESERVE_BYTES, _RESERVE * disk.f_blocks * disk.f_frsize)
        if disk.f_bavail * disk.f_frsize < reserve:
            raise OSError(None, "the disk is nearly full")

    def _stop(self, error: OSError) -> None:
        with self._lock:
            if self.is_stopped:
                return
            self.is_stopped = True
        _log.warning(
            "nothing more is kept in %s (%s): what is not there yet is fetched in every epoch; "
            "free some space, or set --dataset.cache_dir to a folder with more",
            self._folder,
            error.strerror,
        )


class _KeptFile:
    """The kept ranges of one file: <place>.bytes, sparse, and <place>.ranges, which only grows."""

    def __init__(self, place: Path) -> None:
        self._bytes, self._ranges = place.with_suffix(".bytes"), place.with_suffix(".ranges")
        self._lock = Lock()
        self._seen_bytes = 0
        self._unchecked: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        # Disjoint ranges whose bytes are known to be right, ascending.
        self._begins: list[int] = []
        self._ends: list[int] = []

    def open(self) -> int:
        """Return a descriptor of the bytes; whoever asks for it closes it."""
        self._bytes.parent.mkdir(parents=True, exist_ok=True)
        return os.open(self._bytes, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)

    def read(self, begin: int, pieces: Sequence[memoryview]) -> bool:
        end = begin + sum(map(len, pieces))
        with self._lock:
            if not self._knows(begin, end):
                return False
        handle = self.open()
        try:
            return os.preadv(handle, pieces, begin) == end - begin
        finally:
            os.close(handle)

    def absent(self, begin: int, end: int) -> tuple[int, int]:
        with self._lock:
            if self._knows(begin, end):
                return end, end
            before = bisect_right(self._begins, begin) - 1
            if before >= 0:
                begin = max(begin, self._ends[before])
            after = bisect_right(self._begins, end - 1) - 1
            if after >= 0 and self._ends[after] >= end:
                end = self._begins[after]
            return begin, end

    def write(self, begin: int, pieces: Sequence[memoryview]) -> None:
        check, at = 0, begin
        handle = self.open()
        try:
            for piece in pieces:
                check = zlib.crc32(piece, check)
                at += os.pwrite(handle, piece, at)
        finally:
            os.close(handle)
        end = begin + sum(map(len, pieces))
        if at != end:
            raise OSError(None, "the disk took only a part")
        entry = struct.pack("<QQI", begin, end, check)
        handle = os.open(self._ranges, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            # In one call, so that entries of several processes do not mix.
            os.write(handle, entry + struct.pack("<I", zlib.crc32(entry)))
        finally:
            os.close(handle)
        with self._lock:
            self._add(begin, end)

    def _knows(self, begin: int, end: int) -> bool:
        """Return True if the range is here, also if another process has kept it."""
        if not self._has(begin, end):
            self._look()
            self._check(begin, end)
        return self._has(begin, end)

    def _has(self, begin: int, end: int) -> bool:
        place = bisect_right(self._begins, begin) - 1
        return place >= 0 and end <= self._ends[place]

    def _look(self) -> None:
        """Take the entries that were added to the list since the last look."""
        try:
            with self._ranges.open("rb") as file:
                file.seek(self._seen_bytes)
                new = file.read()
        except FileNotFoundError:
            return
        at = 0
        while at + _ENTRY.size <= len(new):
            begin, end, check, own = _ENTRY.unpack_from(new, at)
            if zlib.crc32(new[at : at + _ENTRY.size - 4]) == own:
                self._unchecked[begin // _PART_BYTES].append((begin, end, check))
                at += _ENTRY.size
            else:
                at += 1  # an entry that was cut off; the next one follows somewhere behind it
        self._seen_bytes += at

    def _check(self, begin: int, end: int) -> None:
        """Compare the checksums of listed ranges that overlap [begin, end)."""
        for number in range(begin // _PART_BYTES - 1, end // _PART_BYTES + 1):
            left: list[tuple[int, int, int]] = []
            for first, last, check in self._unchecked.pop(number, ()):
                if not (first < end and begin < last):
                    left.append((first, last, check))
                elif self._checksum(first, last) == check:
                    self._add(first, last)
            if left:
                self._unchecked[number] = left

    def _checksum(self, begin: int, end: int) -> int:
        handle = self.open()
        try:
            return zlib.crc32(os.pread(handle, end - begin, begin))
        finally:
            os.close(handle)

    def _add(self, begin: int, end: int) -> None:
        """Join a range with those that it overlaps or touches."""
        low = bisect_right(self._begins, begin)
        if low and self._ends[low - 1] >= begin:
            low -= 1
            begin = self._begins[low]
        high = bisect_right(self._begins, end)
        if high > low:
            end = max(end, self._ends[high - 1])
        self._begins[low:high], self._ends[low:high] = [begin], [end]
