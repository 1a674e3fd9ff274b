"""A folder that appears whole or not at all: made under a hidden name beside its place, then
renamed.
"""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from pathlib import Path

from kata.errors import DataError
from kata.files import fsync
from kata.units import bytes_text

_SPARE = 64 * 1024**2
"""Left free on the disk beyond what the result is expected to take."""


@contextmanager
def new_folder(
    out: Path, *, inputs: Sequence[Path], need_bytes: int, say: Callable[[str], None]
) -> Generator[Path]:
    """A folder to fill; on leaving it becomes `out` in one step, after an error it is removed.

    What a killed process left is removed by the next start with the same `out`; a lock, which the
    system releases when a process dies, tells it from the folder of a process that is still at
    work.

    Args:
        out: the place; must not exist.
        inputs: folders that are read; `out` may not lie in one of them.
        need_bytes: what the result will take, for comparison with the free space.
        say: gets a sentence about a leftover that was removed.

    Raises:
        DataError: when the place is taken, lies in an input, or the disk has too little space.
    """
    out = Path(os.path.abspath(out.expanduser()))
    _require_free(out, inputs)
    hidden = out.parent / f".{out.name}.partial"
    with _parents(out), _locked(hidden, say):
        _require_space(out.parent, need_bytes)
        work = hidden / out.name
        work.mkdir()
        yield work
        for path in [*work.rglob("*"), work]:
            fsync(path)
        _require_free(out, inputs)  # a rename would replace an empty folder
        os.rename(work, out)
        fsync(out.parent)


def _require_free(out: Path, inputs: Sequence[Path]) -> None:
    if out.exists() or out.is_symlink():
        raise DataError(
            f"out: {out} exists",
            rule="the result gets a new folder",
            remedy="name another, or delete it",
        )
    for root in inputs:
        if out.resolve().is_relative_to(root.resolve()):
            raise DataError(
                f"out: {out} lies in the dataset {root}",
                rule="what is read is not changed",
                remedy="name another",
            )


def _require_space(folder: Path, need_bytes: int) -> None:
    free = shutil.disk_usage(folder).free
    if need_bytes + _SPARE > free:
        raise DataError(
            f"out: the result takes about {bytes_text(need_bytes)}, {folder} has "
            f"{bytes_text(free)} free",
            rule=f"the result and {bytes_text(_SPARE)} more fit on the disk",
            remedy="make room, or name a folder on another disk",
        )


@contextmanager
def _parents(out: Path) -> Generator[None]:
    """The folders above `out`; those that were made for nothing are removed again."""
    made = [folder for folder in out.parents if not folder.exists()]
    out.parent.mkdir(parents=True, exist_ok=True)
    try:
        yield
    finally:
        for folder in made if not out.exists() else ():
            if not any(folder.iterdir()):
                folder.rmdir()


@contextmanager
def _locked(hidden: Path, say: Callable[[str], None]) -> Generator[None]:
    """The hidden folder, new, empty and this process's own; gone afterwards."""
    left = hidden.exists()
    hidden.mkdir(exist_ok=True)
    lock = os.open(hidden / "lock", os.O_RDWR | os.O_CREAT)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise DataError(
                f"another process is writing {hidden}",
                rule="one process at a time makes a folder",
                remedy="wait for it, or name another folder",
            ) from error
        if left:
            say(f"removed {hidden}, left by a process that was ended")
            _clear(hidden)
        try:
            yield
        finally:
            shutil.rmtree(hidden)
    finally:
        os.close(lock)


def _clear(hidden: Path) -> None:
    for path in hidden.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != "lock":
            path.unlink()
