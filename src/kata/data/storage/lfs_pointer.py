"""Git LFS pointers: the small text files that a clone without git-lfs has in place of the data."""

from __future__ import annotations

from pathlib import Path

from kata.errors import DataError

_POINTER = b"version https://git-lfs.github.com/spec/"
_POINTER_BYTES = 1024
"""The specification of Git LFS lets no pointer be longer."""


def is_pointer(path: Path) -> bool:
    """Return whether a file is a Git LFS pointer."""
    if path.stat().st_size > _POINTER_BYTES:
        return False
    with path.open("rb") as file:
        return file.read(len(_POINTER)) == _POINTER


def refuse_pointer(path: Path) -> None:
    """Raise DataError when a file is a Git LFS pointer."""
    if is_pointer(path):
        raise DataError(
            f"{path} is a Git LFS pointer, not the file itself",
            rule="a clone has the files themselves only after git-lfs has fetched them",
            remedy="install git-lfs, then run `git lfs pull` in the clone",
        )
