"""Stamps that tell whether a file is still the one that was read before."""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

from kata.errors import DataError


class Stamp(NamedTuple):
    """What tells that a file is still the one that was indexed."""

    size: int
    mtime_ns: int
    inode: int

    @staticmethod
    def of(stat: os.stat_result) -> Stamp:
        """The stamp of a file."""
        return Stamp(stat.st_size, stat.st_mtime_ns, stat.st_ino)


def replaced(path: Path, how: str) -> DataError:
    """The error of a file that is not what it was."""
    return DataError(
        f"{path} has changed since the run began: it {how}",
        rule="the files of a dataset stay as they are while it is read",
        remedy="restore the file, or start again once the dataset is complete",
    )


_END_BYTES = 64 * 1024


def file_identity(path: Path) -> tuple[int, int]:
    """(size in bytes, mtime_ns): another pair means that the file was replaced."""
    found = path.stat()
    return found.st_size, found.st_mtime_ns


def file_ends(path: Path, size: int) -> bytes:
    """The first and the last 64 KiB: times and sizes alone may agree where archives set all
    times alike.
    """
    with path.open("rb") as file:
        head = file.read(_END_BYTES)
        file.seek(max(0, size - _END_BYTES))
        return head + file.read(_END_BYTES)
