"""Stamps by which one sees that a file was replaced or changed."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from kata.errors import DataError


class Stamp(NamedTuple):
    """Size and identity of a file; another stamp means another content.

    Attributes:
        size: in bytes.
        version: modification time in nanoseconds of a file on a disk, or the entity tag of an
            object in a store.
        inode: of a file on a disk, else 0.
    """

    size: int
    version: int | str
    inode: int = 0

    @staticmethod
    def of(stat: os.stat_result) -> Stamp:
        """Return the stamp in the result of `stat`."""
        return Stamp(stat.st_size, stat.st_mtime_ns, stat.st_ino)

    @property
    def identity(self) -> tuple[int, int | str]:
        """Return size and version, which name the content in caches; copies keep both."""
        return self.size, self.version


def replaced(location: str, how: str) -> DataError:
    """Return the error for a file that has changed since the run began; `how` completes the
    message.
    """
    return DataError(
        f"{location} has changed since the run began: it {how}",
        rule="the files of a dataset stay as they are while it is read",
        remedy="restore the file, or start again once the dataset is complete",
    )


_END_BYTES = 64 * 1024


def file_ends(path: Path, size: int) -> bytes:
    """Return the first and the last 64 KiB of a file of `size` bytes.

    They distinguish files of one size and time: archives may give all files the same time.
    """
    with path.open("rb") as file:
        head = file.read(_END_BYTES)
        file.seek(max(0, size - _END_BYTES))
        return head + file.read(_END_BYTES)
