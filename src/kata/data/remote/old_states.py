"""Removal of states of streamed datasets that no process reads any more."""

from __future__ import annotations

import fcntl
import os
import shutil
from pathlib import Path

_held: dict[Path, int] = {}
"""Descriptors of the locks of states that this process reads, until it ends: files of a state are
opened when they are first needed, by whoever has the dataset.
"""


def hold(state: Path) -> None:
    """Keep a state from being removed as long as this process lives.

    Args:
        state: folder of its links; the caller keeps others from removing it meanwhile.
    """
    if state in _held:
        return
    try:
        state.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(_lock_of(state), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError:
        return  # a disk without locks, or one that cannot be written: nothing is removed there
    _held[state] = handle


def remove_old(folder: Path) -> None:
    """Remove the states that no process holds, and then the copies that no state refers to.

    Args:
        folder: of one dataset, with `snapshots` and `blobs`; the caller holds its lock.
    """
    removed = [_remove(state) for state in (folder / "snapshots").glob("*") if state.is_dir()]
    if not any(removed):
        return
    links = (folder / "snapshots").rglob("*")
    used = {os.path.basename(os.readlink(path)) for path in links if path.is_symlink()}
    for blob in (folder / "blobs").glob("*"):
        if blob.name not in used:
            blob.unlink(missing_ok=True)


def _remove(state: Path) -> bool:
    """Remove a state unless a process holds it; return True if it is gone."""
    try:
        handle = os.open(_lock_of(state), os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        return False
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(state, ignore_errors=True)
        _lock_of(state).unlink(missing_ok=True)
    except OSError:
        return False
    finally:
        os.close(handle)
    return True


def _lock_of(state: Path) -> Path:
    return state.with_name(f"{state.name}.lock")
