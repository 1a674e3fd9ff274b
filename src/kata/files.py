"""Writing of files that are complete or absent after an interruption or a power failure."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
"""Errors of a full disk. They cost the file that is being written, not the run."""


def fsync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk.

    A power failure cannot undo them after that.
    """
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_json(path: Path, value: Any, *, indent: int = 4, allow_nan: bool = True) -> None:
    """Write JSON in LeRobot's formatting, atomically.

    Args:
        path: of the file.
        value: JSON values.
        indent: spaces per level.
        allow_nan: False to refuse NaN and infinity, which JSON does not have.

    Raises:
        ValueError: There is a NaN or an infinity, with `allow_nan=False`.
        OSError: The folder cannot be written.
    """
    partial = path.with_name(path.name + ".partial")
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=allow_nan)
    try:
        partial.write_text(text, encoding="utf-8")
        os.replace(partial, path)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


def write_durably(path: Path, raw: bytes) -> None:
    """Write a file atomically. When this returns, a power failure cannot undo it.

    Raises:
        OSError: the disk refuses. Nothing is left behind.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        partial.write_bytes(raw)
        fsync(partial)
        os.replace(partial, path)
        fsync(path.parent)
    except OSError:
        partial.unlink(missing_ok=True)
        raise
